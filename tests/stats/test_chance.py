"""Chance levels against plain simulation of the same thing."""

import math

import numpy as np
import pytest
import torch

from bayesgeom.stats.chance import at_least, falls_by_more, gaussian_shares, overlap_below
from bayesgeom.stats.overlap import overlap, pairwise_cosine
from bayesgeom.stats.pca import standardized


def test_gaussian_shares_are_those_of_correlation_matrices(rng: np.random.Generator) -> None:
    for n, d in ((41, 7), (7, 41)):
        found = gaussian_shares(n, d, rank=2, draws=40, seed=0)
        assert found.shape == (40, 2) and (found[:, 1] > found[:, 0]).all()
        slow = []
        for _ in range(200):
            spectrum = np.linalg.svd(np.asarray(standardized(torch.from_numpy(rng.normal(size=(n, d))))))[1] ** 2
            slow.append(spectrum[:2].cumsum() / spectrum.sum())
        np.testing.assert_allclose(found.mean(axis=0), np.mean(slow, axis=0), atol=4 * np.std(slow) / math.sqrt(40))


def test_few_points_pass_on_flatness_and_many_do_not() -> None:
    shares = [gaussian_shares(n, 512, rank=2, draws=10, seed=0)[:, 1].mean() for n in (5, 75)]
    assert shares[0] > 0.3 > 0.1 > shares[1]


@pytest.mark.parametrize(("n", "d", "frames"), [(5, 17, 1), (11, 16, 2), (20, 13, 1)])
def test_overlap_of_random_directions_lies_below_the_mark_as_often_as_simulated(
    n: int, d: int, frames: int, rng: np.random.Generator
) -> None:
    vectors = torch.from_numpy(rng.normal(size=(2_000, frames, n, d)))
    simulated = float((overlap(pairwise_cosine(vectors)).mean(dim=1) < 0.2).double().mean())
    assert overlap_below(n, d, frames=frames, below=0.2) == pytest.approx(simulated, abs=0.06)


def test_overlap_of_one_direction_is_unknown_and_of_one_dimension_is_one() -> None:
    assert math.isnan(overlap_below(1, 7, frames=3, below=0.2))
    assert overlap_below(5, 1, frames=1, below=0.2) == 0.0 and overlap_below(5, 1, frames=1, below=1.1) == 1.0


def test_half_of_the_layers_is_a_binomial_tail() -> None:
    each, by_hand = 0.3, 0.0
    for hits in (3, 4, 5):
        by_hand += math.comb(5, hits) * each**hits * (1 - each) ** (5 - hits)
    assert at_least(0.5, 5, each) == pytest.approx(by_hand)
    assert at_least(0.5, 4, 1.0) == 1 and at_least(0.5, 4, 0.0) == 0


def test_a_fall_between_random_layers_is_as_rare_as_simulated(rng: np.random.Generator) -> None:
    def entropy() -> np.ndarray:
        weights = np.exp(rng.normal(size=(4_000, 3, 2)))
        weights /= weights.sum(axis=2, keepdims=True)
        return np.asarray(-(weights * np.log2(weights)).sum(axis=2).mean(axis=1))

    simulated = float((1 - entropy() / entropy() > 0.1).mean())
    assert falls_by_more([2], rows=3, share=0.1, seed=0) == pytest.approx(simulated, abs=0.06)
    assert falls_by_more([37, 39], rows=1_000, share=0.3, seed=0) < 1e-6
    assert math.isnan(falls_by_more([1, 1], rows=7, share=0.3, seed=0))


def test_standardized_coordinates_have_variance_one_and_constants_are_zero(rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(11, 3)) * [1, 1e5, 0] + [5, -2, 7.0])
    unit = standardized(points)
    torch.testing.assert_close(unit.mean(dim=0), torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(unit.square().mean(dim=0), torch.tensor([1.0, 1, 0], dtype=torch.float64))
