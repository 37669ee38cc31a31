"""Correlation of two variables. Tied values get their mean rank; constants give NaN."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from bayesgeom.core.verdict import Reason
from bayesgeom.stats.bootstrap import seed_interval
from bayesgeom.stats.intervals import Interval

LEAST_UNITS = 15  # from here on the interval holds the true correlation in 94 to 96 % of planted data sets


def pearson(x: Float[np.ndarray, "point *rest"], y: Float[np.ndarray, "point *rest"]) -> Float[np.ndarray, "*rest"]:
    """Return the Pearson correlation along the first axis, between −1 and 1."""
    a, b = x - x.mean(axis=0), y - y.mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((a * b).sum(axis=0) / np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0)))


def spearman(x: Float[np.ndarray, "point *rest"], y: Float[np.ndarray, "point *rest"]) -> Float[np.ndarray, "*rest"]:
    """Return the rank correlation along the first axis: 1 if y increases with x."""
    return pearson(ranks(x), ranks(y))


def ranks(x: Float[np.ndarray, "point *rest"]) -> Float[np.ndarray, "point *rest"]:
    """Return ranks along the first axis, from 1; tied values get their mean rank.

    All ranks of a column with a NaN are NaN.

    Example:
        >>> ranks(np.array([[0.3, 5.0], [0.1, 7.0], [0.2, 5.0]])).T.tolist()
        [[3.0, 1.0, 2.0], [1.5, 3.0, 1.5]]
    """
    if not x.size:
        return np.empty(x.shape)
    columns = np.ascontiguousarray(x.reshape(len(x), -1).T)
    order = columns.argsort(axis=1)
    in_order = np.take_along_axis(columns, order, axis=1)
    place = np.broadcast_to(np.arange(1.0, len(x) + 1), columns.shape)
    is_first = np.concatenate([np.ones((len(columns), 1), dtype=bool), in_order[:, 1:] != in_order[:, :-1]], axis=1)
    if not is_first.all():  # tied values get the middle of the places of the first and of the last of them
        first = np.flatnonzero(is_first)
        sizes = np.diff(first, append=is_first.size)
        place = np.repeat(place.ravel()[first] + (sizes - 1) / 2, sizes).reshape(columns.shape)
    found = np.empty(columns.shape)
    np.put_along_axis(found, order, place, axis=1)
    found[np.isnan(in_order[:, -1])] = np.nan  # NaN is sorted to the end
    return found.T.reshape(x.shape)


def absolute_interval(signed: Interval) -> Interval:
    """Return the interval of an absolute value, from that of the value: from 0, and conservative, if it contains 0."""
    least, most = np.sort(np.abs([signed.lo, signed.hi]), axis=0)
    is_around = (signed.lo <= 0) & (signed.hi >= 0) & (signed.lo < signed.hi)
    code = np.where(is_around, int(Reason.CONSERVATIVE), signed.code)
    return replace(signed, lo=np.asarray(np.where(is_around, 0.0, least)), hi=np.asarray(most), code=code)


def jackknife_student(
    replicates: Float[np.ndarray, "replicate *rest"],
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """Return Student's interval of a correlation from its value on all units, then without each one.

    NaN for fewer than `LEAST_UNITS`, and where a value is −1 or 1.

    References:
        Efron & Tibshirani 1993, chapter 11 (pseudo-values).
    """
    n = len(replicates) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.arctanh(replicates)
        pseudo = n * scaled[0] - (n - 1) * scaled[1:]
        low, high = seed_interval(pseudo)
        reach = (high - low) / 2
        known = np.where(np.isfinite(reach) & (n >= LEAST_UNITS), reach, np.nan)
        return np.asarray(np.tanh(scaled[0] - known)), np.asarray(np.tanh(scaled[0] + known))
