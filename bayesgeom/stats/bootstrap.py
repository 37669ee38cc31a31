"""Uncertainty: intervals over sequences, and permutation within a position.

Positions of one sequence are not independent, so sequences are resampled, never single positions. `mean_interval`,
`ratio_interval` and `statistic_interval` cover 95 %, or give no interval and the reason: see
`bayesgeom.stats.intervals`. `percentile_interval` of a bootstrap distribution covers less for skewed values and is used
only for ranges of draws.

References:
    Efron & Tibshirani 1993, chapters 11 to 13.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Float64, Shaped
from scipy.special import stdtrit  # scipy.stats takes a second to load

from bayesgeom.stats.bounds import FLOAT32_ROUNDING
from bayesgeom.stats.intervals import LEVEL as LEVEL_OF_AN_END
from bayesgeom.stats.intervals import (
    UNBOUNDED,
    UNIT_ROUNDING,
    Bounds,
    Interval,
    Scale,
    bootstrap_t,
    jackknife_interval,
    studentized,
)

LEVEL = 0.95
DRAWS = 1_000
ARRIVED = 0.1  # of the KL of the stronger context-free predictor: below it a posterior is there
_FEWEST_SPLIT = 4  # least number of sequences that can be halved
MAX_GROUPS = 256  # jackknife groups; with more sequences, a group is a run of consecutive ones
MAX_UNITS = 2_048  # units resampled at once; more sequences are grouped into runs of consecutive ones, to bound memory


def bootstrap_weights(n: int, *, seed: int, draws: int = DRAWS) -> Float[np.ndarray, "draw sequence"]:
    """Return the share of each of n sequences in each resample; rows sum to one.

    NaN for fewer than two sequences, so that every interval over them is NaN.
    """
    return np.full((draws, n), np.nan) if n < 2 else _drawn_weights(n, seed, draws)


@lru_cache(maxsize=4)  # the intervals of one report share sequences and seed; at most 16 MB each
def _drawn_weights(n: int, seed: int, draws: int) -> Float[np.ndarray, "draw sequence"]:
    """Draw weights, read-only because they are cached."""
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws) / n
    weights.flags.writeable = False
    return np.asarray(weights)


def jackknife_weights(n: int, *, most: int = MAX_GROUPS) -> Float64[np.ndarray, "replicate sequence"]:
    """Return the weights for `statistic_interval`: first all sequences equally, then with each group left out.

    A group is one sequence, or a run of consecutive ones if there are more than `most` sequences.

    Example:
        >>> jackknife_weights(3)
        array([[0.33333333, 0.33333333, 0.33333333],
               [0.        , 0.5       , 0.5       ],
               [0.5       , 0.        , 0.5       ],
               [0.5       , 0.5       , 0.        ]])
    """
    if n < 2:
        return np.full((1 + n, n), 1.0 if n else 0.0)
    n_groups = min(n, most)
    group = np.arange(n) * n_groups // n
    kept = group != np.arange(n_groups)[:, None]
    return np.concatenate([np.full((1, n), 1 / n), kept / kept.sum(axis=1, keepdims=True)])


def random_halves(n: int, splits: int, *, seed: int) -> Float[np.ndarray, "2 split batch"]:
    """Return the weights of random halves of the sequences, which sum to one; NaN for fewer than four."""
    if n < _FEWEST_SPLIT:
        return np.full((2, 1, n), np.nan)
    order = np.random.default_rng(seed).random((splits, n)).argsort(axis=1)
    first = (order < n // 2).astype(float)
    return np.stack([half / half.sum(axis=1, keepdims=True) for half in (first, 1 - first)])


def jackknife_bias(replicates: Float[np.ndarray, "replicate *rest"]) -> Float[np.ndarray, "*rest"]:
    """Return the jackknife estimate of bias, from values under `jackknife_weights(n)`; NaN for a single sequence."""
    n = len(replicates) - 1
    return np.asarray((n - 1 if n > 1 else np.nan) * (replicates[1:].mean(axis=0) - replicates[0]))


def percentile_interval(
    resampled: Float[np.ndarray, "draw *rest"],
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """Return the central 95 % of the resampled statistic; NaN where any resample is NaN."""
    lo, hi = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return np.asarray(lo), np.asarray(hi)


def mean_difference(
    first: Float[np.ndarray, "sequence *#rest"], second: Float[np.ndarray, "sequence *#rest"]
) -> Float[np.ndarray, "*rest"]:
    """Return the mean over sequences of second − first; exactly 0 where only rounding makes it differ from 0.

    Example:
        >>> shares = np.array([1, 2, 4, 6, 8]) / 19
        >>> float((shares[::-1] - shares).mean()) == 0, float(mean_difference(shares, shares[::-1]))
        (False, 0.0)
    """
    with np.errstate(invalid="ignore"):  # both infinite: the difference is missing
        mean = (second - first).mean(axis=0)
        terms = (np.abs(first) + np.abs(second)).mean(axis=0)
        return np.asarray(np.where(np.abs(mean) < UNIT_ROUNDING * terms, 0.0, mean))


def mean_interval(
    per_sequence: Float[np.ndarray, "sequence *rest"],
    *,
    seed: int,
    draws: int = DRAWS,
    level: float = LEVEL_OF_AN_END,
    noise: Float[np.ndarray, "*rest"] | float = UNIT_ROUNDING,
    bounds: Bounds = UNBOUNDED,
) -> Interval:
    """Return the bootstrap-t interval of the mean over sequences, 95 % by default; iterating gives both ends.

    If the sample is too small or too skewed for an interval that covers, the ends are NaN and `code` gives the
    reason.

    Args:
        per_sequence: One value per sequence; paired differences for a paired interval.
        seed: Seed of the resamples. Equal seeds and lengths give the same resamples.
        draws: Number of resamples.
        level: Probability with which each end may be wrong.
        noise: Rounding error of a value. Values that differ by no more, or by no more than the rounding of the largest
            one in float32, count as equal. The default is that of sums of terms of size 1 in float64. A difference of
            values in float32 has that of the values: pass `FLOAT32_ROUNDING` times their size.
        bounds: Least and greatest possible value, so that a mean of which few values differ has an interval.

    Example:
        >>> lo, hi = mean_interval(np.random.default_rng(0).exponential(size=200), seed=0)
        >>> bool(lo < 1 < hi)
        True
    """
    ones = np.ones((len(per_sequence), *(1,) * (per_sequence.ndim - 1)))
    above, below = _in_units(per_sequence), _in_units(ones)
    weights = bootstrap_weights(len(above), seed=seed, draws=draws)
    return bootstrap_t(above, below, weights, level=level, noise=noise, bounds=bounds)


def seed_interval(
    per_seed: Float[np.ndarray, "seed *rest"],
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """Return Student's interval of the mean over a few training seeds, too few to resample; NaN for fewer than two.

    Pass paired differences for a paired interval.
    """
    n = len(per_seed)
    if n < 2:
        unknown = np.full(per_seed.shape[1:], np.nan)
        return unknown, unknown
    mean = per_seed.mean(axis=0)
    reach = stdtrit(n - 1, (1 + LEVEL) / 2) * per_seed.std(axis=0, ddof=1) / np.sqrt(n)
    return np.asarray(mean - reach), np.asarray(mean + reach)


def ratio_interval(
    numerator: Float[np.ndarray, "sequence *rest"],
    denominator: Float[np.ndarray, "sequence *#rest"],
    *,
    seed: int,
    draws: int = DRAWS,
    is_positive: bool = False,
    bounds: Bounds = UNBOUNDED,
) -> Interval:
    """Return the bootstrap-t interval of Σ numerator / Σ denominator; both are resampled together.

    An R² on held-out sequences with the map fixed is 1 minus such a ratio: see `r2_interval`. `is_positive` says that
    neither is ever negative: the lower end is then positive. Without it, the lower end of a ratio with unequal
    denominators can lie below 0. `bounds` is as in `mean_interval`, where all denominators are equal.
    """
    above, below = _in_units(numerator), _in_units(denominator)
    weights = bootstrap_weights(len(above), seed=seed, draws=draws)
    return bootstrap_t(above, below, weights, is_positive=is_positive, bounds=bounds)


def bounded_ratio_interval(
    numerator: Float[np.ndarray, "sequence *rest"], denominator: Float[np.ndarray, "sequence *rest"], *, seed: int
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """Return the bootstrap-t interval of Σ numerator / Σ denominator, of values that are bounded.

    `ratio_interval` allows for heavy tails, and withholds an interval where they are too heavy.

    Example:
        >>> below = np.random.default_rng(1).random((200, 1))
        >>> low, high = bounded_ratio_interval(below**2, below, seed=0)
        >>> bool(low[0] < 2 / 3 < high[0])
        True
    """
    weights = bootstrap_weights(len(numerator), seed=seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = denominator.sum(axis=0)
        ratio = numerator.sum(axis=0) / total
        error = np.sqrt(np.square(numerator - ratio * denominator).sum(axis=0)) / total
        tie = UNIT_ROUNDING * np.abs(numerator).max(axis=0) / np.abs(denominator).mean(axis=0)
        t, _ = studentized(numerator, denominator, ratio, weights, tie)
        above, below = np.quantile(t, [(1 + LEVEL) / 2, (1 - LEVEL) / 2], axis=0)
        return np.asarray(ratio - above * error), np.asarray(ratio - below * error)


def arrival(
    kl: Float[np.ndarray, "sequence stage"], reference: Float[np.ndarray, " sequence"], *, seed: int
) -> tuple[float, tuple[float, float]]:
    """Return the first stage from which Σ KL stays below `ARRIVED` times that of a reference, and its 95 % interval.

    The interval is that of the stages at which the ends of the ratio's interval arrive. It ends at the number of stages
    if the upper ends never do. All are NaN if the ratio itself never arrives.
    """

    def first(ratios: Float[np.ndarray, " stage"]) -> int:
        return len(ratios) - int(np.logical_and.accumulate(ratios[::-1] < ARRIVED).sum())

    n_stages, total = kl.shape[1], float(reference.sum())
    ratios = kl.sum(axis=0) / total if total > 0 else np.full(n_stages, np.nan)
    at = first(ratios)
    if at == n_stages:
        return np.nan, (np.nan, np.nan)
    interval = ratio_interval(kl, reference[:, None], seed=seed, is_positive=True)
    low, high = (np.where(kl.any(axis=0), end, 0.0) for end in interval)  # without any KL there is no spread
    return float(at), (min(at, first(low)), max(at, first(high)))


def r2_interval(
    squared_error: Float[np.ndarray, "sequence *rest"],
    squared_deviation: Float[np.ndarray, "sequence *#rest"],
    *,
    seed: int,
) -> Interval:
    """Return the 95 % interval of 1 − Σ squared_error / Σ squared_deviation over held-out sequences.

    The map is fixed, so this is the R² *of this map* on new sequences. The best linear map has a larger R², which an
    interval over held-out sequences does not cover.
    """
    interval = ratio_interval(squared_error, squared_deviation, seed=seed)
    return replace(interval, lo=np.asarray(1 - interval.hi), hi=np.asarray(1 - interval.lo))


def statistic_interval(
    replicates: Float[np.ndarray, "replicate *rest"],
    *,
    seed: int,
    scale: Scale = "plain",
    is_corrected: bool = True,
    bounds: Bounds = UNBOUNDED,
) -> Interval:
    """Return the 95 % interval of a smooth nonlinear statistic, from its values under `jackknife_weights(n)`.

    Use it for statistics that are neither a mean nor a ratio of sums: correlations, shares of variance, silhouettes.

    Args:
        replicates: The statistic of all sequences, then with each group left out.
        seed: Seed of the resamples.
        scale: "plain", or the range of the statistic, to work on a more normal scale: "share" (0 to 1) or
            "correlation" (−1 to 1).
        is_corrected: Whether to correct for bias; if not, the interval is that of the expectation of the statistic.
        bounds: Of a mean over sequences, the least and the greatest possible value; see `mean_interval`.

    Example:
        >>> x, y = np.random.default_rng(0).normal(size=(2, 200))
        >>> def correlation(share):
        ...     (a, c), (_, b) = np.cov(x, x + y, aweights=share)
        ...     return c / np.sqrt(a * b)
        >>> replicates = np.array([correlation(share) for share in jackknife_weights(200)])
        >>> low, high = statistic_interval(replicates, seed=0, scale="correlation")
        >>> bool(low < np.sqrt(0.5) < high)
        True
    """
    weights = bootstrap_weights(len(replicates) - 1, seed=seed)
    return jackknife_interval(replicates, weights, scale=scale, is_corrected=is_corrected, bounds=bounds)


def linearized_draws(
    replicates: Float[np.ndarray, "replicate *rest"], *, seed: int, draws: int = DRAWS
) -> Float[np.ndarray, "draw *rest"]:
    """Return bootstrap draws of a smooth statistic to first order, from its values under `jackknife_weights(n)`.

    A draw is θ + Σ_g (w_g − 1/G) (G − 1) (θ − θ without g), over the G groups. Use it for functions of several
    statistics that are not smooth, such as the order of layers.

    References:
        Efron & Tibshirani 1993, chapter 20.
    """
    n = len(replicates) - 1
    influence = (n - 1) * (replicates[0] - replicates[1:])
    weights = bootstrap_weights(n, seed=seed, draws=draws)
    return np.asarray(replicates[0] + np.tensordot(weights - 1 / max(n, 1), influence, axes=1))


def permutation_p(
    found: Float[np.ndarray, "*rest"], permuted: Float[np.ndarray, "permutation *rest"]
) -> Float[np.ndarray, "*rest"]:
    """Return the two-sided p-value (1 + #{|permuted| ≥ |found|}) / (1 + #permutations); NaN where `found` is.

    References:
        Phipson & Smyth 2010 (why the found value is counted among the permutations).

    Example:
        >>> float(permutation_p(np.array(0.9), np.linspace(-0.5, 0.5, 19)))
        0.05
    """
    size, sizes = np.abs(found), np.abs(permuted)
    reached = (sizes >= size * (1 - FLOAT32_ROUNDING)).sum(axis=0)
    return np.where(np.isnan(found), np.nan, (1 + reached) / (1 + len(permuted)))


def _in_units(values: Float[np.ndarray, "sequence *rest"]) -> Float[np.ndarray, "unit *rest"]:
    """Sum over runs of consecutive sequences, which are as independent as the sequences."""
    per_unit = -(-len(values) // MAX_UNITS)
    return values if per_unit <= 1 else np.add.reduceat(values, np.arange(0, len(values), per_unit), axis=0)


def shuffled_within_position(
    values: Shaped[np.ndarray, "sequence position *rest"], rng: np.random.Generator
) -> Shaped[np.ndarray, "sequence position *rest"]:
    """Permute the sequences at random, separately at each position: effects of position alone are preserved."""
    order = rng.random(values.shape[:2]).argsort(axis=0)
    return np.take_along_axis(values, order.reshape(*order.shape, *(1,) * (values.ndim - 2)), axis=0)
