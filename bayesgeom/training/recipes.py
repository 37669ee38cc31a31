"""The recipes of the shipped checkpoints, by name.

Most rows have one recipe for each of several architectures, named `<task>-<architecture>`: the seeds of the batches
depend on the task only, so every architecture sees the same sequences in the same order, and parameter counts are
within 1 % of the row's transformer (see `models.capacity`).

`repeats` and `recall` are learned in two stages. With all keys equally likely there is no gradient toward attending to
values before keys can be matched (see `tasks.bijection` and `tasks.associative_recall`). On sequences with returning
keys, or with few stored pairs, there is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bayesgeom.core.errors import unknown_name
from bayesgeom.core.plugins import values
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM, SLOW
from bayesgeom.tasks.process import Mess3
from bayesgeom.tasks.sticky_markov import StickyMarkov
from bayesgeom.training.recipe import Recipe, staged

Sizes = Mapping[str, Any]

_TRANSFORMER = {"architecture": "transformer"}

_BIJECTION_SIZES = {**_TRANSFORMER, "n_layers": 6, "n_heads": 6, "d_model": 192, "d_mlp": 768}

# Four stages: weight decay kept the logits too small, so used values kept 0.5 % of the probability and entropies were
# 0.03 bits too high. Without decay, matrices annealed, but the scale of the final norm changed too slowly. The last two
# stages use a larger learning rate for norms and embeddings and a smaller one for matrices.
_BIJECTION_DECAYED = Recipe(
    name="bijection-v20-decayed",
    task=Bijection(),
    sizes=_BIJECTION_SIZES,
    weight_decay=0.1,
    steps=9_000,
    late_batch_size=160,
    late_from=0.6,
)
_BIJECTION_ANNEALED = Recipe(
    name="bijection-v20-annealed",
    task=Bijection(),
    sizes=_BIJECTION_SIZES,
    lr=3e-4,
    matrix_lr=0.005,
    warmup=50,
    steps=2_000,
    batch_size=128,
    float32_share=0.1,
    seed=1,
    after=_BIJECTION_DECAYED,
)
_BIJECTION_SHARPENED = Recipe(
    name="bijection-v20-sharpened",
    task=Bijection(),
    sizes=_BIJECTION_SIZES,
    lr=3e-3,
    matrix_lr=0.002,
    warmup=20,
    steps=1_500,
    batch_size=128,
    float32_share=0.1,
    seed=2,
    after=_BIJECTION_ANNEALED,
)

# Keys uniform over all V give no gradient until keys are matched (see the task): after 3,300 steps the model was still
# uniform. Sequences with many returning keys end that plateau within some hundred steps; the posterior is the same.
_REPEATS_POOLED = Recipe(
    name="bijection-v20-repeats-pooled",
    task=Bijection(repeats=True, pooled_keys=True),
    sizes=_BIJECTION_SIZES,
    lr=2e-3,
    matrix_lr=0.01,
    steps=2_000,
    float32_share=0.0,
)

# From the shipped weights of `bijection-v20`, without weight decay, float32 at the end. Exact targets distill the
# posterior: 500 steps of 64 sequences took KL from 2.1e-3 to 2.6e-4 bits.
_REFINED = Recipe(
    name="bijection-v20-refined",
    task=Bijection(),
    sizes=_BIJECTION_SIZES,
    targets="exact",
    lr=1e-3,
    matrix_lr=0.005,
    warmup=100,
    steps=4_000,
    batch_size=128,
    late_batch_size=256,
    late_from=0.7,
    float32_share=0.3,
    seed=4,
    warm_start="bijection-v20@8339b24b32f58847",
)

_MESS3 = Recipe(
    name="mess3-small",
    task=Mess3(x=0.05, a=0.6, length=64),
    sizes={**_TRANSFORMER, "n_layers": 3, "n_heads": 4, "d_model": 64, "d_mlp": 256},
    targets="exact",
    lr=2e-3,
    warmup=50,
    steps=600,
    batch_size=32,
    late_batch_size=64,
    late_from=0.5,
)

_SMALL: Mapping[str, Sizes] = {  # about 0.60 M parameters
    "transformer": {**_TRANSFORMER, "n_layers": 3, "n_heads": 4, "d_model": 128, "d_mlp": 512},
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 170},
    "lstm": {"architecture": "lstm", "n_layers": 2, "d_model": 192},
    "mlp": {"architecture": "mlp", "n_layers": 4, "d_model": 136, "d_mlp": 544},
}
_UNTIED: Sizes = {"norm": "layernorm", "tied": False}
_DEEP: Mapping[str, Sizes] = {  # about 1.82 M parameters: filtering takes the transformer nine layers
    "transformer": {**_TRANSFORMER, "n_layers": 9, "n_heads": 8, "d_model": 128, "d_mlp": 512, **_UNTIED},
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 298, "tied": False},
    "lstm": {"architecture": "lstm", "n_layers": 3, "d_model": 270, "tied": False},
}
_SLOW: Mapping[str, Sizes] = {  # about 1.23 M parameters: a belief carried over 64 steps
    "transformer": {**_TRANSFORMER, "n_layers": 6, "n_heads": 4, "d_model": 128, "d_mlp": 512, **_UNTIED},
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 242, "tied": False},
    "lstm": {"architecture": "lstm", "n_layers": 3, "d_model": 222, "tied": False},
}
_BIJECTION_ROW = Recipe(name="bijection", task=Bijection(), sizes={}, lr=2e-3, steps=6_000, float32_share=0.1)
_REPEATS_ROW = Recipe(
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
_REPEATS_ROW_POOLED = Recipe(
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

# Stages and sizes of each row.
_ROWS: Mapping[str, tuple[tuple[Recipe, ...], Mapping[str, Sizes]]] = {
    "bijection": ((_BIJECTION_ROW,), _SMALL),
    "repeats": ((_REPEATS_ROW_POOLED, _REPEATS_ROW), _SMALL),
    "recall": ((_RECALL_POOLED, _RECALL), _SMALL),
    "hmm": ((_HMM,), _DEEP),
    "slow-hmm": ((_SLOW_HMM,), _SLOW),
}
_SHIPPED_AS = {"hmm-transformer": "hmm-s5"}


def _of_rows() -> Iterator[Recipe]:
    """Every row's recipes, and the bijection's transformer with its own unembedding."""
    for stages, of_architecture in _ROWS.values():
        length = {stage.task.n_pos for stage in stages}
        room = {"n_ctx": max(length)} if len(length) > 1 else {}  # that of the longest stage
        for architecture, sizes in of_architecture.items():
            trained = staged(stages, architecture, {**sizes, **room})
            yield replace(trained, name=_SHIPPED_AS.get(trained.name, trained.name))
    sizes = {**_SMALL["transformer"], "tied": False}
    yield replace(staged((_BIJECTION_ROW,), "transformer-untied", sizes))


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="bijection-v20",
            task=Bijection(),
            sizes=_BIJECTION_SIZES,
            lr=4e-3,
            matrix_lr=0.001,
            warmup=20,
            steps=800,
            batch_size=128,
            float32_share=0.1,
            seed=3,
            after=_BIJECTION_SHARPENED,
        ),
        Recipe(
            name="bijection-v20-repeats",
            task=Bijection(repeats=True),
            sizes=_BIJECTION_SIZES,
            lr=2e-3,
            matrix_lr=0.01,
            warmup=50,
            steps=7_000,
            late_batch_size=128,
            late_from=0.75,
            seed=1,
            after=_REPEATS_POOLED,
        ),
        Recipe(
            name="bijection-v20-llama",
            task=Bijection(),
            sizes={
                "architecture": "llama",
                "n_layers": 6,
                "n_heads": 6,
                "n_kv_heads": 2,
                "d_model": 192,
                "d_mlp": 512,
            },
            steps=6_000,
            late_batch_size=128,
            late_from=0.7,
            float32_share=0.1,
        ),
        _REFINED,
        _MESS3,
        replace(_MESS3, name="sticky-small", task=StickyMarkov(length=40)),
        *_of_rows(),
    )
}


def recipe(name: str) -> Recipe:
    """Return the recipe of this name: of a shipped checkpoint, or of another package.

    Raises:
        UnknownName: There is no such recipe. The message lists the known names.

    Example:
        >>> recipe("recall-lstm").n_sequences
        320000
    """
    known = {**RECIPES, **plugin_recipes()}
    if name not in known:
        raise unknown_name("recipe", name, known)
    return known[name]


def plugin_recipes() -> dict[str, Recipe]:
    """Return the recipes of other packages, by name: entry points in the group `bayesgeom.recipes`."""
    return values("bayesgeom.recipes", Recipe, taken=RECIPES)
