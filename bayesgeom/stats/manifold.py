"""Compare a cloud of points with the exact entropy at each: is the cloud a curve, and does entropy order its points?

Each statistic is computed for the true entropies and for entropies shuffled across sequences within each position. The
shuffle preserves effects of position alone.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from bayesgeom.stats.bootstrap import shuffled_within_position
from bayesgeom.stats.regression import (
    RIDGE,
    SplitMoments,
    even_knots,
    natural_spline,
    ranks,
    ridge,
    split_moments,
    squared_error,
    without_level_means,
)
from bayesgeom.stats.subspace import cloud_axes, covariance, leading_axes, principal_axes, variance_shares

N_KNOTS, N_AXES = 5, 3
_COLLINEAR = 1e-9  # a spline of few distinct entropies has redundant columns


@final
@dataclass(frozen=True, kw_only=True)
class EntropyScale:
    """The entropies to compare clouds with: draw 0 is true, the other draws are shuffled within position.

    `unit_*` have mean 0 and length 1 over the points, NaN where constant; `columns` are the entropy and its spline
    basis, centered at the mean of the first `n_fit` points. `identified`: entropy is not a function of position.
    """

    unit_values: Float64[np.ndarray, "point draw"]
    unit_ranks: Float64[np.ndarray, "point draw"]
    unit_ranks_at_level: Float64[np.ndarray, "point draw"]
    columns: Float32[Tensor, "point draw column"]
    level: Int64[np.ndarray, " point"]
    n_fit: int
    identified: bool


@final
@dataclass(frozen=True, kw_only=True)
class CloudStatistics:
    """Statistics of one cloud. `relation` to entropy has one value per draw: true entropies first, then the shuffles.

    `axes` are the first `N_AXES` principal axes, `first` the coordinates of the points along the first of them.
    `covariance` is None with fewer points than dimensions.
    """

    shape: dict[str, float]
    relation: dict[str, Float64[np.ndarray, " draw"]]
    axes: Float64[Tensor, "d axis"]
    first: Float64[np.ndarray, " point"]
    covariance: Float64[Tensor, "d d"] | None


def shuffled_scale(
    entropy: Float64[np.ndarray, "sequence position"],
    level: Int64[np.ndarray, "sequence position"],
    *,
    shuffles: int,
    seed: int,
) -> EntropyScale:
    """Build the scale of true and shuffled entropies; the first half of the sequences fits, the second scores."""
    rank, spline = ranks(entropy.ravel()), natural_spline(entropy, even_knots(entropy.ravel(), N_KNOTS))
    joint = np.concatenate([rank.reshape(*entropy.shape, 1), entropy[..., None], spline], axis=-1)  # shuffled together
    rng = np.random.default_rng(seed)
    draws = np.stack([joint, *(shuffled_within_position(joint, rng) for _ in range(shuffles))])
    rows = draws.reshape(1 + shuffles, -1, joint.shape[-1])
    columns = torch.from_numpy(np.ascontiguousarray(rows.transpose(1, 0, 2)[:, :, 1:])).float()
    at_level = without_level_means(rows[:, :, 0].T, level.ravel())
    n_fit = -(-len(entropy) // 2) * entropy.shape[1]
    return EntropyScale(
        unit_values=unit_columns(rows[:, :, 1].T),
        unit_ranks=unit_columns(rows[:, :, 0].T),
        unit_ranks_at_level=unit_columns(at_level),
        columns=columns - columns[:n_fit].mean(dim=0),
        level=level.ravel(),
        n_fit=n_fit,
        identified=bool(np.abs(at_level[:, 0]).max() > 0),
    )


def cloud_statistics(
    points: Float[Tensor, "point d"], scale: EntropyScale, *, width: int | None = None
) -> CloudStatistics:
    """Compute the shape of the cloud, and how its first axis, a linear read-out and a smooth curve relate to entropy.

    `entropy_r2` and `curve_share` are held out: 1 − Σ|error|² / Σ|deviation from the fitting half's mean|².
    `width` is the dimension of the vectors, if the points are given in coordinates of their span.
    """
    centered = points - points[: scale.n_fit].mean(dim=0)
    moments = split_moments(centered, scale.columns.flatten(1).to(points), scale.n_fit)
    spread, offset = None, centered.mean(dim=0).double()  # the moments are about the mean of the fitting points
    if len(points) >= points.shape[1]:
        spread = (moments.fit_gram + moments.score_gram) / len(centered) - torch.outer(offset, offset)
        (variances, axes), total, power = leading_axes(spread, N_AXES), spread.trace(), (spread**2).sum()
    else:
        variances, axes = cloud_axes(points)
        total, power = variances.sum(), (variances**2).sum()
    first = (centered @ axes[:, 0].to(points.dtype)).cpu().numpy().astype(np.float64)[:, None]
    rank = ranks(first)
    at_level = unit_columns(without_level_means(rank, scale.level))
    shares = variances / total
    return CloudStatistics(
        shape={
            "pc1_share": float(shares[0]),
            "pc12_share": float(shares[:2].sum()),
            "participation_ratio": float(total**2 / power),
        },
        relation={
            "spearman": np.abs(unit_columns(rank).T @ scale.unit_ranks)[0],
            "pearson": np.abs(unit_columns(first).T @ scale.unit_values)[0],
            "partial_spearman": np.abs(at_level.T @ scale.unit_ranks_at_level)[0],
            "entropy_r2": _entropy_r2(moments, scale, width or points.shape[1]),
            "curve_share": _curve_share(moments, scale),
        },
        axes=axes[:, :N_AXES].clone(),
        first=first[:, 0],
        covariance=spread,
    )


def head_statistics(
    points: Float[Tensor, "point head d_head"], scale: EntropyScale
) -> tuple[Float64[np.ndarray, " head"], Float64[np.ndarray, " head"]]:
    """Return the PC1 share of each head, and |Spearman| of its PC1 with entropy."""
    by_head = points.movedim(1, 0)
    variances, axes = principal_axes(covariance(by_head))
    first = (by_head @ axes[:, :, :1].to(points.dtype))[:, :, 0].T.cpu().numpy()
    related = np.abs(unit_columns(ranks(first)).T @ scale.unit_ranks[:, 0])
    return variance_shares(variances)[:, 0].cpu().numpy(), related


def view(
    points: Float[Tensor, "point d"],
    axes: Float64[Tensor, "d axis"],
    entropy: Float64[np.ndarray, " point"],
    at: Float64[np.ndarray, " step"],
) -> tuple[Float64[np.ndarray, "point component"], Float64[np.ndarray, "step component"]]:
    """Return the points along three of their axes, and the smooth curve through them at the entropies `at`.

    The first axis points to increasing entropy. `curve_share` scores curves of this form; this one is fitted to all
    points.
    """
    cloud = points.double().cpu()
    coordinates = (cloud - cloud.mean(dim=0)) @ torch.nn.functional.pad(axes.cpu(), (0, N_AXES - axes.shape[1]))
    if float(coordinates[:, 0] @ torch.from_numpy(entropy - entropy.mean())) < 0:
        coordinates[:, 0].neg_()
    knots = even_knots(entropy, N_KNOTS)
    columns = (np.column_stack([np.ones(len(x)), natural_spline(x, knots)]) for x in (entropy, at))
    design, grid = map(torch.from_numpy, columns)
    weights = ridge(design.T @ design, design.T @ coordinates, strength=_COLLINEAR)
    return coordinates.numpy(), (grid @ weights).numpy()


def unit_columns(values: Float[np.ndarray, "point column"]) -> Float64[np.ndarray, "point column"]:
    """Scale columns to mean 0 and length 1, so that products are correlations; NaN where a column is constant."""
    centered = values - values.mean(axis=0, dtype=np.float64)
    length = np.sqrt((centered**2).sum(axis=0))
    is_constant = length <= 1e-12 * np.abs(values).max(axis=0) * np.sqrt(len(values))
    return np.asarray(centered / np.where(is_constant, np.nan, length))


def _entropy_r2(moments: SplitMoments, scale: EntropyScale, width: int) -> Float64[np.ndarray, " draw"]:
    """Return the share of the held-out variance of entropy that a linear read-out predicts; 0 for the mean."""
    shape = scale.columns.shape[1:]
    fit, held_out = (c.reshape(-1, *shape)[:, :, 0] for c in (moments.fit_cross, moments.score_cross))
    power = moments.score_power.reshape(shape)[:, 0]
    strength = RIDGE * len(moments.fit_gram) / width  # the penalty of the full space, in coordinates of the span
    error = squared_error(ridge(moments.fit_gram, fit, strength=strength), moments.score_gram, held_out, power)
    return (1 - error / power).cpu().numpy()


def _curve_share(moments: SplitMoments, scale: EntropyScale) -> Float64[np.ndarray, " draw"]:
    """Return the share of the held-out variance of the points that a smooth curve predicts; 0 for the mean."""
    basis = scale.columns[:, :, 1:].to(moments.fit_gram).transpose(0, 1)
    fit, held_out = (rows.mT @ rows for rows in (basis[:, : scale.n_fit], basis[:, scale.n_fit :]))
    shape = scale.columns.shape[1:]
    crosses = (c.reshape(-1, *shape)[:, :, 1:].permute(1, 2, 0) for c in (moments.fit_cross, moments.score_cross))
    fit_cross, held_out_cross = crosses
    weights = ridge(fit, fit_cross, strength=_COLLINEAR)
    power = moments.score_gram.diagonal().expand(len(weights), -1)
    error = squared_error(weights, held_out, held_out_cross, power).sum(dim=-1)
    # With constant entropy the curve is a point: NaN, rather than a share of 0.
    is_curve = fit.diagonal(dim1=-2, dim2=-1).sum(dim=-1) > 0
    return torch.where(is_curve, 1 - error / power.sum(dim=-1), torch.nan).cpu().numpy()
