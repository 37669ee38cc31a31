"""What an interval allows for: the range of its quantity, and the choice of the largest of several estimates.

The largest of 36 equal heads is chosen because its estimate is too high: its own 95 % interval holds the largest true
value in 66 to 86 % of all samples (`benchmarks/interval_coverage.py --rows extreme`). For the largest of K values

- the upper end is the greatest of the upper ends: the entry that is truly the largest exceeds its own in 2.5 % of all
  samples;
- the lower end is the greatest of the lower ends, each at 5/K % instead of 2.5 %, so that in 95 % of all samples none
  lies above its own true value, and therefore none above the largest (Bonferroni).

For the smallest, the ends are exchanged. Only the first error occurs if one entry stands out, and only the second if
all are alike, so no rule on single intervals is exact for both: the interval errs on the wide side. The lower end can
be that of another entry with a narrower interval. The chosen entry's own interval is therefore included: what allows
for the choice must not look more certain than what does not. There is none where an entry has no interval of its own,
because that entry may be the largest, and none with fewer than `LEAST_PER_ENTRY` sequences per entry, because ends at
5/K % are then not known.

Without scipy, which `intervals.py` needs.
"""

import math
from statistics import NormalDist
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from bayesgeom.core import Reason

Extreme = Literal["largest", "smallest"]
LEAST_PER_ENTRY = 4  # sequences: with fewer, ends so far out cover too seldom for skewed effects
_TAIL, _CHOSEN_TAIL = 0.025, 0.05  # of an interval of its own, and of the end that the choice biases
FLOAT32_ROUNDING = 8 * float(np.finfo(np.float32).eps)  # of the size of values computed in float32: less is a tie
REACH = 0.99  # of the distance from an estimate to the farther bound of its range


def within_bounds(
    value: Float[np.ndarray, "*rest"],
    lo: Float[np.ndarray, "*rest"],
    hi: Float[np.ndarray, "*rest"],
    bounds: tuple[float, float | np.ndarray],
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"], Bool[np.ndarray, "*rest"]]:
    """Return intervals that end at the bounds of their quantity's range, and which of them reach one.

    An end beyond a bound, or at 99 % of the way from the value to the farther of two bounds, is moved to the bound.
    Such an interval covers more than 95 %: 0.03 … 0.999 of a share says hardly more than that it is a share. Nothing is
    changed where both ends are the value. An infinite end is allowed where the range has no bound.

    Args:
        value: Estimates.
        lo: Lower ends, NaN where there is none.
        hi: Upper ends.
        bounds: Least and greatest possible value; infinite without a bound.

    Example:
        >>> value, lo, hi = np.array([[0.9, 0.9, 0.9, 0.05], [0.8, 0.8, 0.9, 0.03], [0.95, 1.02, 0.9, 0.999]])
        >>> for found in within_bounds(value, lo, hi, (0.0, 1.0)):
        ...     print(found)
        [0.8  0.8  0.9  0.03]
        [0.95 1.   0.9  1.  ]
        [False  True False  True]
    """
    (least, greatest), half = bounds, (bounds[1] - bounds[0]) / 2 * (1 + FLOAT32_ROUNDING)
    with np.errstate(invalid="ignore"):
        is_open = lo < hi
        is_inside = is_open & (lo < value) & (value < hi)
        is_low = is_inside & (value - least > half) & (value - lo >= REACH * (value - least))
        is_high = is_inside & (greatest - value > half) & (hi - value >= REACH * (greatest - value))
        is_low |= is_open & np.isfinite(least) & (lo <= least)
        is_high |= is_open & np.isfinite(greatest) & (hi >= greatest)
    lower, upper = np.fmin(least, value), np.fmax(greatest, value)  # a value may lie beyond a bound by rounding
    return np.where(is_low, lower, lo), np.where(is_high, upper, hi), np.asarray(is_low | is_high)


def extreme_interval(
    value: Float[np.ndarray, " entry"],
    low: Float[np.ndarray, " entry"],
    high: Float[np.ndarray, " entry"],
    which: Extreme,
    *,
    n: int,
    count: int = 0,
) -> tuple[float, float, Reason]:
    """Return a 95 % interval of the largest (smallest) true value, which allows for the choice.

    Args:
        value: Estimates; NaN for entries that were not measured, which are left out.
        low: Lower ends of their 95 % intervals.
        high: Upper ends.
        which: Which extreme.
        n: Number of resampled units, such as sequences.
        count: Number of entries among which the extreme was found, if it is not that of the measured ones.

    Returns:
        Both ends and `Reason.NONE`. NaN and the reason if a measured entry has no interval, or with too few units for
        so many entries. NaN and `Reason.NONE` without entries.

    Example:
        >>> value, low, high = np.array([[0.5, 0.4, 0.1], [0.25, 0.3, 0.05], [0.75, 0.5, 0.15]])
        >>> [round(end, 3) for end in extreme_interval(value, low, high, "largest", n=64)[:2]]
        [0.25, 0.75]
        >>> extreme_interval(value, low, high, "largest", n=3)
        (nan, nan, <Reason.MANY: 11>)
    """
    if which == "smallest":
        lo, hi, reason = extreme_interval(-value, -high, -low, "largest", n=n, count=count)
        return -hi, -lo, reason
    known = ~np.isnan(value)
    count = count or int(known.sum())
    is_hidden, is_small = bool(np.isnan((low + high)[known]).any()), count > 1 and n < LEAST_PER_ENTRY * count
    if not known.any() or is_hidden or is_small:
        return math.nan, math.nan, Reason.HIDDEN if is_hidden else Reason.MANY if is_small else Reason.NONE
    lower = familywise_low(value[known], low[known], high[known], count)
    largest = float(value[known].max())
    is_chosen = value[known] >= largest - FLOAT32_ROUNDING * abs(largest)  # rounding decides between equal entries
    return min(float(lower.max()), float(low[known][is_chosen].min())), float(high[known].max()), Reason.NONE


def familywise_low(
    value: Float[np.ndarray, " entry"],
    low: Float[np.ndarray, " entry"],
    high: Float[np.ndarray, " entry"],
    count: int,
) -> Float[np.ndarray, " entry"]:
    """Return lower ends at 5/K %: in 95 % of all samples none of `count` entries has a true value below its own.

    Args:
        value: Estimates.
        low: Lower ends of their 95 % intervals.
        high: Upper ends.
        count: Number K of entries.

    Example:
        >>> value = np.array([0.5, 0.5])
        >>> familywise_low(value, value - 0.4, value + 0.4, count=40).round(3)
        array([-0.117, -0.117])
    """
    times = _times(count)  # at 1 the ends stay as they are, to the last digit
    if times <= 1:
        return low
    # Distances grow in proportion, or faster if the distribution is skewed to that side: then as on the logarithmic
    # scale on which both ends are equally far.
    near, other = value - low, high - value
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.log(near / other)
        skewed = near * np.expm1(rate * times) / np.expm1(rate)
    return np.asarray(value - np.where((rate > 1e-6) & np.isfinite(rate), skewed, near * times))


def _times(count: int) -> float:
    """Return the quantile of the end that the choice biases, in quantiles of an interval of its own."""
    quantile = NormalDist().inv_cdf
    return max(1.0, quantile(1 - _CHOSEN_TAIL / count) / quantile(1 - _TAIL)) if count > 1 else 1.0
