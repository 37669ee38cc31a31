"""Correlation of two variables. Tied values get their mean rank; constants give NaN."""

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata


def pearson(x: Float[np.ndarray, "point *rest"], y: Float[np.ndarray, "point *rest"]) -> Float[np.ndarray, "*rest"]:
    """Return the Pearson correlation along the first axis, between −1 and 1."""
    a, b = x - x.mean(axis=0), y - y.mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((a * b).sum(axis=0) / np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0)))


def spearman(x: Float[np.ndarray, "point *rest"], y: Float[np.ndarray, "point *rest"]) -> Float[np.ndarray, "*rest"]:
    """Return the rank correlation along the first axis: 1 if y increases with x."""
    return pearson(ranks(x), ranks(y))


def ranks(x: Float[np.ndarray, "point *rest"]) -> Float[np.ndarray, "point *rest"]:
    """Return ranks along the first axis, from 1; tied values get their mean rank."""
    return np.asarray(rankdata(x, axis=0), dtype=np.float64)


def absolute_ends(
    low: Float[np.ndarray, "*axes"], high: Float[np.ndarray, "*axes"]
) -> tuple[Float[np.ndarray, "*axes"], Float[np.ndarray, "*axes"]]:
    """Return the interval of an absolute value, from that of the value; NaN if it contains 0 or is unknown."""
    ends = np.sort(np.abs([low, high]), axis=0)
    least, most = np.where((low > 0) | (high < 0), ends, np.nan)
    return least, most
