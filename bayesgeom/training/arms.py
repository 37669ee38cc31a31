"""Arms: recipes that differ in positions alone, to see what each kind does beyond the length that it was trained on.

`<task>-arm-<kind>` sees the same sequences in the same order as every other arm of its task, from the same seed.
`learned` has a table longer than its training sequences, whose last rows no gradient reaches: in training they only
keep where they were drawn, or decay. `prior` starts as ALiBi and learns slope and exponent of every head; `gaussian` is
the fixed prior of exponent 2 at ALiBi's slopes. `no-top-attention` is the learned arm with attention off in its top two
layers from the start.

Tasks are small so that an arm trains in minutes: three hidden states over ten steps; four pairs, asked for over eight
filler tokens, learned in two stages as every recall is (see `training.compared`). In `recall-mixed` batches take turns
at every distance from none to eight: whoever saw one distance alone has no reason to know that there are others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bayesgeom.core.errors import unknown_name
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.hmm import HMM
from bayesgeom.training.recipe import Recipe, staged

_HEADS = 4
_RECALL_SHAPE = {"n_layers": 3, "n_heads": _HEADS, "d_model": 96, "d_mlp": 384, "n_ctx": 1_024}
_SHAPES: Mapping[str, Mapping[str, Any]] = {  # n_ctx is the rows of the learned tables
    "hmm": {
        "n_layers": 6,
        "n_heads": _HEADS,
        "d_model": 96,
        "d_mlp": 384,
        "norm": "layernorm",
        "tied": False,
        "n_ctx": HMM(n_states=3, n_symbols=3, length=200).n_pos,
    },
    "recall": _RECALL_SHAPE,
    "recall-mixed": _RECALL_SHAPE,
}
_GAUSSIAN = {
    "positions": "prior",
    "prior_exponents": [2.0] * _HEADS,
    "prior_is_learned": False,
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "learned": {"positions": "learned"},
    "sinusoidal": {"positions": "sinusoidal"},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "prior": {"positions": "prior"},
    "gaussian": _GAUSSIAN,
    "none": {"positions": "none"},
    "no-top-attention": {"positions": "learned", "top_attention_off": 2},
}

_HMM = Recipe(
    name="hmm",
    task=HMM(n_states=3, n_symbols=3, length=10),
    sizes={},
    targets="exact",
    weight_decay=0.1,
    decay_steps=1_500,
    steps=4_000,
    float32_share=0.0,
    snapshots=0,
)
_PAIRS = AssociativeRecall(n_pairs=4, n_keys=8, n_values=8, n_queries=4, n_filler=8)
_RECALL = Recipe(
    name="recall",
    task=_PAIRS,
    sizes={},
    lr=2e-3,
    matrix_lr=0.01,
    warmup=50,
    steps=2_000,
    float32_share=0.0,
    seed=1,
    snapshots=0,
)
_RECALL_POOLED = replace(
    _RECALL, name="recall-pooled", task=replace(_PAIRS, pooled_pairs=True), warmup=200, steps=1_500, seed=0
)


def _mixed(stage: Recipe, steps: int) -> Recipe:
    """The same stage at every distance from none to the task's."""
    task = stage.task
    assert isinstance(task, AssociativeRecall)
    nearer = tuple(replace(task, n_filler=distance) for distance in range(task.n_filler))
    return replace(stage, name=stage.name.replace("recall", "recall-mixed"), also=nearer, steps=steps)


TASKS: Mapping[str, tuple[Recipe, ...]] = {
    "hmm": (_HMM,),
    "recall": (_RECALL_POOLED, _RECALL),
    "recall-mixed": (_mixed(_RECALL_POOLED, 2_000), _mixed(_RECALL, 3_000)),
}


def arms(task: str) -> dict[str, Recipe]:
    """The recipes of one task, by name. **Raises** `UnknownName` for a task without arms."""
    if task not in TASKS:
        raise unknown_name("task with arms", task, TASKS)
    made = (_arm(task, kind) for kind in KINDS if task == "hmm" or kind != "no-top-attention")
    return {recipe.name: recipe for recipe in made}


def arms_of_kinds(task: str, kinds: Sequence[str] | None) -> list[Recipe]:
    """Arms of one task, of these kinds or all. **Raises** `UnknownName` for a kind that the task's arms have not."""
    known = {name.removeprefix(f"{task}-arm-"): recipe for name, recipe in arms(task).items()}
    for kind in kinds or ():
        if kind not in known:
            raise unknown_name(f"arm of {task}", kind, known)
    return [known[kind] for kind in kinds or known]


def all_arms() -> dict[str, Recipe]:
    """Every arm of every task, by name."""
    return {name: recipe for task in TASKS for name, recipe in arms(task).items()}


def _arm(task: str, kind: str) -> Recipe:
    """A task's stages with this kind of positions, the last one's name the arm's."""
    sizes = {"architecture": "transformer", **_SHAPES[task], **KINDS[kind]}
    return staged(TASKS[task], f"arm-{kind}", sizes)
