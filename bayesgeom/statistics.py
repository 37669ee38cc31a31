"""Uncertainty: bootstrap over sequences, and permutation within a position. Positions of one sequence are not independent,
so they are never resampled on their own.

Reference: Efron & Tibshirani 1993, chapters 6 and 13 (percentile interval).
"""

import numpy as np
from jaxtyping import Float, Shaped

LEVEL = 0.95
DRAWS = 1_000


def bootstrap_weights(n: int, *, seed: int, draws: int = DRAWS) -> Float[np.ndarray, "draw sequence"]:
    """Share of each of n sequences in each resample; rows sum to one."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws) / n


def percentile_interval(
    resampled: Float[np.ndarray, "draw *rest"], *, level: float = LEVEL
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """The central `level` of the resampled statistic; NaN where any resample is NaN."""
    tail = (1 - level) / 2
    lo, hi = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return lo, hi


def mean_interval(
    per_sequence: Float[np.ndarray, "sequence *rest"], *, seed: int, draws: int = DRAWS
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """95 % bootstrap interval of the mean over sequences. Pass paired differences for a paired interval."""
    weights = bootstrap_weights(len(per_sequence), seed=seed, draws=draws)
    return percentile_interval(np.tensordot(weights, per_sequence, axes=1))


def ratio_interval(
    numerator: Float[np.ndarray, "sequence *rest"],
    denominator: Float[np.ndarray, "sequence *rest"],
    *,
    seed: int,
    draws: int = DRAWS,
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """95 % bootstrap interval of Σ numerator / Σ denominator over sequences, resampled together."""
    weights = bootstrap_weights(len(numerator), seed=seed, draws=draws)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.tensordot(weights, numerator, axes=1) / np.tensordot(weights, denominator, axes=1)
    return percentile_interval(ratios)


def shuffled_within_position(
    values: Shaped[np.ndarray, "sequence position *rest"], rng: np.random.Generator
) -> Shaped[np.ndarray, "sequence position *rest"]:
    """Sequences exchanged at random, separately at each position: what position alone explains survives."""
    order = rng.random(values.shape[:2]).argsort(axis=0)
    return np.take_along_axis(values, order.reshape(*order.shape, *(1,) * (values.ndim - 2)), axis=0)
