"""The learning-rate sweep: one row at a quarter of its budget, with three multiples of the rates per architecture.

`<row>-<architecture>-quarter-lr<multiple>` is one run of the sweep. `<recipe>-lr<multiple>` is a recipe at its full
budget with multiplied rates.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from bayesgeom.training.compared import ARCHITECTURES, ON_REQUEST, compared
from bayesgeom.training.recipe import Recipe

MULTIPLES = (0.3, 1.0, 3.0)
# The multiple at which `compare` trains all rows of an architecture. Empty, although the sweep is complete: no row was
# trained again at another rate at full budget (docs/comparison.md, "Learning rates", gives reason and cost).
CHOSEN: Mapping[str, float] = {}
_COMMON = "none: one setting for all, chosen on the transformer"
_STAGED = "none: rates and the pooled first stage were tuned on the transformer"
_DECAY = "none: the decay schedule was tuned on the transformer"
SEARCHED: Mapping[str, str] = {  # how the hyperparameters of each row were found, without a chosen multiple
    "bijection": _COMMON,
    "repeats": _STAGED,
    "recall": _STAGED,
    "recall-16": _STAGED,
    "recall-64": _STAGED,
    "hmm": _DECAY,
    "hmm-sampled": _DECAY,
    "slow-hmm": _COMMON,
}
SWEPT_ROW = "recall"
_QUARTER = 4
_MULTIPLES = "|".join(re.escape(f"{own:g}") for own in MULTIPLES)
# Name of a recipe, or of a variant of it at a quarter of the budget or at other rates.
VARIANT = re.compile(rf"(?P<whole>.+?)(?P<quarter>-quarter)?(?:-lr(?P<multiple>{_MULTIPLES}))?")


def at_rates(recipe: Recipe, multiple: float) -> Recipe:
    """Multiply both learning rates of every stage.

    Args:
        recipe: The recipe whose rates are multiplied.
        multiple: Factor of `lr` and `matrix_lr`.

    Returns:
        The recipe named `<name>-lr<multiple>`.

    Example:
        >>> from bayesgeom.training.recipes import recipe
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


def network_of(name: str) -> str:
    """Return the recipe of a variant: a quarter of the budget and other rates keep its network.

    Example:
        >>> network_of("recall-64-mamba2-quarter-lr3"), network_of("slow-hmm-mamba-lr3")
        ('recall-64-mamba2', 'slow-hmm-mamba')
    """
    found = VARIANT.fullmatch(name)
    return name if found is None else found["whole"]


def sweep() -> Mapping[str, Recipe]:
    """Return the trials of the sweep by name: every architecture of the swept row at every multiple."""
    rows = (compared()[f"{SWEPT_ROW}-{architecture}"] for architecture in (*ARCHITECTURES, *ON_REQUEST))
    trials = (at_rates(quartered(row), multiple) for row in rows for multiple in MULTIPLES)
    return {trial.name: trial for trial in trials}
