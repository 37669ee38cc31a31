"""Recipes of the study: every compared architecture and task, variants of recipes, and controls.

The rows `bijection`, `repeats`, `recall`, `hmm` and `slow-hmm` have the stages of the shipped checkpoints' recipes;
`hmm-sampled`, `recall-16` and `recall-64` are added. The seeds of the batches depend on the row only, so every
architecture sees the same sequences in the same order, and parameter counts are within 1 % of the row's transformer.
`mlp` sees its own position only; `mlp-prefix` sees the whole prefix without a recurrent state.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from bayesgeom.core.errors import UnknownName, unknown_name
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.training import recipes as shipped
from bayesgeom.training.recipes import Recipe, staged
from examples.replication.training.construction import constructed
from examples.replication.training.variants import all_variants

Sizes = Mapping[str, Any]

ARCHITECTURES = ("transformer", "mamba", "lstm", "mlp")
ON_REQUEST = ("mlp-prefix", "mamba2", "rwkv")
TASKS = ("bijection", "repeats", "recall", "hmm", "slow-hmm")
FURTHER_TASKS = ("hmm-sampled", "recall-16", "recall-64")
ALL_TASKS = (*TASKS, *FURTHER_TASKS)
_SHIPPED_AS = {"hmm-transformer": "hmm-s5"}

_PREFIX: Sizes = {"architecture": "mlp", "context": "prefix", "d_embed": 32, "tied": False}
_MAMBA2: Sizes = {"architecture": "mamba2", "n_layers": 3}
_RWKV: Sizes = {"architecture": "rwkv", "n_layers": 3}
_SMALL: Mapping[str, Sizes] = {
    "mlp-prefix": {**_PREFIX, "n_layers": 3, "d_model": 134, "d_mlp": 536},
    "mamba2": {**_MAMBA2, "d_model": 174, "d_head": 87},
    "rwkv": {**_RWKV, "d_model": 123, "d_mlp": 492},
}
_DEEP: Mapping[str, Sizes] = {
    "mlp": {"architecture": "mlp", "n_layers": 9, "d_model": 156, "d_mlp": 624, "tied": False},
    "mlp-prefix": {**_PREFIX, "n_layers": 9, "d_model": 138, "d_mlp": 552},
    "mamba2": {**_MAMBA2, "d_model": 304, "d_head": 152},
    "rwkv": {**_RWKV, "d_model": 212, "d_mlp": 848},
}
_SLOW: Mapping[str, Sizes] = {
    "mlp": {"architecture": "mlp", "n_layers": 6, "d_model": 156, "d_mlp": 624, "tied": False},
    "mlp-prefix": {**_PREFIX, "n_layers": 5, "d_model": 124, "d_mlp": 496},
    "mamba2": {**_MAMBA2, "d_model": 250, "d_head": 125},
    "rwkv": {**_RWKV, "n_layers": 6, "d_model": 124, "d_mlp": 496},
}
# Rotary positions: a learned table would have to learn "the previous token" separately at each of 329 positions.
_ROTARY: Sizes = {
    "architecture": "transformer",
    "n_layers": 3,
    "n_heads": 4,
    "d_model": 128,
    "d_mlp": 512,
    "positions": "rotary",
}
_LSTM: Sizes = {"architecture": "lstm", "n_layers": 2}
_ADDED: Mapping[str, Mapping[str, Sizes]] = {  # architectures that no checkpoint of the row ships
    "bijection": _SMALL,
    "repeats": _SMALL,
    "recall": {**_SMALL, "mlp-prefix": {**_PREFIX, "n_layers": 3, "d_model": 120, "d_mlp": 480}},  # for its window
    "hmm": _DEEP,
    "slow-hmm": _SLOW,
    "hmm-sampled": _DEEP,
    "recall-16": {
        "transformer": _ROTARY,
        "lstm": {**_LSTM, "d_model": 191},
        "mamba2": {**_MAMBA2, "d_model": 172, "d_head": 86},
    },
    "recall-64": {
        "transformer": _ROTARY,
        "lstm": {**_LSTM, "d_model": 187},
        "mamba2": {**_MAMBA2, "d_model": 158, "d_head": 79},
    },
}


def _shipped(row: str, architecture: str) -> Recipe | None:
    """The shipped recipe of a cell, under the name of the cell; None if there is none."""
    name = f"{row}-{architecture}"
    found = shipped.RECIPES.get(_SHIPPED_AS.get(name, name))
    return None if found is None else replace(found, name=name)


def _without_sizes(recipe: Recipe, architecture: str) -> tuple[Recipe, ...]:
    """The stages of a row, from its recipe for one architecture."""
    stages = recipe.stages()
    return tuple(replace(own, name=own.name.removesuffix(f"-{architecture}"), sizes={}, after=None) for own in stages)


def _row(name: str) -> tuple[Recipe, ...]:
    found = _shipped(name, "lstm")
    assert found is not None, "every row of the shipped checkpoints has an LSTM"
    return _without_sizes(found, "lstm")


_RECALL_POOLED, _RECALL = _row("recall")
# The published sizes: 64 pairs, 256 keys and values, 3 queries after 32 filler tokens. Three answers a sequence train
# slowly, so half of the batches ask 16 questions with little filler between them.
_PUBLISHED = AssociativeRecall(n_pairs=64, n_keys=256, n_values=256, n_queries=3, n_filler=32)
_DENSE = replace(_PUBLISHED, n_queries=16, n_filler=2)
_FEWER = AssociativeRecall(n_pairs=16, n_keys=32, n_values=32)
# Batches of 32 in the long stages: no stage of Mamba-2 takes more than two hours on two cores without AVX-512.
_LONG = {"steps": 2_500, "batch_size": 32, "late_batch_size": 32}
_STAGES: Mapping[str, tuple[Recipe, ...]] = {
    **{task: _row(task) for task in TASKS},
    "hmm-sampled": (replace(_row("hmm")[0], name="hmm-sampled", targets="sampled"),),
    "recall-16": (
        replace(_RECALL_POOLED, name="recall-16-pooled", task=replace(_FEWER, pooled_pairs=True), steps=3_000),
        replace(_RECALL, name="recall-16", task=_FEWER, steps=4_000),
    ),
    "recall-64": (
        replace(_RECALL_POOLED, name="recall-64-few", task=replace(_DENSE, n_pairs=16, pooled_pairs=True), steps=3_000),
        replace(
            _RECALL_POOLED,
            name="recall-64-pooled",
            task=replace(_DENSE, pooled_pairs=True),
            warmup=50,
            seed=1,
            **_LONG,  # type: ignore[arg-type]
        ),
        replace(_RECALL, name="recall-64", task=_PUBLISHED, also=(_DENSE,), seed=2, **_LONG),  # type: ignore[arg-type]
    ),
}


def sizes_of(row: str, architecture: str) -> Sizes:
    """Return the sizes of one architecture in a row; `hmm-sampled` has those of `hmm`."""
    if architecture in _ADDED[row]:
        return _ADDED[row][architecture]
    found = _shipped(row.removesuffix("-sampled"), architecture)
    assert found is not None, "the row has this architecture"
    return found.sizes


def architectures_of(row: str) -> tuple[str, ...]:
    """Return the architectures that have a recipe in a row, the shipped ones first."""
    base = row.removesuffix("-sampled")
    every = (*ARCHITECTURES, *ON_REQUEST)
    return tuple(own for own in every if own in _ADDED[row] or _shipped(base, own) is not None)


@cache
def compared() -> Mapping[str, Recipe]:
    """Return every recipe of the comparison by row and architecture, such as `bijection-lstm`.

    The recipe's own name is its key, except for `hmm-transformer`, whose checkpoint is shipped as `hmm-s5`.
    """
    return {f"{row}-{own}": _cell(row, own) for row in ALL_TASKS for own in architectures_of(row)}


def _cell(row: str, architecture: str) -> Recipe:
    name = f"{row}-{architecture}"
    found = shipped.RECIPES.get(_SHIPPED_AS.get(name, name))
    if found is not None:
        return found
    stages = _STAGES[row]
    lengths = {stage.task.n_pos for stage in stages}
    room = {"n_ctx": max(lengths)} if len(lengths) > 1 else {}  # that of the longest stage
    return staged(stages, architecture, {**sizes_of(row, architecture), **room})


# Variants of a recipe: at other rates, at a quarter of the budget, and another seed at twice the budget.

MULTIPLES = (0.3, 1.0, 3.0)
SWEPT_ROW = "recall"
_QUARTER = 4
_MULTIPLES = "|".join(re.escape(f"{own:g}") for own in MULTIPLES)
_VARIANT = re.compile(rf"(?P<whole>.+?)(?P<quarter>-quarter)?(?:-lr(?P<multiple>{_MULTIPLES}))?")
_CHECK = re.compile(r"(?P<name>.+)-seed(?P<seed>[1-9][0-9]*)-x2")


def at_rates(recipe: Recipe, multiple: float) -> Recipe:
    """Return the recipe `<name>-lr<multiple>`, with both learning rates of every stage multiplied.

    Example:
        >>> low = at_rates(recipe("bijection-lstm"), 0.3)
        >>> low.name, round(low.lr / recipe("bijection-lstm").lr, 3)
        ('bijection-lstm-lr0.3', 0.3)
    """
    after = None if recipe.after is None else at_rates(recipe.after, multiple)
    name, lr, matrix_lr = f"{recipe.name}-lr{multiple:g}", recipe.lr * multiple, recipe.matrix_lr * multiple
    return replace(recipe, name=name, after=after, lr=lr, matrix_lr=matrix_lr)


def quartered(recipe: Recipe) -> Recipe:
    """Return the recipe with a quarter of the steps, of the warm-up and of the decay in every stage, as `…-quarter`."""
    after = None if recipe.after is None else quartered(recipe.after)
    decay = None if recipe.decay_steps is None else recipe.decay_steps // _QUARTER
    return replace(
        recipe,
        name=f"{recipe.name}-quarter",
        after=after,
        snapshots=0,
        steps=max(1, recipe.steps // _QUARTER),
        warmup=recipe.warmup // _QUARTER,
        decay_steps=decay,
    )


def lengthened(recipe: Recipe, times: int) -> Recipe:
    """Return the recipe `<name>-x<times>`, with the steps of every stage multiplied."""
    after = None if recipe.after is None else lengthened(recipe.after, times)
    decay = None if recipe.decay_steps is None else times * recipe.decay_steps
    return replace(recipe, name=f"{recipe.name}-x{times}", steps=times * recipe.steps, decay_steps=decay, after=after)


def network_of(name: str) -> str:
    """Return the recipe of a variant: a quarter of the budget and other rates keep its network.

    Example:
        >>> network_of("recall-64-mamba2-quarter-lr3"), network_of("slow-hmm-mamba-lr3")
        ('recall-64-mamba2', 'slow-hmm-mamba')
    """
    found = _VARIANT.fullmatch(name)
    return name if found is None else found["whole"]


def sweep() -> Mapping[str, Recipe]:
    """Return the trials of the sweep of rates by name: every architecture of the swept row at every multiple."""
    rows = (compared()[f"{SWEPT_ROW}-{architecture}"] for architecture in (*ARCHITECTURES, *ON_REQUEST))
    trials = (at_rates(quartered(row), multiple) for row in rows for multiple in MULTIPLES)
    return {trial.name: trial for trial in trials}


# Controls of the shipped checkpoints.


def _untied_flagship(flagship: Recipe) -> Recipe:
    """The recipe with untied unembedding in every stage: a control for claim J1 at the same size."""
    before = None if flagship.after is None else _untied_flagship(flagship.after)
    name = flagship.name.replace("bijection-v20", "bijection-v20-untied")
    return replace(flagship, name=name, sizes={**flagship.sizes, "tied": False}, after=before)


# The control of `bijection-v20-refined`: sampled instead of exact targets, in two stages.
_REFINED_LARGER = replace(
    shipped.RECIPES["bijection-v20-refined"],
    name="bijection-v20-refined-sampled-larger",
    targets="sampled",
    late_from=0.6,
    float32_share=0.1,
)
_REFINED_SAMPLED = replace(
    _REFINED_LARGER,
    name="bijection-v20-refined-sampled",
    lr=5e-4,
    matrix_lr=0.002,
    warmup=50,
    steps=2_000,
    batch_size=256,
    late_batch_size=512,
    late_from=0.7,
    float32_share=0.3,
    seed=5,
    warm_start=None,
    after=_REFINED_LARGER,
)
RECIPES: Mapping[str, Recipe] = {
    own.name: own
    for own in (
        *shipped.RECIPES.values(),
        *compared().values(),
        _untied_flagship(shipped.RECIPES["bijection-v20"]),
        _REFINED_SAMPLED,
        *sweep().values(),
        *all_variants().values(),
        *constructed().values(),
    )
}


def recipe(name: str) -> Recipe:
    """Return a recipe of the study, of a shipped checkpoint or of another package, or a variant of it.

    Variants are `<name>-lr0.3` and `<name>-lr3`, with multiplied rates; `<name>-quarter`, with a quarter of the steps
    in every stage, also at multiplied rates (`<name>-quarter-lr3`); and `<name>-seed1-x2`, with another seed and twice
    the budget, which the comparison lists as a check.

    Raises:
        UnknownName: There is no such recipe. The message lists the known names.

    Example:
        >>> recipe("recall-lstm-seed1-x2").n_sequences // recipe("recall-lstm").n_sequences
        2
    """
    if name in RECIPES:
        return RECIPES[name]
    if (found := _VARIANT.fullmatch(name)) is not None and found["whole"] in RECIPES:
        made = quartered(RECIPES[found["whole"]]) if found["quarter"] else RECIPES[found["whole"]]
        return at_rates(made, float(found["multiple"])) if found["multiple"] else made
    if (found := _CHECK.fullmatch(name)) is not None and found["name"] in RECIPES:
        return lengthened(RECIPES[found["name"]].reseeded(int(found["seed"])), 2)
    try:
        return shipped.recipe(name)
    except UnknownName:
        raise unknown_name("recipe", name, RECIPES) from None
