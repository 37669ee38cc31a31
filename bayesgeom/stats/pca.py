"""Principal components, from covariances: how much of a cloud's spread lies along few directions.

Centered; standardized only where that is asked for, as then a coordinate no longer counts by how far it moves.
Reference: Jolliffe 2002, chapters 1–3.
"""

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.linalg import eigh
from torch import Tensor

_ROUNDING = 1e-6  # of a coordinate's size: a spread that is none


def standardized(points: Float[Tensor, "*batch point d"]) -> Float[Tensor, "*batch point d"]:
    """Every coordinate with mean 0 and variance 1 over the points; one that is constant is 0."""
    centered = points - points.mean(dim=-2, keepdim=True)
    spread = centered.square().mean(dim=-2, keepdim=True).sqrt()
    is_constant = spread <= _ROUNDING * points.abs().amax(dim=-2, keepdim=True)
    unit: Tensor = centered / torch.where(is_constant, torch.inf, spread)
    return unit


def covariance(points: Float[Tensor, "*batch point d"]) -> Float64[Tensor, "*batch d d"]:
    """Σ (x − x̄)(x − x̄)ᵀ / n over the points; multiplied in their own precision."""
    centered = points - points.mean(dim=-2, keepdim=True)
    return (centered.mT @ centered).double() / points.shape[-2]


def principal_axes(
    covariances: Float64[Tensor, "*batch d d"],
) -> tuple[Float64[Tensor, "*batch d"], Float64[Tensor, "*batch d axis"]]:
    """Variances along the principal axes, largest first, and the axes as columns of unit length.

    The sign of an axis means nothing; here its largest entry is positive, so that equal clouds give equal axes.
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
    found, columns = (torch.from_numpy(np.ascontiguousarray(own)).to(covariances.device) for own in (variances, axes))
    return found.flip(-1).clamp_min(0.0), _turned(columns.flip(-1))


def cloud_axes(
    points: Float[Tensor, "point d"],
) -> tuple[Float64[Tensor, " axis"], Float64[Tensor, "d axis"]]:
    """`principal_axes` of the points' covariance, no more of them than points.

    Fewer points than dimensions have their axes in the span of the points: nothing d × d is made.
    """
    if len(points) >= points.shape[1]:
        return principal_axes(covariance(points))
    centered = (points - points.mean(dim=0)).double()
    _, lengths, axes = torch.linalg.svd(centered, full_matrices=False)
    return lengths**2 / len(points), _turned(axes.T)


def span_coordinates(points: Float[Tensor, "point d"]) -> Float64[Tensor, "point axis"]:
    """Return the points along their own principal axes: as many numbers each as there are points, where d is larger.

    Distances, variances, principal axes and linear read-outs are those of the points, at a fraction of the cost. Axes
    have the signs of `principal_axes`.

    Args:
        points: Fewer points than dimensions, for this to pay.

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
    coordinates: Tensor = along * torch.where(largest < 0, -1.0, 1.0)
    return coordinates


def _turned(axes: Float64[Tensor, "*batch d axis"]) -> Float64[Tensor, "*batch d axis"]:
    largest = axes.gather(-2, axes.abs().argmax(dim=-2, keepdim=True))
    return axes * torch.where(largest < 0, -1.0, 1.0)


def variance_shares(variances: Float64[Tensor, "*batch d"]) -> Float64[Tensor, "*batch d"]:
    """λ_i / Σ λ: between 0 and 1, summing to 1; NaN where nothing varies."""
    return variances / variances.sum(dim=-1, keepdim=True)


def participation_ratio(variances: Float64[Tensor, "*batch d"]) -> Float64[Tensor, "*batch"]:
    """(Σ λ)² / Σ λ²: the effective number of dimensions, from 1 (a line) to d (a ball); NaN where nothing varies."""
    return variances.sum(dim=-1) ** 2 / (variances**2).sum(dim=-1)
