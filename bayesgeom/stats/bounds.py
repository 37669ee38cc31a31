"""The rule that an interval stays within the range of its quantity. Without scipy, which `intervals.py` needs."""

import numpy as np
from jaxtyping import Bool, Float

REACH = 0.99  # of the distance from an estimate to the farther bound of its range


def within_bounds(
    value: Float[np.ndarray, "*rest"],
    lo: Float[np.ndarray, "*rest"],
    hi: Float[np.ndarray, "*rest"],
    bounds: tuple[float, float],
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
    (least, greatest), half = bounds, (bounds[1] - bounds[0]) / 2
    with np.errstate(invalid="ignore"):
        is_open = lo < hi
        is_inside = is_open & (lo < value) & (value < hi)
        is_low = is_inside & (value - least > half) & (value - lo >= REACH * (value - least))
        is_high = is_inside & (greatest - value > half) & (hi - value >= REACH * (greatest - value))
        is_low |= is_open & np.isfinite(least) & (lo <= least)
        is_high |= is_open & np.isfinite(greatest) & (hi >= greatest)
    lower, upper = np.fmin(least, value), np.fmax(greatest, value)  # a value may lie beyond a bound by rounding
    return np.where(is_low, lower, lo), np.where(is_high, upper, hi), np.asarray(is_low | is_high)
