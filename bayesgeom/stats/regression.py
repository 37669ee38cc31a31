"""Correlation, and linear read-outs from second moments, fitted on one half of the sequences and scored on the other.

Given the Gram matrices, a fit costs one solve, and its held-out error needs no further pass over the points. Shuffled
targets and restricted features are therefore nearly free. The caller centers features and targets at the means of the
fitting half; predicting these means gives R² = 0. In correlations, tied values get their mean rank; constants give NaN.

References:
    Hastie, Tibshirani & Friedman 2009, sections 3.4.1 (ridge) and 5.2.1 (natural cubic splines).
"""

from dataclasses import dataclass, replace
from typing import cast, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from bayesgeom.core import Reason
from bayesgeom.stats.intervals import Interval

RIDGE = 1e-3
_TINY = 1e-60  # keeps the solve defined where no feature varies; the weights are then 0


@final
@dataclass(frozen=True, kw_only=True)
class SplitMoments:
    """Second moments of features and targets, summed over the fitting points and over the held-out points."""

    fit_gram: Float64[Tensor, "d d"]
    fit_cross: Float64[Tensor, "d target"]
    score_gram: Float64[Tensor, "d d"]
    score_cross: Float64[Tensor, "d target"]
    score_power: Float64[Tensor, " target"]


def split_moments(
    features: Float[Tensor, "point d"], targets: Float[Tensor, "point target"], n_fit: int
) -> SplitMoments:
    """Return the moments of the first `n_fit` points and of the rest, in the features' own precision."""
    x, held_out_x, y, held_out_y = features[:n_fit], features[n_fit:], targets[:n_fit], targets[n_fit:]
    return SplitMoments(
        fit_gram=(x.T @ x).double(),
        fit_cross=(x.T @ y).double(),
        score_gram=(held_out_x.T @ held_out_x).double(),
        score_cross=(held_out_x.T @ held_out_y).double(),
        score_power=(held_out_y.double() ** 2).sum(dim=0),
    )


def ridge(
    gram: Float64[Tensor, "*batch d d"], cross: Float64[Tensor, "*batch d target"], *, strength: float = RIDGE
) -> Float64[Tensor, "*batch d target"]:
    """Return (XᵀX + λ I)⁻¹ XᵀY with λ = `strength` times the mean eigenvalue of XᵀX, so that units do not matter."""
    d = gram.shape[-1]
    level = strength * gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / d
    penalty = level.clamp_min(_TINY)[..., None, None] * torch.eye(d, dtype=gram.dtype, device=gram.device)
    return cast(Tensor, torch.linalg.solve(gram + penalty, cross))


def squared_error(
    weights: Float64[Tensor, "*batch d target"],
    gram: Float64[Tensor, "*#batch d d"],
    cross: Float64[Tensor, "*#batch d target"],
    power: Float64[Tensor, "*#batch target"],
) -> Float64[Tensor, "*batch target"]:
    """Return Σ (y − x W)² = yᵀy − 2 wᵀXᵀy + wᵀXᵀX w of each target, at least 0."""
    return (power - 2 * (weights * cross).sum(dim=-2) + (weights * (gram @ weights)).sum(dim=-2)).clamp_min(0.0)


def even_knots(x: Float[np.ndarray, " point"], n_knots: int) -> Float64[np.ndarray, " knot"]:
    """Return evenly spaced knots over the range of x; quantiles would coincide if many points share a value."""
    return np.linspace(float(x.min()), float(x.max()), n_knots)


def natural_spline(
    x: Float[np.ndarray, "*batch"], knots: Float64[np.ndarray, " knot"]
) -> Float64[np.ndarray, "*batch basis"]:
    """Return the basis of natural cubic splines without the constant: knots − 1 columns.

    N_1 = x, N_{k+1} = d_k − d_{K−1} with d_k = ((x − t_k)³₊ − (x − t_K)³₊) / (t_K − t_k), on the scale where the knots
    span 0 to 1. All zero where the knots coincide.
    """
    span = knots[-1] - knots[0]
    if span == 0:
        return np.zeros((*x.shape, len(knots) - 1))
    u, t = (x[..., None] - knots[0]) / span, (knots - knots[0]) / span
    cubes = np.clip(u - t, 0, None) ** 3
    d = (cubes[..., :-1] - cubes[..., -1:]) / (t[-1] - t[:-1])
    return np.concatenate([u, d[..., :-1] - d[..., -1:]], axis=-1)


def without_level_means(
    values: Float[np.ndarray, "point column"], level: Shaped[np.ndarray, " point"]
) -> Float64[np.ndarray, "point column"]:
    """Subtract the mean among points of the same level; exactly 0 where a column is a function of the level."""
    _, index, counts = np.unique(level, return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(index, weights=column) for column in values.T], axis=1)
    residual = values - (sums / counts[:, None])[index]
    # The remainder of a function of the level is rounding error.
    is_rounding = np.abs(residual).max(axis=0) <= 1e-9 * np.abs(values).max(axis=0)
    return np.where(is_rounding, 0.0, residual)


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
    from scipy.stats import rankdata  # takes a second to load

    return np.asarray(rankdata(x, axis=0, nan_policy="propagate"))


def absolute_interval(signed: Interval) -> Interval:
    """Return the interval of an absolute value, from that of the value: from 0, and conservative, if it contains 0."""
    least, most = np.sort(np.abs([signed.lo, signed.hi]), axis=0)
    is_around = (signed.lo <= 0) & (signed.hi >= 0) & (signed.lo < signed.hi)
    code = np.where(is_around, int(Reason.CONSERVATIVE), signed.code)
    return replace(signed, lo=np.asarray(np.where(is_around, 0.0, least)), hi=np.asarray(most), code=code)
