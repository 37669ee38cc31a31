"""Recipes for the comparison of architectures: same data and equal parameter counts per task.

The seeds of the batches of `<task>-<architecture>` depend on the task only, so every architecture of a row sees the
same sequences in the same order. Parameter counts are within 1 % of the row's transformer (see `models.capacity`).
`mlp` sees its own position only; `mlp-prefix` sees the whole prefix without a recurrent state. `ARCHITECTURES` of
`TASKS` are shipped. `ON_REQUEST` and the rows of `FURTHER_TASKS` have recipes only.

`repeats` and `recall` are learned in stages by every architecture. With all keys equally likely there is no gradient
toward attending to values before keys can be matched (see `tasks.bijection` and `tasks.associative_recall`). On
sequences with returning keys, or with few stored pairs, there is.
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
        "architecture": "transformer",
        "n_layers": 9,
        "n_heads": 8,
        "d_model": 128,
        "d_mlp": 512,
        "norm": "layernorm",
        "tied": False,
    },
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 298, "tied": False},
    "lstm": {"architecture": "lstm", "n_layers": 3, "d_model": 270, "tied": False},
    "mlp": {"architecture": "mlp", "n_layers": 9, "d_model": 156, "d_mlp": 624, "tied": False},
    "mlp-prefix": {**_PREFIX, "n_layers": 9, "d_model": 138, "d_mlp": 552},
    "mamba2": {"architecture": "mamba2", "n_layers": 3, "d_model": 304, "d_head": 152},
    "rwkv": {"architecture": "rwkv", "n_layers": 3, "d_model": 212, "d_mlp": 848},
}
_SLOW: Mapping[str, Sizes] = {  # about 1.23 M parameters: a belief carried over 64 steps
    "transformer": {
        "architecture": "transformer",
        "n_layers": 6,
        "n_heads": 4,
        "d_model": 128,
        "d_mlp": 512,
        "norm": "layernorm",
        "tied": False,
    },
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 242, "tied": False},
    "lstm": {"architecture": "lstm", "n_layers": 3, "d_model": 222, "tied": False},
    "mlp": {"architecture": "mlp", "n_layers": 6, "d_model": 156, "d_mlp": 624, "tied": False},
    "mlp-prefix": {**_PREFIX, "n_layers": 5, "d_model": 124, "d_mlp": 496},
    "mamba2": {"architecture": "mamba2", "n_layers": 3, "d_model": 250, "d_head": 125},
    "rwkv": {"architecture": "rwkv", "n_layers": 6, "d_model": 124, "d_mlp": 496},
}
_LONG = _SMALL | {"mlp-prefix": {**_PREFIX, "n_layers": 3, "d_model": 120, "d_mlp": 480}}  # its window costs weights
# Rotary positions: a learned table would have to learn "the previous token" separately at each of 329 positions.
_ROTARY: Sizes = {**_SMALL["transformer"], "positions": "rotary"}
_LSTM, _MAMBA2 = _SMALL["lstm"], _SMALL["mamba2"]
_RECALL_16: Mapping[str, Sizes] = {  # about 0.60 M parameters
    "transformer": _ROTARY,
    "mamba2": {**_MAMBA2, "d_model": 172, "d_head": 86},
    "lstm": {**_LSTM, "d_model": 191},
}
_RECALL_64: Mapping[str, Sizes] = {  # about 0.66 M parameters
    "transformer": _ROTARY,
    "mamba2": {**_MAMBA2, "d_model": 158, "d_head": 79},
    "lstm": {**_LSTM, "d_model": 187},
}
_ROWS: Mapping[str, Mapping[str, Sizes]] = {
    "bijection": _SMALL,
    "repeats": _SMALL,
    "recall": _LONG,
    "hmm": _DEEP,
    "slow-hmm": _SLOW,
    "hmm-sampled": _DEEP,
    "recall-16": _RECALL_16,
    "recall-64": _RECALL_64,
}

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
# The published sizes: 64 pairs, 256 keys and values, 3 queries after 32 filler tokens. Three answers a sequence train
# slowly, so half of the batches ask 16 questions with little filler between them.
_PUBLISHED = AssociativeRecall(n_pairs=64, n_keys=256, n_values=256, n_queries=3, n_filler=32)
_DENSE = replace(_PUBLISHED, n_queries=16, n_filler=2)
_RECALL_16_STAGES = (
    replace(
        _RECALL_POOLED,
        name="recall-16-pooled",
        task=AssociativeRecall(n_pairs=16, n_keys=32, n_values=32, pooled_pairs=True),
        steps=3_000,
    ),
    replace(_RECALL, name="recall-16", task=AssociativeRecall(n_pairs=16, n_keys=32, n_values=32), steps=4_000),
)
# Batches of 32 in the long stages: no stage of Mamba-2 takes more than two hours on two cores without AVX-512.
_RECALL_64_STAGES = (
    replace(
        _RECALL_POOLED,
        name="recall-64-few",
        task=replace(_DENSE, n_pairs=16, pooled_pairs=True),
        steps=3_000,
    ),
    replace(
        _RECALL_POOLED,
        name="recall-64-pooled",
        task=replace(_DENSE, pooled_pairs=True),
        steps=2_500,
        warmup=50,
        batch_size=32,
        late_batch_size=32,
        seed=1,
    ),
    replace(
        _RECALL,
        name="recall-64",
        task=_PUBLISHED,
        also=(_DENSE,),
        steps=2_500,
        batch_size=32,
        late_batch_size=32,
        seed=2,
    ),
)
_HMM_SAMPLED = replace(_HMM, name="hmm-sampled", targets="sampled")

TASKS: Mapping[str, tuple[Recipe, ...]] = {
    "bijection": (_BIJECTION,),
    "repeats": (_REPEATS_POOLED, _REPEATS),
    "recall": (_RECALL_POOLED, _RECALL),
    "hmm": (_HMM,),
    "slow-hmm": (_SLOW_HMM,),
}
FURTHER_TASKS: Mapping[str, tuple[Recipe, ...]] = {
    "hmm-sampled": (_HMM_SAMPLED,),
    "recall-16": _RECALL_16_STAGES,
    "recall-64": _RECALL_64_STAGES,
}
ALL_TASKS = {**TASKS, **FURTHER_TASKS}
ARCHITECTURES = ("transformer", "mamba", "lstm", "mlp")
ON_REQUEST = ("mlp-prefix", "mamba2", "rwkv")
_SHIPPED_AS = {"hmm-transformer": "hmm-s5"}  # shipped before the comparison existed


def sizes_of(task: str, architecture: str) -> Sizes:
    """Return the sizes of one architecture in the row of one task."""
    return _ROWS[task][architecture]


def architectures_of(task: str) -> tuple[str, ...]:
    """Return the architectures that have a recipe on this task, the shipped ones first."""
    return tuple(own for own in (*ARCHITECTURES, *ON_REQUEST) if own in _ROWS[task])


def compared() -> dict[str, Recipe]:
    """Return every recipe of the comparison by task and architecture, such as `bijection-lstm`.

    The recipe's own name is its key, except for `hmm-transformer`, whose checkpoint is shipped as `hmm-s5`.
    """
    return {
        f"{task}-{architecture}": _with_sizes(task, architecture)
        for task in ALL_TASKS
        for architecture in architectures_of(task)
    }


def untied() -> Recipe:
    """Return `bijection-transformer` with its own unembedding: a token's embedding is not its logit."""
    tied = _with_sizes("bijection", "transformer")
    return replace(tied, name=f"{tied.name}-untied", sizes={**tied.sizes, "tied": False})


def _with_sizes(task: str, architecture: str) -> Recipe:
    """A task's stages with these sizes; the last one has the row's name, and `n_ctx` is the longest stage's."""
    stages = ALL_TASKS[task]
    sizes = dict(sizes_of(task, architecture))
    if len({stage.task.n_pos for stage in stages}) > 1:
        sizes["n_ctx"] = max(stage.task.n_pos for stage in stages)
    trained = staged(stages, architecture, sizes)
    return replace(trained, name=_SHIPPED_AS.get(trained.name, trained.name))
