"""Subspaces given by orthonormal columns: random ones, angles between two, and Gram matrices within them."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument

_MOST_KEPT = 2**18  # numbers in a set of bases that is cached, 2 MB


def random_subspaces(d: int, rank: int, *, draws: int, seed: int) -> Float64[Tensor, "draw d rank"]:
    """Draw orthonormal bases of uniform (Haar) random subspaces: the column spaces of Gaussian matrices.

    Raises:
        InvalidArgument: `rank` is not between 1 and d.
    """
    if not 1 <= rank <= d:
        raise InvalidArgument(f"rank of a subspace of {d} dimensions must be 1 … {d}, got {rank}.")
    if d * rank * draws > _MOST_KEPT:
        return _drawn(d, rank, draws, seed)
    return _kept(d, rank, draws, seed).clone()


def _drawn(d: int, rank: int, draws: int, seed: int) -> Float64[Tensor, "draw d rank"]:
    gaussian = np.random.default_rng(seed).normal(size=(draws, d, rank))
    basis: Tensor = torch.linalg.qr(torch.from_numpy(gaussian)).Q
    return basis


_kept = lru_cache(maxsize=2)(_drawn)  # a probe draws the same ones for each of its sites


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


def restricted(
    gram: Float64[Tensor, "d d"], bases: Float64[Tensor, "draw d rank"]
) -> Float64[Tensor, "draw rank rank"]:
    """Return Bᵀ G B, the second moments of the coordinates within each subspace."""
    return bases.mT @ (gram @ bases)
