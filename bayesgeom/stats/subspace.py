"""Subspaces: principal components from covariances, random subspaces, angles, and moments within them.

Clouds are centered, and standardized only on request, because standardizing removes the scale of each coordinate.

References:
    Jolliffe 2002, chapters 1–3.
    Halko, Martinsson & Tropp 2011 (randomized range finding).
"""

import math
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.linalg import eigh
from torch import Tensor

from bayesgeom.core import InvalidArgument

_ROUNDING = 1e-6  # of a coordinate's size: a smaller spread is rounding error


def standardized(points: Float[Tensor, "*batch point d"]) -> Float[Tensor, "*batch point d"]:
    """Scale every coordinate to mean 0 and variance 1 over the points; a constant coordinate becomes 0."""
    centered = points - points.mean(dim=-2, keepdim=True)
    spread = centered.square().mean(dim=-2, keepdim=True).sqrt()
    is_constant = spread <= _ROUNDING * points.abs().amax(dim=-2, keepdim=True)
    return centered / torch.where(is_constant, torch.inf, spread)


def covariance(points: Float[Tensor, "*batch point d"]) -> Float64[Tensor, "*batch d d"]:
    """Return Σ (x − x̄)(x − x̄)ᵀ / n over the points; products are in their own precision."""
    centered = points - points.mean(dim=-2, keepdim=True)
    return (centered.mT @ centered).double() / points.shape[-2]


def principal_axes(
    covariances: Float64[Tensor, "*batch d d"],
) -> tuple[Float64[Tensor, "*batch d"], Float64[Tensor, "*batch d axis"]]:
    """Return variances along the principal axes, largest first, and the axes as columns of unit length.

    The sign of an axis is arbitrary; its largest entry is made positive, so that equal clouds give equal axes.
    """
    variances, axes = torch.linalg.eigh(covariances)
    return variances.flip(-1).clamp_min(0.0), _turned(axes.flip(-1))


def leading_axes(
    covariances: Float64[Tensor, "d d"], n: int
) -> tuple[Float64[Tensor, " axis"], Float64[Tensor, "d axis"]]:
    """Return the first `n` of `principal_axes`, at a fraction of the cost in many dimensions.

    Example:
        >>> variances, axes = leading_axes(torch.diag(torch.tensor([1.0, 4.0, 9.0]).double()), 2)
        >>> variances.tolist(), axes.T.tolist()
        ([9.0, 4.0], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    """
    d = len(covariances)
    variances, axes = eigh(covariances.cpu().numpy(), subset_by_index=(max(0, d - n), d - 1))
    power, columns = (torch.from_numpy(np.ascontiguousarray(part)).to(covariances.device) for part in (variances, axes))
    return power.flip(-1).clamp_min(0.0), _turned(columns.flip(-1))


def cloud_axes(
    points: Float[Tensor, "point d"],
) -> tuple[Float64[Tensor, " axis"], Float64[Tensor, "d axis"]]:
    """Return `principal_axes` of the points' covariance, at most as many as points.

    With fewer points than dimensions, the axes are computed in the span of the points, without a d × d matrix.
    """
    if len(points) >= points.shape[1]:
        return principal_axes(covariance(points))
    centered = (points - points.mean(dim=0)).double()
    _, lengths, axes = torch.linalg.svd(centered, full_matrices=False)
    return lengths**2 / len(points), _turned(axes.T)


def span_coordinates(points: Float[Tensor, "point d"]) -> Float64[Tensor, "point axis"]:
    """Return the coordinates of the points along their own principal axes.

    With fewer points than dimensions, there are as many coordinates as points. Distances, variances, principal axes and
    linear read-outs are preserved, at a fraction of the cost. Axes have the signs of `principal_axes`.

    Args:
        points: The cloud; the function saves time with fewer points than dimensions.

    Example:
        >>> cloud = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> torch.allclose(torch.cdist(span_coordinates(cloud), span_coordinates(cloud)), torch.cdist(cloud, cloud))
        True
    """
    centered = (points - points.mean(dim=0)).double()
    variances, axes = torch.linalg.eigh(centered @ centered.T)
    along = axes.flip(-1) * variances.flip(-1).clamp_min(0.0).sqrt()
    directions = centered.T @ axes.flip(-1)
    largest = directions.gather(-2, directions.abs().argmax(dim=-2, keepdim=True))
    return cast(Tensor, along * torch.where(largest < 0, -1.0, 1.0))


def _turned(axes: Float64[Tensor, "*batch d axis"]) -> Float64[Tensor, "*batch d axis"]:
    largest = axes.gather(-2, axes.abs().argmax(dim=-2, keepdim=True))
    return axes * torch.where(largest < 0, -1.0, 1.0)


def variance_shares(variances: Float64[Tensor, "*batch d"]) -> Float64[Tensor, "*batch d"]:
    """Return λ_i / Σ λ: between 0 and 1, summing to 1; NaN where nothing varies."""
    return variances / variances.sum(dim=-1, keepdim=True)


def leading_coordinates(
    points: Float[Tensor, "point d"], n_axes: int, *, n_fit: int, seed: int
) -> Float[Tensor, "point axis"]:
    """Return coordinates along approximate leading principal axes of the first `n_fit` points.

    There are `n_axes` axes, or all d if d is not larger. The axes come from a random projection of the fitting points,
    improved by one power iteration.
    """
    if points.shape[1] <= n_axes:
        return points
    centered = points[:n_fit] - points[:n_fit].mean(dim=0)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(points.shape[1], n_axes, generator=generator, dtype=torch.float32).to(points)
    basis = torch.linalg.qr(centered.mT @ (centered @ start)).Q
    basis = torch.linalg.qr(centered.mT @ (centered @ basis)).Q
    return cast(Tensor, points @ basis)


def gaussian_first_share(n: int, d: int) -> float:
    """Return the share of PC1 of n independent standard Gaussian points in R^d: (√n + √d)² / (n d), at most 1.

    Reference: Marchenko & Pastur 1967 (the edge of the spectrum).

    Example:
        >>> round(gaussian_first_share(64, 128), 4)
        0.0455
    """
    return min(1.0, (math.sqrt(n) + math.sqrt(d)) ** 2 / (n * d))


def random_subspaces(d: int, rank: int, *, draws: int, seed: int) -> Float64[Tensor, "draw d rank"]:
    """Draw orthonormal bases of uniform (Haar) random subspaces: the column spaces of Gaussian matrices.

    Raises:
        InvalidArgument: `rank` is not between 1 and d.
    """
    if not 1 <= rank <= d:
        raise InvalidArgument(f"rank of a subspace of {d} dimensions must be 1 … {d}, got {rank}.")
    gaussian = np.random.default_rng(seed).normal(size=(draws, d, rank))
    return cast(Tensor, torch.linalg.qr(torch.from_numpy(gaussian)).Q)


def restricted(
    gram: Float64[Tensor, "d d"], bases: Float64[Tensor, "draw d rank"]
) -> Float64[Tensor, "draw rank rank"]:
    """Return Bᵀ G B, the second moments of the coordinates within each subspace."""
    return bases.mT @ (gram @ bases)
