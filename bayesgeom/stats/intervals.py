"""Confidence intervals over sequences with 95 % coverage, and the rule that withholds them.

The bootstrap-t interval of a ratio of sums, of which a mean is a special case. With sums over sequences A and B,
R = A / B and standard error s(R) = sqrt(Σ (a_i − R b_i)²) / B,

    lo = R − t(1 − level) s(R),    hi = R − t(level) s(R),    t* = (R* − R) / s*(R*) over resamples of sequences.

A sample of skewed values usually misses the rare large values that dominate the mean, so the textbook interval
(level = 0.025) is too short on the side of the long tail. If the sample has a heavy tail on a side, that end is taken
at a lower level (`tail_level`) and moved further out (`tail_stretch`). `tail_weight` measures the tail. It depends on
the bulk of the values and hardly on whether the largest one is in the sample. Binary values, such as correct and wrong,
get Wilson's score interval, because resamples of them are too coarse.

An interval is withheld only where it would be too narrow. (a) The tail is heavier than any on which coverage was
measured. A stricter rule would lower coverage: it would select samples of a heavy-tailed population that look
light-tailed, and these underestimate the mean. (b) Fewer than 8 sequences differ from the median. This rule selects
samples that overestimate the rate of rare errors, so just above the limit both ends are taken at a lower level,
`FEW_LEVEL`. If the values have a range, there is an interval also below that limit: at most a share p of all sequences
differs from the median m, by Clopper and Pearson, so the mean lies within m − p (m − least) … m + p (greatest − m). It
allows for the worst case, and its code is `Reason.CONSERVATIVE`.

Values that differ from the median by no more than their rounding in float32 are tied with it, and no rule has a step
there, so that rounding moves no end. In 4,000 simulated samples each of differences of accuracies (n = 64 and 256),
these intervals covered 94 to 96 %. With the ties broken by noise of 1e-7 they would cover 95 to 99 %, be up to 3.5
times as wide, and miss the true difference on one side up to 13 times as often as on the other.

The interval of another statistic, from the jackknife, is corrected for bias. It is also withheld where the correction
is larger than the uncertainty. With nearly parallel keys such intervals hold 2 % of true mean |cosines| at n = 64.

The lower end for a ratio of two means of values that are never negative is that of log R, so that it is positive:
lo = R exp(−t(1 − level) s(log R)). Reports withhold intervals that leave the range of their quantity: see `bounds.py`.

The constants were set on lognormal, gamma, Weibull and Pareto values, on their differences and on the KL of shipped
models, with other seeds than those of `benchmarks/interval_coverage.py`, which measures the coverage.

References:
    Wilson 1927, JASA 22 (the score interval of a proportion).
    Clopper & Pearson 1934, Biometrika 26 (the exact interval of a proportion; with no exception, the rule of three).
    Efron & Tibshirani 1993, chapters 11 (jackknife) and 12.5 (bootstrap-t).
    Hill 1975, Annals of Statistics 3(5) (the tail index that `tail_weight` is a variant of).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
from jaxtyping import Bool, Float, Float64, Int
from scipy.special import betaincinv, expit, logit, ndtri

from bayesgeom.core import Reason
from bayesgeom.core.batching import even_slices
from bayesgeom.stats.bounds import FLOAT32_ROUNDING

LEVEL = 0.025  # in each tail
MIN_DIFFERENT = 8  # sequences that must differ from the median: fewer do not determine the spread
ENOUGH_DIFFERENT = 13  # if fewer differ, and fewer than half of all, the ends are taken at one of the next levels
FEW_LEVEL, FEW_LEVEL_SCORE = 0.018, 0.003  # of bootstrap-t and of score intervals
MAX_TAIL = 1.9  # tail weight of lognormal values with σ = 3, the heaviest on which coverage was measured
MAX_SKEW = 0.25  # standardized skewness of the mean, |Σ d³| / (Σ d²)^1.5; less skewed samples keep their interval
_TAIL_ERRORS = 8.8  # 2.6 standard errors of that tail weight, times √n
_LIGHT, _RANGE, _SLOPE = 0.7, 0.55, 2.6  # tail weight where the level starts to fall, range, decades per unit
_STRETCHED, _FURTHER, _STRETCH = 1.35, 1.0, 2.5  # tail weight where t starts to grow, range, growth per unit
_SOONER, _SHORT = 0.8, 0.4  # the same start and range in small samples, where t of a lighter tail grows, too
_COLUMNS = 1_024  # processed together
UNIT_ROUNDING = 16 * float(np.finfo(np.float64).eps)  # bounds the error of sums of terms of size 1 (a few roundings)
_LARGEST_TIE = 1 / 1024  # of a large deviation: neither a small spread nor the bulk of a heavy tail is taken for ties
_ROUNDING = 4 * FLOAT32_ROUNDING  # of the largest value: a difference is smaller than its terms, which are not known
_ZERO = 1e-12  # below it a constant is 0
_MOST = 1 - FLOAT32_ROUNDING  # a share or correlation computed in float32 is not told apart from 1 above it
_WHOLE = 16  # times a tie: deviations from there on count in full in the tail weight

Scale = Literal["plain", "correlation", "share"]
Bounds = tuple[float | np.ndarray, float | np.ndarray]  # least and greatest possible value, of all or of every column
UNBOUNDED: Bounds = (-np.inf, np.inf)


_SCALES: Mapping[Scale, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "plain": (np.asarray, np.asarray),
    "correlation": (lambda values: np.arctanh(values.clip(-_MOST, _MOST)), np.tanh),
    "share": (lambda values: logit(np.minimum(values, _MOST)), expit),
}


@final
@dataclass(frozen=True, kw_only=True)
class Interval:
    """The ends of 95 % intervals, NaN where there is none, and why there is none.

    Iterating gives `lo` and `hi`, so that `lo, hi = mean_interval(...)` works.

    Args:
        lo: Lower ends.
        hi: Upper ends.
        code: The number of a `Reason`, by entry: why an interval is withheld, or that it is conservative.
        n_different: Sequences (or groups of them) that differ from the median.
        n: Number of sequences, or of groups of them if there are many.
    """

    lo: Float[np.ndarray, "*rest"]
    hi: Float[np.ndarray, "*rest"]
    code: Int[np.ndarray, "*rest"]
    n_different: Int[np.ndarray, "*rest"]
    n: int

    def __iter__(self) -> Iterator[Float[np.ndarray, "..."]]:
        return iter((self.lo, self.hi))

    def reason(self, at: tuple[int, ...] = ()) -> Reason:
        """Return why entry `at` has no interval, or that its interval is conservative.

        Example:
            >>> from bayesgeom.stats.bootstrap import mean_interval
            >>> mean_interval(np.array([0.0] * 61 + [1.0] * 3), seed=0).reason()
            <Reason.FEW_DIFFER: 3>
        """
        return Reason.of(int(self.code[at]))


def no_interval(shape: tuple[int, ...], n: int, code: Reason = Reason.FEW) -> Interval:
    """Return NaN for every entry, with one reason."""
    unknown = np.full(shape, np.nan)
    zeros, codes = np.zeros(shape, dtype=np.int64), np.full(shape, int(code), dtype=np.int64)
    return Interval(lo=unknown, hi=unknown.copy(), code=codes, n_different=zeros, n=n)


def bootstrap_t(
    above: Float[np.ndarray, "sequence *rest"],
    below: Float[np.ndarray, "sequence *#rest"],
    weights: Float64[np.ndarray, "draw sequence"],
    *,
    level: float = LEVEL,
    noise: Float[np.ndarray, "*rest"] | float = 0.0,
    is_positive: bool = False,
    bounds: Bounds = UNBOUNDED,
) -> Interval:
    """Return the interval of Σ above / Σ below, 95 % by default, or the reason why there is none.

    Args:
        above: Numerators; for a mean, the values.
        below: Denominators; for a mean, ones.
        weights: Share of each sequence in each resample, from `bootstrap_weights`.
        level: Probability with which each end may be wrong.
        noise: Rounding error of a numerator. Numerators that differ by no more, or by no more than the rounding of the
            largest one in float32, count as equal, so that an interval does not depend on the processor.
        is_positive: Whether neither is ever negative. The lower end is then positive.
        bounds: Least and greatest possible value of above / below. A mean of which few values differ then has an
            interval that allows for the worst case.
    """
    n, shape = len(above), above.shape[1:]
    if n < 2:
        return no_interval(shape, n)
    a = above.reshape(n, -1).astype(np.float64)
    b = np.broadcast_to(below, above.shape).reshape(n, -1).astype(np.float64)
    is_mean = bool(_is_constant(b, b[:1, :1]).all())
    noises = np.broadcast_to(noise, shape).ravel()
    parts = even_slices(a.shape[1], at_most=_COLUMNS)
    cells = [_columns(a[:, p], b[:, :1] if is_mean else b[:, p], weights, level, noises[p], is_positive) for p in parts]
    if not cells:
        return no_interval(shape, n)
    lo, hi, code, different = (np.concatenate(ends) for ends in zip(*cells, strict=True))
    if is_mean:
        # The worst case, where few values of a range differ from the usual one: at most a share `most` of all sequences
        # differs, and each can have any value of the range. At the edge this is the exact interval of a proportion.
        least, greatest = (np.broadcast_to(bound, shape).ravel() for bound in bounds)
        most = betaincinv(different + 1, np.maximum(n - different, 1), 1 - level)
        is_few = np.isin(code, (Reason.FEW_DIFFER, Reason.CONSTANT)) & (n > MIN_DIFFERENT) & (2 * different < n)
        is_few &= np.isfinite(least) & np.isfinite(greatest)
        with np.errstate(divide="ignore", invalid="ignore"):
            usual = np.median(a / b[:1, :1], axis=0)
            lo = np.where(is_few, usual - most * (usual - least), lo)
            hi = np.where(is_few, usual + most * (greatest - usual), hi)
        code = np.where(is_few, int(Reason.CONSERVATIVE), code)
    lo, hi, code, different = (array.reshape(shape) for array in (lo, hi, code, different))
    return Interval(lo=lo, hi=hi, code=code, n_different=different, n=n)


def jackknife_interval(
    replicates: Float[np.ndarray, "replicate *rest"],
    weights: Float64[np.ndarray, "draw sequence"],
    *,
    scale: Scale = "plain",
    is_corrected: bool = True,
    bounds: Bounds = UNBOUNDED,
) -> Interval:
    """Return the 95 % interval of any smooth statistic of the sequences.

    The pseudo-values G θ − (G − 1) θ₍₋g₎ of the G groups are treated as a sample. Their mean is θ minus its jackknife
    estimate of bias. If this interval does not contain θ, the bias is larger than the uncertainty, and there is no
    interval. So θ lies strictly between the ends, or both ends are θ because no group changes it.

    Args:
        replicates: The statistic under each row of `jackknife_weights`.
        weights: Share of each group in each resample.
        scale: `correlation` works on Fisher's z = artanh(θ), so that the ends stay within −1 and 1; `share` on the
            logit, so that they stay within 0 and 1.
        is_corrected: Whether to correct for bias; if not, the interval is that of the expectation of θ.
        bounds: Of a mean over sequences, the least and the greatest possible value; see `bootstrap_t`.
    """
    n, there, back = len(replicates) - 1, *_SCALES[scale]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = replicates.astype(np.float64)
        on_scale = there(values)
        pseudo = n * on_scale[0] - (n - 1) * on_scale[1:]
        noise = n * np.abs(on_scale - there(values * (1 - FLOAT32_ROUNDING))).max(axis=0)
        pseudo = pseudo if is_corrected else pseudo - pseudo.mean(axis=0) + on_scale[0]
    ones = np.ones((n, *(1,) * (pseudo.ndim - 1)))
    noise = np.fmax(noise, n * UNIT_ROUNDING)  # pseudo-values are differences of nθ
    interval = bootstrap_t(pseudo, ones, weights, noise=noise, bounds=bounds)
    lo, hi, estimate = back(interval.lo), back(interval.hi), values[0]
    is_edge = ((estimate == 0) | (np.abs(estimate - 1) <= FLOAT32_ROUNDING)) & (interval.code != Reason.CONSERVATIVE)
    is_same = (interval.n_different == 0) & np.isin(interval.code, (Reason.NONE, Reason.CONSTANT))
    is_biased = (interval.code == Reason.NONE) & ~is_same & ~((lo < estimate) & (estimate < hi))
    of_same = np.where(is_edge, int(Reason.CONSTANT), int(Reason.NONE))
    code = np.where(is_biased, int(Reason.BIASED), np.where(is_same, of_same, interval.code))
    is_there = np.isin(code, (Reason.NONE, Reason.CONSERVATIVE))
    lo, hi = (np.where(is_there, np.where(is_same, estimate, end), np.nan) for end in (lo, hi))
    return replace(interval, lo=np.asarray(lo), hi=np.asarray(hi), code=code)


def tail_weight(
    deviations: Float64[np.ndarray, "sequence column"],
    tie: Float64[np.ndarray, " column"] | float = 0.0,
) -> Float64[np.ndarray, " column"]:
    """Return the mean log ratio of the larger half of the positive deviations to their median.

    About 0.4 for uniform, 0.6 for normal, 0.8 for exponential values, 0.9, 1.15 and 1.4 for lognormal ones with
    σ = 1, 1.5 and 2; 0 where no deviation is positive or all are equal.

    Args:
        deviations: Values minus their median; with the sign changed, the weight of the lower tail.
        tie: Deviations up to this are 0. From there to 16 times as much they count in part, so that the weight has no
            step.
    """
    ordered = -np.sort(-np.where(deviations > tie, deviations, 0.0), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        counted = np.where(ordered > _WHOLE * tie, 1.0, (ordered / tie - 1) / (_WHOLE - 1))
        count = np.where(ordered > 0, counted, 0.0).sum(axis=0)

    def of_largest(n: Int[np.ndarray, " column"]) -> Float64[np.ndarray, " column"]:
        n_upper = n // 2
        median = np.take_along_axis(ordered, n_upper[None], axis=0)[0]
        is_upper = np.arange(len(ordered))[:, None] < n_upper
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(is_upper, np.log(ordered / median), 0.0)
        return np.asarray(logs.sum(axis=0) / np.maximum(n_upper, 1))

    whole = np.floor(count).astype(np.int64)
    part, fewer = count - whole, of_largest(whole)
    change = of_largest(np.where(part > 0, whole + 1, whole)) - fewer if part.any() else 0.0
    return np.asarray(fewer + part * change)


def tail_level(
    tail: Float64[np.ndarray, "*rest"], other: Float64[np.ndarray, "*rest"], n: int
) -> Float64[np.ndarray, "*rest"]:
    """Return the level of the end on the side of this tail: 0.025, or less for a heavy tail.

    If the other tail is equally heavy, errors of the two partly cancel, and the level is lowered half as far.
    """
    decades = _SLOPE * (64 / max(n, 64)) ** 0.15 * _excess(tail, other, _LIGHT, _RANGE)
    return np.asarray(LEVEL * 10**-decades)


def tail_stretch(
    tail: Float64[np.ndarray, "*rest"], other: Float64[np.ndarray, "*rest"], n: int
) -> Float64[np.ndarray, "*rest"]:
    """Return the factor on t at the end on the side of this tail: 1, or more if no resample reaches far enough.

    Tails that are equally heavy on both sides need no factor: errors of the two partly cancel. From 0.8 to 1.35 the
    factor is for small samples, which cannot tell a lognormal tail from one of infinite variance.
    """
    few = 64 / max(n, 64)
    heavy = few**0.3 * _excess(tail, other, _STRETCHED, _FURTHER, shared=1.0)
    small = few**1.5 * _excess(tail, other, _SOONER, _SHORT, shared=1.0)
    return np.asarray(1 + _STRETCH * (heavy + small))


def heaviest_tail(n: int) -> float:
    """Return the largest tail weight with which a skewed sample of n sequences has an interval.

    Few samples of lognormal values with σ = 3 exceed it.

    Example:
        >>> heaviest_tail(64)
        3.0
    """
    return MAX_TAIL + _TAIL_ERRORS / float(np.sqrt(max(n, 64)))


def _excess(tail: np.ndarray, other: np.ndarray, start: float, most: float, *, shared: float = 0.5) -> np.ndarray:
    """Return the excess of a tail over `start`, up to `most`, minus this part of the excess that both tails share."""
    excess, others = (np.clip(of - start, 0, most) for of in (tail, other))
    return np.asarray(excess - shared * np.minimum(excess, others))


def _columns(
    a: Float64[np.ndarray, "sequence column"],
    b: Float64[np.ndarray, "sequence #column"],
    weights: Float64[np.ndarray, "draw sequence"],
    level: float,
    noise: Float64[np.ndarray, " column"],
    is_positive: bool,
) -> tuple[np.ndarray, ...]:
    """Return lower end, upper end, code and number of differing sequences of every column."""
    n = len(a)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = a.sum(axis=0) / b.sum(axis=0)
        influence = (a - ratio * b) / b.mean(axis=0)
        deviations = influence - np.median(influence, axis=0)
        size = np.abs(a).max(axis=0) + np.abs(ratio * b).max(axis=0)
        rounding = np.maximum(_ROUNDING * size, noise) / np.abs(b.mean(axis=0))
        place = max(0, n - max(MIN_DIFFERENT, n // 8))
        large = np.partition(np.abs(deviations), place, axis=0)[place]  # rounding, if fewer than that differ
        tie = np.where(large > rounding / 4, np.minimum(rounding, _LARGEST_TIE * large), rounding)
        t, shift = studentized(a, b, ratio, weights, tie)
        on_log = np.sort(t * _log_factor(1 + shift / ratio), axis=0) if is_positive else None
    error = np.sqrt((influence**2).mean(axis=0) / n)
    different = (np.abs(deviations) > tie).sum(axis=0)
    upper, lower = tail_weight(deviations, tie), tail_weight(-deviations, tie)
    t.sort(axis=0)
    t_low = t if on_log is None else on_log
    is_rare = (different < ENOUGH_DIFFERENT) & (2 * different < n)
    at_most, at_most_score = (np.where(is_rare, few, LEVEL) * level / LEVEL for few in (FEW_LEVEL, FEW_LEVEL_SCORE))
    tails = (tail_level(*sides, n) * level / LEVEL for sides in ((lower, upper), (upper, lower)))
    low, high = (np.minimum(tail, at_most) for tail in tails)
    with np.errstate(invalid="ignore"):
        reach = _at(t_low, 1 - low) * tail_stretch(lower, upper, n) * error
        lo = ratio * np.exp(-reach / ratio) if is_positive else ratio - reach
        hi = ratio - _at(t, high) * tail_stretch(upper, lower, n) * error
    is_two, two_lo, two_hi = _two_valued(a, b, at_most_score, tie)
    lo, hi = np.where(is_two, two_lo, lo), np.where(is_two, two_hi, hi)
    with np.errstate(divide="ignore", invalid="ignore"):
        skew = np.abs((influence**3).sum(axis=0)) / (influence**2).sum(axis=0) ** 1.5
    is_heavy = (np.maximum(upper, lower) > heaviest_tail(n)) & (skew > MAX_SKEW)
    code = np.where(is_heavy, int(Reason.HEAVY_TAIL), int(Reason.NONE))
    few = Reason.FEW if n <= MIN_DIFFERENT else Reason.FEW_DIFFER
    code = np.where(~np.isfinite(lo) | ~np.isfinite(hi) | (different < MIN_DIFFERENT), int(few), code)
    # If all are 0 or all are 1, a rare exception may be missing; any other constant is a property of the model.
    is_edge = (np.abs(ratio) <= np.maximum(rounding, _ZERO)) | (np.abs(ratio - 1) <= rounding)
    is_constant = different == 0
    lo, hi = (np.where(is_constant, ratio, end) for end in (lo, hi))
    code = np.where(is_constant, np.where(is_edge, int(Reason.CONSTANT), int(Reason.NONE)), code)
    code = np.where(np.isfinite(ratio), code, int(Reason.MISSING))
    is_there = code == Reason.NONE
    return np.where(is_there, lo, np.nan), np.where(is_there, hi, np.nan), code, different


def _two_valued(
    a: Float64[np.ndarray, "sequence column"],
    b: Float64[np.ndarray, "sequence #column"],
    level: Float64[np.ndarray, " column"],
    tie: Float64[np.ndarray, " column"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which columns are means of two-valued data, up to `tie`, and Wilson's interval of these."""
    n, z = len(a), -ndtri(level)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = a / b
        least, most = values.min(axis=0), values.max(axis=0)
        span = most - least
        is_least, is_most = values - least <= tie, most - values <= tie
    is_two = (is_least | is_most).all(axis=0) & (span > tie) & _is_constant(b, b[:1]).all(axis=0)
    share = is_most.mean(axis=0)
    center, shrink = share + z**2 / (2 * n), 1 + z**2 / n
    reach = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    with np.errstate(invalid="ignore"):
        lo, hi = (least + span * (center + sign * reach) / shrink for sign in (-1, 1))
    return is_two, lo, hi


