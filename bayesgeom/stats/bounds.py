"""The rule that an interval stays within the range of its quantity. Without scipy, which `intervals.py` needs."""

import numpy as np
from jaxtyping import Bool, Float

REACH = 0.99  # of the distance from an estimate to the farther bound of its range
WHY_OUTSIDE = "an end of the interval reaches a bound of the quantity's range"


def reaches_bound(
    value: Float[np.ndarray, "*rest"],
    lo: Float[np.ndarray, "*rest"],
    hi: Float[np.ndarray, "*rest"],
    bounds: tuple[float, float],
) -> Bool[np.ndarray, "*rest"]:
    """Return which intervals reach a bound of their quantity's range, or nearly do at the farther bound.

    An end may span at most 99 % of the distance from the value to the farther of two bounds: an interval such as
    0.03 … 0.999 of a share says only that it is a share. Nothing is withheld where both ends are the value. An infinite
    end is allowed where the range has no bound.

    Args:
        value: Estimates.
        lo: Lower ends, NaN where there is none.
        hi: Upper ends.
        bounds: Least and greatest possible value; infinite without a bound.

    Example:
        >>> value, lo, hi = np.array([[0.9, 0.9, 0.9, 0.05], [0.8, 0.8, 0.9, 0.03], [0.95, 1.02, 0.9, 0.999]])
        >>> reaches_bound(value, lo, hi, (0.0, 1.0))
        array([False,  True, False,  True])
    """
    (least, greatest), half = bounds, (bounds[1] - bounds[0]) / 2
    with np.errstate(invalid="ignore"):
        is_low = (value - least > half) & (value - lo >= REACH * (value - least))
        is_high = (greatest - value > half) & (hi - value >= REACH * (greatest - value))
        is_near = (is_low | is_high) & (lo < value) & (value < hi)
        is_beyond = (np.isfinite(least) & (lo <= least)) | (np.isfinite(greatest) & (hi >= greatest))
        return np.asarray((is_near | is_beyond) & (lo < hi))
