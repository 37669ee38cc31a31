"""Principal components against scikit-learn, and what must not change them."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from bayesgeom.stats.subspace import (
    cloud_axes,
    covariance,
    leading_coordinates,
    principal_axes,
    variance_shares,
)

POINTS, D = 31, 7


@pytest.fixture
def cloud(rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=(POINTS, D)) @ np.diag([5.0, 3, 2, 1, 1, 0.5, 0.1]) + 11)


def shares(points: torch.Tensor) -> torch.Tensor:
    return variance_shares(principal_axes(covariance(points))[0])


def test_axes_and_shares_are_scikit_learns(cloud: torch.Tensor) -> None:
    reference = PCA().fit(cloud.numpy())
    _, axes = principal_axes(covariance(cloud))
    np.testing.assert_allclose(shares(cloud), reference.explained_variance_ratio_, atol=1e-12)
    np.testing.assert_allclose(np.abs(axes.T.numpy()), np.abs(reference.components_), atol=1e-8)


def test_largest_entry_of_each_axis_is_positive(cloud: torch.Tensor) -> None:
    axes, of_mirrored = (principal_axes(covariance(points))[1] for points in (cloud, -cloud))
    assert (axes.gather(0, axes.abs().argmax(dim=0, keepdim=True)) > 0).all()
    torch.testing.assert_close(axes, of_mirrored)


def test_clouds_in_a_batch_are_treated_alone(rng: np.random.Generator) -> None:
    clouds = torch.from_numpy(rng.normal(size=(3, 5, POINTS, D)))
    variances, axes = principal_axes(covariance(clouds))
    for i, j in np.ndindex(3, 5):
        one, of_one = principal_axes(covariance(clouds[i, j]))
        torch.testing.assert_close(variances[i, j], one)
        torch.testing.assert_close(axes[i, j], of_one)


def test_a_cloud_that_does_not_vary_has_no_shape() -> None:
    variances, _ = principal_axes(covariance(torch.ones(5, 3)))
    assert variance_shares(variances).isnan().all()


@pytest.mark.parametrize("n_points", [2, D, POINTS])
def test_axes_of_few_points_are_those_of_their_covariance(cloud: torch.Tensor, n_points: int) -> None:
    few = cloud[:n_points]
    (variances, axes), (expected, whole) = cloud_axes(few), principal_axes(covariance(few))
    n = min(n_points, D)
    assert variances.shape == (n,) and axes.shape == (D, n)
    torch.testing.assert_close(variances, expected[:n])
    assert (expected[n:] < 1e-12).all(), "nothing is left out"
    rank = min(n_points - 1, D)  # what does not vary has any axis
    torch.testing.assert_close(axes[:, :rank], whole[:, :rank])


def test_sketch_of_a_low_rank_cloud_is_exact(rng: np.random.Generator) -> None:
    flat = rng.normal(size=(53, 7)) @ rng.normal(size=(7, 211))
    points = torch.from_numpy(flat - flat[:29].mean(0))
    along = leading_coordinates(points, 11, n_fit=29, seed=0)
    assert along.shape == (53, 11)
    torch.testing.assert_close(along @ along.T, points @ points.T)


def test_leading_axes_come_first(rng: np.random.Generator) -> None:
    strong = rng.normal(size=(97, 3)) @ np.linalg.qr(rng.normal(size=(211, 3)))[0].T
    points = torch.from_numpy(30 * strong + 0.1 * rng.normal(size=(97, 211)))
    along = leading_coordinates(points, 5, n_fit=61, seed=1)
    lost = points.square().sum() - along.square().sum()
    assert 0 < float(lost / points.square().sum()) < 0.01


def test_narrow_clouds_stay_as_they_are(rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(13, 5)))
    assert leading_coordinates(points, 5, n_fit=7, seed=0) is points
    wide = torch.from_numpy(rng.normal(size=(13, 11)))
    one, again, other = (leading_coordinates(wide, 5, n_fit=7, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)
