"""Subspaces: orthonormal and uniform."""

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.stats.subspace import random_subspaces, restricted

D, RANK, DRAWS = 7, 3, 5


def test_bases_are_orthonormal_and_differ() -> None:
    bases = random_subspaces(D, RANK, draws=DRAWS, seed=1)
    assert bases.shape == (DRAWS, D, RANK)
    torch.testing.assert_close(bases.mT @ bases, torch.eye(RANK, dtype=torch.float64).expand(DRAWS, -1, -1))
    assert not torch.allclose(bases[0], bases[1])
    torch.testing.assert_close(bases, random_subspaces(D, RANK, draws=DRAWS, seed=1), atol=0, rtol=0)


def test_every_direction_is_as_likely() -> None:
    bases = random_subspaces(D, RANK, draws=4_001, seed=2)
    captured = (bases**2).sum(dim=2).mean(dim=0)
    torch.testing.assert_close(captured, torch.full((D,), RANK / D, dtype=torch.float64), atol=0.015, rtol=0)


def test_restricted_moments_are_those_of_the_coordinates(rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(11, D)))
    bases = random_subspaces(D, RANK, draws=DRAWS, seed=5)
    found = restricted(points.T @ points, bases)
    for basis, moments in zip(bases, found, strict=True):
        inside = points @ basis
        torch.testing.assert_close(moments, inside.T @ inside)


@pytest.mark.parametrize("rank", [0, D + 1])
def test_impossible_ranks_are_refused(rank: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"rank of a subspace of 7 dimensions must be 1 … 7, got {rank}\."):
        random_subspaces(D, rank, draws=1, seed=0)
