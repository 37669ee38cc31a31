"""Angles between subspaces, with which tests compare planted bases."""

import torch
from jaxtyping import Float
from torch import Tensor


def principal_angles(
    first: Float[Tensor, "*batch d rank"], second: Float[Tensor, "*batch d rank"]
) -> Float[Tensor, "*batch rank"]:
    """Return the principal angles of two subspaces given by orthonormal columns, in degrees, smallest first.

    0 is a shared direction, 90 an orthogonal one: arccos of the singular values of B₁ᵀ B₂.

    References:
        Björck & Golub 1973.
    """
    cosines: Tensor = torch.linalg.svdvals(first.mT @ second)
    return cosines.clamp(0.0, 1.0).arccos().rad2deg()
