"""Clouds too wide for their covariance, on fewer coordinates.

Reference: Halko, Martinsson & Tropp 2011 (randomised range finding).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def leading_coordinates(
    points: Float[Tensor, "point d"], n_axes: int, *, n_fit: int, seed: int
) -> Float[Tensor, "point axis"]:
    """Coordinates along some `n_axes` leading principal axes of the first `n_fit` points; all of d where d is no more.

    For clouds too wide for their covariance: the axes are those of the fitting points' image of a random subspace,
    sharpened by one power iteration.
    """
    if points.shape[1] <= n_axes:
        return points
    centered = points[:n_fit] - points[:n_fit].mean(dim=0)
    start = torch.randn(points.shape[1], n_axes, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(
        points
    )
    basis = torch.linalg.qr(centered.mT @ (centered @ start)).Q
    basis = torch.linalg.qr(centered.mT @ (centered @ basis)).Q
    along: Tensor = points @ basis
    return along
