"""Resampled statistics against the same statistics of sequences that were really repeated."""

import numpy as np
import pytest
import torch
from scipy.stats import rankdata, spearmanr

from bayesgeom.stats.bootstrap import bootstrap_weights, jackknife_weights
from bayesgeom.stats.regression import without_level_means
from bayesgeom.stats.resampling import (
    order_under_permutation,
    refitted_axis_shares,
    resampled_axis_shares,
    resampled_correlation_at_position,
    resampled_order,
    resampled_spearman,
)
from bayesgeom.stats.subspace import covariance, principal_axes, variance_shares
from tests.stats.slow import partial_spearman

SEQUENCES, POSITIONS, D, DRAWS = 13, 5, 3, 7


@pytest.fixture
def cloud(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    entropy = rng.normal(size=(SEQUENCES, POSITIONS)).round(1)  # with ties
    points = rng.normal(size=(SEQUENCES, POSITIONS, D)) + entropy[..., None] * np.array([2.0, 1, 0]) + 50
    return points, entropy


WEIGHTS = bootstrap_weights(SEQUENCES, seed=1, draws=DRAWS)
EVEN = np.full((1, SEQUENCES), 1 / SEQUENCES)


def repeated(draw: int) -> np.ndarray:
    counts = np.rint(WEIGHTS[draw] * SEQUENCES).astype(int)
    return np.repeat(np.arange(SEQUENCES), counts)


def test_spearman_is_that_of_the_repeated_sequences(cloud: tuple[np.ndarray, np.ndarray]) -> None:
    points, entropy = cloud
    found = resampled_spearman(points[..., 0], entropy, WEIGHTS)
    for draw in range(DRAWS):
        rows = repeated(draw)
        twin = spearmanr(points[rows, :, 0].ravel(), entropy[rows].ravel()).statistic
        assert found[draw] == pytest.approx(twin, abs=1e-12)


def test_axis_share_is_that_of_the_repeated_sequences(cloud: tuple[np.ndarray, np.ndarray]) -> None:
    points, axis = cloud[0], np.array([0.6, 0.8, 0.0])
    found = resampled_axis_shares(points, np.stack([np.eye(D)[2], axis], axis=1), WEIGHTS)
    assert found.shape == (2, DRAWS)
    for draw in range(DRAWS):
        again = points[repeated(draw)].reshape(-1, D)
        assert found[1, draw] == pytest.approx((again @ axis).var() / again.var(axis=0).sum(), abs=1e-9)
        assert found[0, draw] == pytest.approx(again[:, 2].var() / again.var(axis=0).sum(), abs=1e-9)


def test_correlation_at_position_is_that_of_the_repeated_sequences(cloud: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = cloud[0][..., 0], cloud[1]
    found = resampled_correlation_at_position(x, y, WEIGHTS)
    for draw in range(DRAWS):
        a, b = (v[repeated(draw)] - v[repeated(draw)].mean(axis=0) for v in (x, y))
        assert found[draw] == pytest.approx((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()), abs=1e-9)


def test_even_weights_give_back_the_statistics_themselves(cloud: tuple[np.ndarray, np.ndarray]) -> None:
    points, entropy = cloud
    level = np.tile(np.arange(POSITIONS), (SEQUENCES, 1))
    variances, axes = principal_axes(covariance(torch.from_numpy(points.reshape(-1, D))))
    first = points @ axes[:, 0].numpy()
    found = resampled_order(first, entropy, level, EVEN)
    shares = resampled_axis_shares(points, axes.numpy(), EVEN)[:, 0]
    np.testing.assert_allclose(shares, variance_shares(variances).numpy())
    assert found["spearman"][0] == pytest.approx(abs(spearmanr(first.ravel(), entropy.ravel()).statistic))
    partial = partial_spearman(first.ravel(), entropy.ravel(), level.ravel().astype(float))
    assert found["partial_spearman"][0] == pytest.approx(abs(partial))


def test_partial_correlation_is_unknown_where_entropy_follows_position(cloud: tuple[np.ndarray, np.ndarray]) -> None:
    level = np.tile(np.arange(POSITIONS), (SEQUENCES, 1))
    found = resampled_order(cloud[0][..., 0], level.astype(np.float64), level, WEIGHTS)
    assert np.isnan(found["partial_spearman"]).all() and np.isfinite(found["spearman"]).all()
    assert (without_level_means(rankdata(level.ravel())[:, None], level.ravel()) == 0).all()


def test_refitted_shares_are_those_of_an_eigendecomposition_of_each_resample(rng: np.random.Generator) -> None:
    points = rng.normal(size=(SEQUENCES, POSITIONS, D)) * np.array([9.0, 2.0, 1.0])
    axes = np.linalg.eigh(np.cov(points.reshape(-1, D).T))[1][:, ::-1][:, :2]
    weights = np.concatenate([jackknife_weights(SEQUENCES), WEIGHTS])
    found = refitted_axis_shares(points, axes, weights, steps=9)
    for row, own in zip(found, weights, strict=True):
        cov = np.cov(points.reshape(-1, D).T, aweights=np.repeat(own, POSITIONS), ddof=0)
        np.testing.assert_allclose(row, np.linalg.eigvalsh(cov)[::-1][:2] / np.trace(cov), rtol=1e-6)


def test_permuted_orders_of_several_clouds_equal_a_loop(rng: np.random.Generator) -> None:
    first, entropy = rng.normal(size=(2, 3, SEQUENCES, POSITIONS)), rng.normal(size=(SEQUENCES, POSITIONS))
    level = np.tile(np.arange(POSITIONS), (SEQUENCES, 1))
    orders = np.stack([rng.permutation(SEQUENCES) for _ in range(DRAWS)])
    found = order_under_permutation(first, entropy, level, orders)
    for draw, i, j in np.ndindex(DRAWS, 2, 3):
        x, y = first[i, j].ravel(), entropy[orders[draw]].ravel()
        assert found["spearman"][draw, i, j] == pytest.approx(spearmanr(x, y).statistic)
        assert found["partial_spearman"][draw, i, j] == pytest.approx(partial_spearman(x, y, level.ravel()))
    constant = order_under_permutation(np.ones((SEQUENCES, POSITIONS)), entropy, level, orders)
    assert all(np.isnan(own).all() and own.shape == (DRAWS,) for own in constant.values())
