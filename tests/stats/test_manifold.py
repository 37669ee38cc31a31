"""Clouds against entropy: every statistic against a slow twin, and what must not change it."""

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, Ridge

from bayesgeom.stats.bootstrap import shuffled_within_position
from bayesgeom.stats.manifold import (
    N_KNOTS,
    EntropyScale,
    cloud_statistics,
    head_statistics,
    shuffled_scale,
    view,
)
from bayesgeom.stats.regression import RIDGE, even_knots, natural_spline
from tests.stats.slow import partial_spearman

RELATIONS = ("spearman", "pearson", "partial_spearman", "entropy_r2", "curve_share")
SEQUENCES, FIT, POSITIONS, D, DRAWS = 43, 22, 5, 7, 3
LEVEL = np.tile(np.arange(2, 13, 2)[:POSITIONS], (SEQUENCES, 1))


def scale_of(entropy: np.ndarray) -> EntropyScale:
    return shuffled_scale(entropy, LEVEL, shuffles=DRAWS - 1, seed=5)


@pytest.fixture
def entropy(rng: np.random.Generator) -> np.ndarray:
    return (rng.uniform(0, 3, size=(SEQUENCES, POSITIONS)) + 0.2 * LEVEL).round(2)  # ties, and a trend over positions


@pytest.fixture
def points(entropy: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
    along = np.stack([4 * entropy, entropy**2, np.zeros_like(entropy)], axis=-1) @ rng.normal(size=(3, D))
    return torch.from_numpy(along + rng.normal(size=along.shape) + 20).flatten(0, 1)


def test_relations_equal_their_slow_twins(points: torch.Tensor, entropy: np.ndarray) -> None:
    found = cloud_statistics(points, scale_of(entropy))
    flat, x = entropy.ravel(), points.numpy()
    first = PCA().fit_transform(x)[:, 0]
    fit = FIT * POSITIONS
    centered = x - x[:fit].mean(axis=0)
    alpha = RIDGE * (centered[:fit] ** 2).sum() / D
    ridge = Ridge(alpha=alpha).fit(x[:fit], flat[:fit])
    gone = ((flat[fit:] - ridge.predict(x[fit:])) ** 2).sum() / ((flat[fit:] - flat[:fit].mean()) ** 2).sum()
    basis = natural_spline(flat, even_knots(flat, N_KNOTS))
    curve = LinearRegression().fit(basis[:fit], x[:fit])
    off = ((x[fit:] - curve.predict(basis[fit:])) ** 2).sum() / (centered[fit:] ** 2).sum()
    twins = {
        "spearman": abs(spearmanr(first, flat).statistic),
        "pearson": abs(pearsonr(first, flat).statistic),
        "partial_spearman": abs(partial_spearman(first, flat, LEVEL.ravel().astype(float))),
        "entropy_r2": 1 - gone,
        "curve_share": 1 - off,
    }
    assert tuple(twins) == RELATIONS
    for name, twin in twins.items():
        assert found.relation[name][0] == pytest.approx(twin, abs=1e-6), name
    shares = PCA().fit(x).explained_variance_ratio_
    assert found.shape["pc1_share"] == pytest.approx(shares[0])
    assert found.shape["pc12_share"] == pytest.approx(shares[:2].sum())
    assert found.shape["participation_ratio"] == pytest.approx(1 / (shares**2).sum())


def test_other_draws_are_what_shuffled_entropies_would_give(points: torch.Tensor, entropy: np.ndarray) -> None:
    found = cloud_statistics(points, scale_of(entropy))
    rng = np.random.default_rng(5)
    for draw in range(1, DRAWS):
        # The same generator gives the same exchange of sequences.
        alone = cloud_statistics(points, scale_of(shuffled_within_position(entropy, rng)))
        for name in RELATIONS:
            assert found.relation[name][draw] == pytest.approx(alone.relation[name][0], abs=1e-6), (name, draw)


def test_entropy_that_follows_position_is_not_identified(points: torch.Tensor, rng: np.random.Generator) -> None:
    scale = scale_of(np.sqrt(LEVEL.astype(float)))
    found = cloud_statistics(points, scale)
    assert not scale.identified
    assert np.isnan(found.relation["partial_spearman"]).all()
    for name in ("spearman", "pearson", "entropy_r2", "curve_share"):
        assert np.isfinite(found.relation[name]).all()
        np.testing.assert_allclose(found.relation[name], found.relation[name][0], atol=1e-6)
    assert scale_of(rng.uniform(size=LEVEL.shape)).identified


def test_a_constant_entropy_relates_to_nothing(points: torch.Tensor) -> None:
    found = cloud_statistics(points, scale_of(np.ones(LEVEL.shape)))
    assert all(np.isnan(found.relation[name]).all() for name in RELATIONS)


def test_heads_are_clouds_of_their_own(points: torch.Tensor, entropy: np.ndarray, rng: np.random.Generator) -> None:
    heads = (
        torch.from_numpy(rng.normal(size=(len(points), 3, D)))
        + points[:, None] * torch.tensor([0.0, 0.5, 2.0])[:, None]
    )
    share, related = head_statistics(heads, scale_of(entropy))
    for head in range(3):
        alone = cloud_statistics(heads[:, head], scale_of(entropy))
        assert share[head] == pytest.approx(alone.shape["pc1_share"])
        assert related[head] == pytest.approx(alone.relation["spearman"][0])


def test_a_view_turns_to_entropy_and_carries_the_curve(points: torch.Tensor, entropy: np.ndarray) -> None:
    flat, axes = entropy.ravel(), cloud_statistics(points, scale_of(entropy)).axes
    for sign in (1.0, -1.0):
        seen, curve = view(points, sign * axes, flat, flat)
        assert seen.shape == curve.shape == (len(flat), 3)
        assert spearmanr(seen[:, 0], flat).statistic > 0
        reference = PCA().fit_transform(points.numpy())[:, :3]
        np.testing.assert_allclose(np.abs(seen), np.abs(reference), atol=1e-8)
        basis = natural_spline(flat, even_knots(flat, N_KNOTS))
        np.testing.assert_allclose(curve, LinearRegression().fit(basis, seen).predict(basis), atol=1e-3)
