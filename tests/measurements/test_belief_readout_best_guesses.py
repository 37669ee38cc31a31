"""Clusters and centroids against best guesses: intervals over sequences, baselines, beliefs without a best guess."""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from bayesgeom.measurements.belief_readout import CONSTANT, SHUFFLE, cluster_scores, guess_scores
from bayesgeom.stats.bootstrap import shuffled_within_position
from bayesgeom.stats.readout import BeliefTargets, belief_rows, belief_targets, read_out
from bayesgeom.stats.subspace import random_subspaces

SEQUENCES, POSITIONS, H, D = 47, 5, 3, 7
TOKENS = one_hot(torch.arange(SEQUENCES * POSITIONS)[:, None] % 4 + torch.tensor([0, 1])).double()


def targets_of(belief: np.ndarray) -> BeliefTargets:
    rows = belief_rows(torch.from_numpy(belief))
    shuffled = torch.from_numpy(shuffled_within_position(rows.numpy(), np.random.default_rng(1)))
    return belief_targets(torch.stack([rows, shuffled]), 23)


@pytest.fixture
def belief(rng: np.random.Generator) -> np.ndarray:
    return rng.dirichlet(np.full(H, 0.3), size=(SEQUENCES, POSITIONS))


@pytest.fixture
def clouds(belief: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
    """The best guess with a little noise, then noise alone."""
    noise = rng.normal(size=(2, SEQUENCES, POSITIONS, D))
    guess = 20 * np.eye(H, D)[belief.argmax(-1)]
    return torch.from_numpy(np.stack([guess + noise[0], noise[1]])).flatten(1, 2)


def test_clusters_by_token_differ_from_clusters_by_guess(belief: np.ndarray, rng: np.random.Generator) -> None:
    cloud = 20 * TOKENS[:, 0] @ torch.from_numpy(rng.normal(size=(5, D))) + torch.from_numpy(
        rng.normal(size=(len(TOKENS), D))
    )
    even = np.full((1, SEQUENCES), 1 / SEQUENCES)
    scores = cluster_scores(cloud[None], targets_of(belief), TOKENS, [4], even, n_clustered=999, seed=3)
    assert scores["token_rand_index"][0][0, 0, 0] > 0.99 > 0.1 > abs(scores["rand_index"][0][0, 0, 0])


def test_nearest_centroids_by_confidence(belief: np.ndarray, clouds: torch.Tensor) -> None:
    targets = targets_of(belief)
    found = [read_out(cloud, targets, random_subspaces(D, H, draws=2, seed=0)) for cloud in clouds]
    bands = [(0.0, 2.0), (0.7, 2.0), (3.0, 4.0)]
    accuracy = guess_scores([found], targets, bands, n=SEQUENCES, seed=4)
    assert accuracy.value[0, 0, 0] == 1 > 0.6 > accuracy.value[0, 1, 0]
    low, high = accuracy.ends
    assert low[0, 1, 0] < accuracy.value[0, 1, 0] < high[0, 1, 0]
    for part in (accuracy.value, low, high, accuracy.baseline(SHUFFLE).value, accuracy.baseline(CONSTANT).value):
        assert part.shape == (1, 2, 3) and np.isnan(part[:, :, 2]).all()
    assert accuracy.baseline(CONSTANT).value[0, 0, 0] < 0.6
