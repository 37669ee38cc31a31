"""Clusters and centroids against best guesses: intervals over sequences, nulls, and beliefs without a best guess."""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from bayesgeom.stats.best_guesses import cluster_scores, guess_scores
from bayesgeom.stats.bootstrap import bootstrap_weights, jackknife_weights, shuffled_within_position
from bayesgeom.stats.readout import BeliefTargets, belief_rows, belief_targets, read_out
from bayesgeom.stats.subspace import random_subspaces

SEQUENCES, POSITIONS, H, D = 47, 5, 3, 7
COUNTS = [2, 3, 5]

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


def test_best_guesses_are_found_with_intervals_and_nulls(belief: np.ndarray, clouds: torch.Tensor) -> None:
    weights = jackknife_weights(SEQUENCES)
    scores = cluster_scores(clouds, targets_of(belief), TOKENS, COUNTS, weights, n_clustered=151, seed=3)
    assert all(values.shape == (2, len(COUNTS)) for values in scores.values())
    assert scores["rand_index"][0, 1] == 1
    assert np.isnan(scores["rand_index_lo"][0, 1]), "no point is in the wrong cluster: how rare one is, is unknown"
    assert scores["silhouette"][0, 1] > 0.8 > scores["silhouette_null"][0, 1] + 0.2
    assert np.abs(scores["rand_index"][1]).max() < 0.1 > np.abs(scores["rand_index_null"]).max()
    for name in ("silhouette", "rand_index", "token_rand_index"):
        lo, hi = (scores[f"{name}_{end}"] for end in ("lo", "hi"))
        assert not (lo > hi).any() and np.isfinite(lo).sum() >= 4
        inside = ~((lo - 0.02 > scores[name]) | (scores[name] > hi + 0.02))
        assert inside.all(), name


def test_clusters_of_the_token_are_told_from_clusters_of_the_guess(
    belief: np.ndarray, rng: np.random.Generator
) -> None:
    cloud = 20 * TOKENS[:, 0] @ torch.from_numpy(rng.normal(size=(5, D))) + torch.from_numpy(
        rng.normal(size=(len(TOKENS), D))
    )
    even = np.full((1, SEQUENCES), 1 / SEQUENCES)
    scores = cluster_scores(cloud[None], targets_of(belief), TOKENS, [4], even, n_clustered=999, seed=3)
    assert scores["token_rand_index"][0, 0] > 0.99 > 0.1 > abs(scores["rand_index"][0, 0])


def test_nearest_centroids_by_confidence(belief: np.ndarray, clouds: torch.Tensor) -> None:
    targets = targets_of(belief)
    found = [read_out(cloud, targets, random_subspaces(D, H, draws=2, seed=0)) for cloud in clouds]
    bands = [(0.0, 2.0), (0.7, 2.0), (3.0, 4.0)]
    scores = guess_scores(found, targets, bands, seed=4)
    assert scores["nearest_centroid_accuracy"][0, 0] == 1 > 0.6 > scores["nearest_centroid_accuracy"][1, 0]
    lo, hi = (scores[f"nearest_centroid_accuracy_{end}"][1, 0] for end in ("lo", "hi"))
    assert lo < scores["nearest_centroid_accuracy"][1, 0] < hi
    assert all(np.isnan(scores[f"nearest_centroid_accuracy{end}"][:, 2]).all() for end in ("", "_lo", "_hi", "_null"))
    assert scores["constant_accuracy"].shape == (3,) and scores["constant_accuracy"][0] < 0.6


def test_ties_have_no_best_guess(clouds: torch.Tensor) -> None:
    even = targets_of(np.full((SEQUENCES, POSITIONS, H), 1 / H))
    weights = bootstrap_weights(SEQUENCES, seed=2, draws=31)
    scores = cluster_scores(clouds, even, TOKENS, COUNTS, weights, n_clustered=151, seed=3)
    assert all(np.isnan(scores[f"rand_index{end}"]).all() for end in ("", "_lo", "_hi", "_null"))
    assert np.isfinite(scores["silhouette"]).all()
