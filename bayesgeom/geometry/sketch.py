"""Reduce clouds with too many dimensions for a covariance matrix to fewer coordinates.

References:
    Halko, Martinsson & Tropp 2011 (randomized range finding).
"""

import torch
from jaxtyping import Float
from torch import Tensor


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
    start = torch.randn(points.shape[1], n_axes, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(
        points
    )
    basis = torch.linalg.qr(centered.mT @ (centered @ start)).Q
    basis = torch.linalg.qr(centered.mT @ (centered @ basis)).Q
    along: Tensor = points @ basis
    return along