def studentized(
    a: Float64[np.ndarray, "sequence column"],
    b: Float64[np.ndarray, "sequence #column"],
    ratio: Float64[np.ndarray, " column"],
    weights: Float64[np.ndarray, "draw sequence"],
    tie: Float64[np.ndarray, " column"],
) -> tuple[Float64[np.ndarray, "draw column"], Float64[np.ndarray, "draw column"]]:
    """Return t* and R* − R of every resample. Without spread t* is 0 if a resample equals the sample, else infinite.

    A spread, or a difference from the sample, of no more than `tie` is rounding error.
    """
    # Shifting the numerators does not change t* and avoids cancellation of the squares.
    a = a - ratio * b
    total = weights @ b
    shift, power = weights @ a / total, weights @ a**2
    if b.shape[1] == 1 and (b == b[0]).all():
        square = power / total**2 - shift**2
    else:
        square = (power - 2 * shift * (weights @ (a * b)) + shift**2 * (weights @ b**2)) / total**2
    is_same = ~(square > tie**2)
    square[is_same] = 0.0
    square /= len(a)
    t = shift / np.sqrt(square, out=square)
    t[(shift == 0) | (is_same & (np.abs(shift) <= tie))] = 0.0
    return t, shift


def _is_constant(
    values: Float64[np.ndarray, "sequence column"], first: Float64[np.ndarray, "1 #column"]
) -> Bool[np.ndarray, "sequence column"]:
    """Return which values equal the first one, up to their rounding in float32."""
    return np.asarray(np.abs(values - first) <= FLOAT32_ROUNDING * np.abs(first))


def _log_factor(growth: Float64[np.ndarray, "draw column"]) -> Float64[np.ndarray, "draw column"]:
    """Return t* of log R over t* of R, r log r / (r − 1) with r = R* / R, because s*(log R) = s*(R) / R*."""
    is_same = np.abs(growth - 1) < 1e-6  # where the factor is 1 + (r − 1) / 2
    return np.asarray(np.where(is_same | (growth <= 0), 1.0, growth * np.log(growth) / (growth - 1)))


def _at(
    ordered: Float64[np.ndarray, "draw column"], level: Float64[np.ndarray, " column"]
) -> Float64[np.ndarray, " column"]:
    """Return the quantile of every column, by linear interpolation."""
    place = level * (len(ordered) - 1)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, len(ordered) - 1)
    below, above = (np.take_along_axis(ordered, i[None], axis=0)[0] for i in (low, high))
    return np.asarray(below + (place - low) * np.where(high > low, above - below, 0.0))
