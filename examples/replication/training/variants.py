"""Variants of a task's recipe that differ only in positional encoding, to compare them beyond the training length.

All variants of a task, `<task>-variant-<kind>`, see the same sequences in the same order. `learned` has a table longer
than the training sequences; its last rows get no gradient and keep their random initialization, or decay. `prior`
starts as ALiBi and learns slope and exponent of every head; `gaussian` is the fixed prior of exponent 2 with ALiBi's
slopes. `no-top-attention` is `learned` without attention in the top two layers.

Tasks are small, so a variant trains in minutes. `hmm` has three hidden states and ten steps. `recall` has four pairs
and eight filler tokens, learned in two stages as in `training.recipes`. In `recall-mixed`, batches alternate between
all distances from zero to eight filler tokens, because a network that saw one distance has no reason to generalize.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bayesgeom.core.errors import unknown_name
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.hmm import HMM
from bayesgeom.training.recipes import Recipe, staged

_HEADS = 4
_RECALL_SHAPE = {"n_layers": 3, "n_heads": _HEADS, "d_model": 96, "d_mlp": 384, "n_ctx": 1_024}
_SHAPES: Mapping[str, Mapping[str, Any]] = {  # n_ctx is the number of rows of the learned tables
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
    """The same stage at every distance from zero to the task's."""
    task = stage.task
    assert isinstance(task, AssociativeRecall)
    nearer = tuple(replace(task, n_filler=distance) for distance in range(task.n_filler))
    return replace(stage, name=stage.name.replace("recall", "recall-mixed"), also=nearer, steps=steps)


TASKS: Mapping[str, tuple[Recipe, ...]] = {
    "hmm": (_HMM,),
    "recall": (_RECALL_POOLED, _RECALL),
    "recall-mixed": (_mixed(_RECALL_POOLED, 2_000), _mixed(_RECALL, 3_000)),
}


def variants(task: str) -> dict[str, Recipe]:
    """Return the variants of one task, by name.

    Raises:
        UnknownName: The task has no variants.
    """
    if task not in TASKS:
        raise unknown_name("task with variants", task, TASKS)
    made = (_variant(task, kind) for kind in KINDS if task == "hmm" or kind != "no-top-attention")
    return {recipe.name: recipe for recipe in made}


def variants_of_kinds(task: str, kinds: Sequence[str] | None) -> list[Recipe]:
    """Return the variants of one task, of these kinds or of all.

    Raises:
        UnknownName: The task has no variant of a kind.
    """
    known = {name.removeprefix(f"{task}-variant-"): recipe for name, recipe in variants(task).items()}
    for kind in kinds or ():
        if kind not in known:
            raise unknown_name(f"variant of {task}", kind, known)
    return [known[kind] for kind in kinds or known]


def all_variants() -> dict[str, Recipe]:
    """Return every variant of every task, by name."""
    return {name: recipe for task in TASKS for name, recipe in variants(task).items()}


def _variant(task: str, kind: str) -> Recipe:
    """A task's stages with this kind of positions; the last one has the name of the variant."""
    sizes = {"architecture": "transformer", **_SHAPES[task], **KINDS[kind]}
    return staged(TASKS[task], f"variant-{kind}", sizes)
