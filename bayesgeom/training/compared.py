"""Recipes to compare architectures by: on each task the same sequences in the same order, and as many weights.

`<task>-<architecture>` is trained on batches whose seeds depend on the task alone, so every architecture of a row sees
the same data; sizes come within 1 % of the row's transformer (`models.capacity` finds them, a test holds them to it).
An MLP here sees its own position alone; `mlp-prefix` sees all that came before, without a state to fold it into.
`ARCHITECTURES` are shipped; those of `ON_REQUEST` have their recipes too, and are trained where they are asked for.

Two tasks are learned in two stages, by every architecture alike: with keys uniform over all of them nothing is gained
by attending to values before keys can be matched (see `tasks.bijection`), and with many pairs likewise
(`tasks.associative_recall`); where keys return often, or few pairs are stored, it is gained step by step.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM, SLOW
from bayesgeom.training.recipe import Recipe, staged

Sizes = Mapping[str, Any]

_PREFIX: Sizes = {"architecture": "mlp", "context": "prefix", "d_embed": 32, "tied": False}
_SMALL: dict[str, Sizes] = {  # about 0.60 M parameters
    "transformer": {"architecture": "transformer", "n_layers": 3, "n_heads": 4, "d_model": 128, "d_mlp": 512},
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 170},
    "lstm": {"architecture": "lstm", "n_layers": 2, "d_model": 192},
    "mlp": {"architecture": "mlp", "n_layers": 4, "d_model": 136, "d_mlp": 544},
    "mlp-prefix": {**_PREFIX, "n_layers": 3, "d_model": 134, "d_mlp": 536},
    "mamba2": {"architecture": "mamba2", "n_layers": 3, "d_model": 174, "d_head": 87},
    "rwkv": {"architecture": "rwkv", "n_layers": 3, "d_model": 123, "d_mlp": 492},
}
_DEEP: Mapping[str, Sizes] = {  # about 1.82 M parameters: filtering takes the transformer nine layers
    "transformer": {
        "architecture": "transformer", "n_layers": 9, "n_heads": 8, "d_model": 128, "d_mlp": 512, "norm": "layernorm",
        "tied": False,
    },
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 298, "tied": False},
    "lstm": {"architecture": "lstm", "n_layers": 3, "d_model": 270, "tied": False},
    "mlp": {"architecture": "mlp", "n_layers": 9, "d_model": 156, "d_mlp": 624, "tied": False},
    "mlp-prefix": {**_PREFIX, "n_layers": 9, "d_model": 138, "d_mlp": 552},
    "mamba2": {"architecture": "mamba2", "n_layers": 3, "d_model": 304, "d_head": 152},
    "rwkv": {"architecture": "rwkv", "n_layers": 3, "d_model": 212, "d_mlp": 848},
}  # fmt: skip
_SLOW: Mapping[str, Sizes] = {  # about 1.23 M parameters: a belief carried over 64 steps
    "transformer": {
        "architecture": "transformer", "n_layers": 6, "n_heads": 4, "d_model": 128, "d_mlp": 512, "norm": "layernorm",
        "tied": False,
    },
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 242, "tied": False},
    "lstm": {"architecture": "lstm", "n_layers": 3, "d_model": 222, "tied": False},
    "mlp": {"architecture": "mlp", "n_layers": 6, "d_model": 156, "d_mlp": 624, "tied": False},
    "mlp-prefix": {**_PREFIX, "n_layers": 5, "d_model": 124, "d_mlp": 496},
    "mamba2": {"architecture": "mamba2", "n_layers": 3, "d_model": 250, "d_head": 125},
    "rwkv": {"architecture": "rwkv", "n_layers": 6, "d_model": 124, "d_mlp": 496},
}  # fmt: skip
_LONG = _SMALL | {"mlp-prefix": {**_PREFIX, "n_layers": 3, "d_model": 120, "d_mlp": 480}}  # its window costs weights
_ROWS = {"bijection": _SMALL, "repeats": _SMALL, "recall": _LONG, "hmm": _DEEP, "slow-hmm": _SLOW}

_BIJECTION = Recipe(name="bijection", task=Bijection(), sizes={}, lr=2e-3, steps=6_000, float32_share=0.1)
_REPEATS = Recipe(
    name="repeats",
    task=Bijection(repeats=True),
    sizes={},
    lr=2e-3,
    matrix_lr=0.01,
    warmup=50,
    steps=5_000,
    float32_share=0.1,
    seed=1,
)
_REPEATS_POOLED = Recipe(
    name="repeats-pooled",
    task=Bijection(repeats=True, pooled_keys=True),
    sizes={},
    lr=2e-3,
    matrix_lr=0.01,
    steps=2_000,
    float32_share=0.0,
    snapshots=0,
)
_RECALL = Recipe(
    name="recall",
    task=AssociativeRecall(),
    sizes={},
    lr=2e-3,
    matrix_lr=0.01,
    warmup=50,
    steps=3_000,
    float32_share=0.1,
    seed=1,
)
_RECALL_POOLED = Recipe(
    name="recall-pooled",
    task=AssociativeRecall(pooled_pairs=True),
    sizes={},
    lr=2e-3,
    matrix_lr=0.01,
    steps=2_000,
    float32_share=0.0,
    snapshots=0,
)
_HMM = Recipe(
    name="hmm",
    task=HMM(),
    sizes={},
    targets="exact",
    weight_decay=0.1,
    decay_steps=1798,
    steps=5_000,
    float32_share=0.0,
)
# Sampled targets: exact ones would distill the filter into the network.
_SLOW_HMM = Recipe(name="slow-hmm", task=SLOW, sizes={}, steps=4_000, float32_share=0.1)

TASKS: Mapping[str, tuple[Recipe, ...]] = {
    "bijection": (_BIJECTION,),
    "repeats": (_REPEATS_POOLED, _REPEATS),
    "recall": (_RECALL_POOLED, _RECALL),
    "hmm": (_HMM,),
    "slow-hmm": (_SLOW_HMM,),
}
ARCHITECTURES = ("transformer", "mamba", "lstm", "mlp")
ON_REQUEST = ("mlp-prefix", "mamba2", "rwkv")
_SHIPPED_AS = {"hmm-transformer": "hmm-s5"}  # it was there before there was anything to compare it with


def sizes_of(task: str, architecture: str) -> Sizes:
    """The sizes of one architecture in the row of one task."""
    return _ROWS[task][architecture]


def compared() -> dict[str, Recipe]:
    """Every recipe of the comparison, by task and architecture: `bijection-lstm`. One has another name."""
    return {
        f"{task}-{architecture}": _with_sizes(task, architecture)
        for task in TASKS
        for architecture in (*ARCHITECTURES, *ON_REQUEST)
    }


def untied() -> Recipe:
    """`bijection-transformer` with an unembedding of its own: a token's embedding is not its logit."""
    tied = _with_sizes("bijection", "transformer")
    return replace(tied, name=f"{tied.name}-untied", sizes={**tied.sizes, "tied": False})


def _with_sizes(task: str, architecture: str) -> Recipe:
    """A task's stages, each with these sizes, the last one's name the row's."""
    trained = staged(TASKS[task], architecture, sizes_of(task, architecture))
    return replace(trained, name=_SHIPPED_AS.get(trained.name, trained.name))
