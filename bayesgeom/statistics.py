"""Uncertainty: bootstrap over sequences, and permutation within a position.

Positions of one sequence are not independent, so they are never resampled on their own.

Reference: Efron & Tibshirani 1993, chapters 6 and 13 (percentile interval).
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Shaped
from scipy.stats import t as student

LEVEL = 0.95
DRAWS = 1_000
MAX_UNITS = (
    2_048  # resampled at once; more sequences are resampled in runs of consecutive ones, so that memory is bounded
)


def bootstrap_weights(n: int, *, seed: int, draws: int = DRAWS) -> Float[np.ndarray, "draw sequence"]:
    """Share of each of n sequences in each resample; rows sum to one. NaN for fewer than two: nothing can be resampled.

    So every interval over fewer than two sequences is NaN, wherever it is made.
    """
    if n < 2:
        return np.full((draws, n), np.nan)
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws) / n


def percentile_interval(
    resampled: Float[np.ndarray, "draw *rest"], *, level: float = LEVEL
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """The central `level` of the resampled statistic; NaN where any resample is NaN."""
    tail = (1 - level) / 2
    lo, hi = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return np.asarray(lo), np.asarray(hi)


def centred_interval(
    resampled: Float[np.ndarray, "draw *rest"], estimate: Float[np.ndarray, "*rest"]
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """The central 95 % of the resampled statistic about their own mean, put about the estimate.

    For a statistic of noisy means, which resamples of fewer distinct sequences make noisier: all of them may lie on one
    side of it. What they are off by is a bias, and is told apart from how they scatter.
    """
    lo, hi = percentile_interval(resampled - resampled.mean(axis=0))
    return estimate + lo, estimate + hi


def with_bounds(name: str, drawn: Float[np.ndarray, "draw *rest"]) -> dict[str, Float[np.ndarray, "*rest"]]:
    """The estimate, which is the first draw, as `name`, and the central 95 % of the others as `name_lo`, `name_hi`."""
    lo, hi = percentile_interval(drawn[1:])
    return {name: drawn[0], f"{name}_lo": lo, f"{name}_hi": hi}


def mean_interval(
    per_sequence: Float[np.ndarray, "sequence *rest"], *, seed: int, draws: int = DRAWS
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """95 % bootstrap interval of the mean over sequences. Pass paired differences for a paired interval."""
    return ratio_interval(
        per_sequence, np.ones((len(per_sequence), *(1,) * (per_sequence.ndim - 1))), seed=seed, draws=draws
    )


def seed_interval(
    per_seed: Float[np.ndarray, "seed *rest"], *, level: float = LEVEL
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """Student's interval of the mean over a handful of trainings, too few to be resampled; NaN for fewer than two.

    Pass paired differences for a paired interval.
    """
    n = len(per_seed)
    if n < 2:
        unknown = np.full(per_seed.shape[1:], np.nan)
        return unknown, unknown
    mean = per_seed.mean(axis=0)
    reach = student.ppf((1 + level) / 2, n - 1) * per_seed.std(axis=0, ddof=1) / np.sqrt(n)
    return np.asarray(mean - reach), np.asarray(mean + reach)


def ratio_interval(
    numerator: Float[np.ndarray, "sequence *rest"],
    denominator: Float[np.ndarray, "sequence *#rest"],
    *,
    seed: int,
    draws: int = DRAWS,
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """95 % bootstrap interval of Σ numerator / Σ denominator over sequences, resampled together."""
    above, below = _in_units(numerator), _in_units(denominator)
    weights = bootstrap_weights(len(above), seed=seed, draws=draws)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.tensordot(weights, above, axes=1) / np.tensordot(weights, below, axes=1)
    return percentile_interval(ratios)


@final
@dataclass(frozen=True)
class Crossing:
    """The snapshot at which something first holds, and the one before it: it came to hold in between.

    NaN: the step where it never did, and `before` where nothing is known of that either.
    """

    step: float
    before: float


NEVER = Crossing(float("nan"), float("nan"))


def times_later(later: Crossing, earlier: Crossing) -> tuple[float, float, float]:
    """One step over the other, and the least and the most that the spacing of snapshots allows."""
    return later.step / earlier.step, later.before / earlier.step, later.step / earlier.before


def _in_units(values: Float[np.ndarray, "sequence *rest"]) -> Float[np.ndarray, "unit *rest"]:
    """Sums over runs of consecutive sequences, which are as independent as the sequences are."""
    per_unit = -(-len(values) // MAX_UNITS)
    return values if per_unit == 1 else np.add.reduceat(values, np.arange(0, len(values), per_unit), axis=0)


def shuffled_within_position(
    values: Shaped[np.ndarray, "sequence position *rest"], rng: np.random.Generator
) -> Shaped[np.ndarray, "sequence position *rest"]:
    """Sequences exchanged at random, separately at each position: what position alone explains survives."""
    order = rng.random(values.shape[:2]).argsort(axis=0)
    return np.take_along_axis(values, order.reshape(*order.shape, *(1,) * (values.ndim - 2)), axis=0)
