"""Planes of groups from inner products, against singular value decompositions of each cloud in turn."""

from itertools import combinations

import numpy as np
import pytest
import torch

from bayesgeom.measurements.domain_separation import planes_of_groups
from bayesgeom.stats import manifold
from bayesgeom.stats.subspace import (
    cloud_axes,
    covariance,
    leading_axes,
    principal_axes,
    span_coordinates,
    standardized,
    variance_shares,
)
from tests.angles import principal_angles


def _one_by_one(points: torch.Tensor, labels: torch.Tensor, n_groups: int, rank: int) -> tuple[float, list[float]]:
    bases, shares = [], []
    for group in range(n_groups):
        variances, axes = cloud_axes(points[labels == group])
        bases.append(axes[:, :rank])
        shares.append(float(variance_shares(variances)[:rank].sum()))
    return float(torch.stack([principal_angles(a, b).mean() for a, b in combinations(bases, 2)]).mean()), shares


@pytest.mark.parametrize("d", [5, 41])
def test_all_labelings_at_once_are_each_by_itself(d: int, rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(31, d)) * np.geomspace(1, 100, d))
    true = torch.tensor([0] * 7 + [1] * 11 + [2] * 13)
    labels = torch.stack([true, *(true[torch.from_numpy(rng.permutation(31))] for _ in range(3))])
    angles, shares = planes_of_groups(
        points, labels, n_groups=3, rank=2, prepared=lambda own: own - own.mean(dim=-2, keepdim=True)
    )
    for row, drawn in enumerate(labels):
        angle, share = _one_by_one(points, drawn, 3, 2)
        assert angles[row] == pytest.approx(angle, abs=1e-9)
        np.testing.assert_allclose(shares[row], share, rtol=1e-11)


def test_each_sample_is_standardized_alone(rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(17, 23)))
    labels = torch.tensor([[0] * 8 + [1] * 9])
    angles, shares = planes_of_groups(points, labels, n_groups=2, rank=2, prepared=standardized)
    alone = torch.cat([standardized(points[:8]), standardized(points[8:])])
    angle, share = _one_by_one(alone, labels[0], 2, 2)
    assert angles[0] == pytest.approx(angle, abs=1e-9)
    np.testing.assert_allclose(shares[0], share, rtol=1e-11)


def test_too_small_a_group_has_no_plane(rng: np.random.Generator) -> None:
    points, labels = torch.from_numpy(rng.normal(size=(7, 11))), torch.tensor([[0, 0, 1, 1, 1, 1, 1]])
    angles, shares = planes_of_groups(points, labels, n_groups=2, rank=2, prepared=lambda own: own)
    assert np.isnan(angles).all() and np.isnan(shares).all()


def test_coordinates_of_the_span_keep_axes_and_signs(rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(7, 29)) * np.geomspace(1, 10, 29))
    found = span_coordinates(points)
    assert found.shape == (7, 7)
    centered = points - points.mean(dim=0)
    torch.testing.assert_close(found @ found.T, centered @ centered.T)
    variances, axes = cloud_axes(points)
    torch.testing.assert_close(found[:, :6], (centered @ axes)[:, :6])  # the seventh has no variance
    own, turned = cloud_axes(found)
    torch.testing.assert_close(own[:6], variances[:6])
    torch.testing.assert_close(turned[:, :6].abs(), torch.eye(7, 6, dtype=torch.float64), atol=1e-6, rtol=0)
    assert bool((turned[:, :6].sum(dim=0) > 0).all())


def test_leading_axes_are_the_first_of_all(rng: np.random.Generator) -> None:
    spread = covariance(torch.from_numpy(rng.normal(size=(37, 23)) * np.geomspace(1, 30, 23)))
    variances, axes = principal_axes(spread)
    own, turned = leading_axes(spread, 3)
    torch.testing.assert_close(own, variances[:3])
    torch.testing.assert_close(turned, axes[:, :3])


def test_coordinates_of_the_span_give_the_same_statistics(rng: np.random.Generator) -> None:
    entropy, level = rng.uniform(size=(13, 2)), np.tile(np.arange(2), (13, 1))
    scale = manifold.shuffled_scale(entropy, level, shuffles=2, seed=0)
    points = torch.from_numpy(rng.normal(size=(26, 61)) * np.geomspace(1, 9, 61) + entropy.reshape(-1, 1))
    whole = manifold.cloud_statistics(points, scale)
    spanned = manifold.cloud_statistics(span_coordinates(points), scale, width=61)
    for name, value in whole.shape.items():
        assert spanned.shape[name] == pytest.approx(value, rel=1e-9)
    for name, values in whole.relation.items():
        np.testing.assert_allclose(spanned.relation[name], values, rtol=1e-6, err_msg=name)
