"""Belief clusters: clusters and centroids against best guesses, with intervals and baselines."""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from bayesgeom.core.run import RESID_POST
from bayesgeom.measurements import _beliefs, belief_clusters
from bayesgeom.measurements._beliefs import SHUFFLE
from bayesgeom.measurements.base import planted_run
from bayesgeom.measurements.belief_clusters import CONSTANT, GAUSSIAN, BeliefClusters, cluster_scores, guess_scores
from bayesgeom.stats.bootstrap import shuffled_within_position
from bayesgeom.stats.readout import BeliefTargets, belief_rows, belief_targets
from bayesgeom.tasks.hmm import HMM
from tests.measurements.beliefs import CHAIN, DISTINCT, GUESSES, NOISE, N, planted, recurrent
from tests.measurements.beliefs import D as WIDTH

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
    bands = [(0.0, 2.0), (0.7, 2.0), (3.0, 4.0)]
    accuracy = guess_scores([clouds], targets, bands, n=SEQUENCES, seed=4)
    assert accuracy.value[0, 0, 0] == 1 > 0.6 > accuracy.value[0, 1, 0]
    low, high = accuracy.ends
    assert low[0, 1, 0] < accuracy.value[0, 1, 0] < high[0, 1, 0]
    for part in (accuracy.value, low, high, accuracy.baseline(SHUFFLE).value, accuracy.baseline(CONSTANT).value):
        assert part.shape == (1, 2, 3) and np.isnan(part[:, :, 2]).all()
    assert accuracy.baseline(CONSTANT).value[0, 0, 0] < 0.6


def test_best_guesses_are_clusters() -> None:
    report = BeliefClusters().measure(planted(CHAIN))
    at_three = report.cluster_counts.index("3")
    silhouette = report.silhouette[0, GUESSES, at_three]
    assert report.rand_index.value[0, GUESSES, at_three] > 0.95 and float(silhouette) > 0.9
    assert float(silhouette) > 2 * float(silhouette.baseline(GAUSSIAN).value)
    assert abs(report.rand_index.value[0, NOISE]).max() < 0.1 > abs(report.rand_index.baseline(SHUFFLE).value).max()
    nearest = report.nearest_centroid_accuracy
    assert np.nanmin(nearest.value[0, GUESSES]) == 1
    assert nearest.value[0, NOISE, 0] < 0.6 > nearest.baseline(SHUFFLE).value[0, GUESSES, 0]
    assert 1 / 3 <= nearest.baseline(CONSTANT).value[0, 0, 0] < 0.6


def test_without_returning_keys_there_is_no_best_guess() -> None:
    report = BeliefClusters().measure(planted(DISTINCT))
    assert np.isnan(report.rand_index.value).all() and np.isnan(report.nearest_centroid_accuracy.value).all()
    assert np.isfinite(report.silhouette.value).all()


def test_sizes_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    report = BeliefClusters().measure(planted())
    assert (report.n, report.n_clustered, report.n_hypotheses) == (N, N * 7, 5)
    monkeypatch.setattr(_beliefs, "MAX_POINTS", 31 * 7 + 3)
    monkeypatch.setattr(belief_clusters, "N_CLUSTERED", 101)
    less = BeliefClusters().measure(planted())
    assert (less.n, less.n_clustered) == (31, 101)


def test_a_recurrent_state_is_clustered_with_the_residual_stream() -> None:
    report = BeliefClusters().measure(recurrent())
    stream, state = range(2)
    at_three = report.cluster_counts.index("3")
    rand_index, silhouette = report.rand_index.value[:, :, at_three], report.silhouette[state, GUESSES, at_three]
    assert rand_index[state, GUESSES] > 0.95 > 0.1 > rand_index[stream, -1]
    assert silhouette.ends[0] > silhouette.baseline(GAUSSIAN).value + 0.3
    lines = {line.label: (line.metric, line.value) for line in report.headlines()}
    assert lines["silhouette, k = 3 in state, last layer"] == (
        "silhouette",
        report.silhouette.value[state, -1, at_three],
    )
    assert any(panel.title.startswith("Clusters, silhouette (state)") for panel in report.panels())


def test_five_planted_clusters_are_five_and_a_filled_simplex_is_not() -> None:
    """What "five clusters, one per state" must look like, and what an accurate model without clusters looks like."""
    task = HMM(n_states=5, n_symbols=5, length=7, floor=0.05)
    trials, rng = task.sample(N, seed=0), np.random.default_rng(0)
    belief = trials.at_scored(trials.belief).numpy()
    corners = 9 * np.eye(5, WIDTH)[belief.argmax(axis=-1)] + 0.1 * rng.normal(size=(*belief.shape[:2], WIDTH))
    filled = belief @ rng.normal(size=(5, WIDTH))
    report = BeliefClusters().measure(planted_run(trials, {RESID_POST: torch.from_numpy(np.stack([corners, filled]))}))
    at_five = report.cluster_counts.index("5")
    clusters, simplex = range(2)
    silhouette = report.silhouette[0, :, at_five]
    assert report.silhouette.value[0, clusters].argmax() == at_five and silhouette.ends[0][clusters] > 0.8
    assert report.rand_index.value[0, clusters, at_five] > 0.95
    assert silhouette.value[simplex] < silhouette.baseline(GAUSSIAN).value[simplex] + 0.15
    # k-means divides a filled simplex near the borders of the best guesses, so its parts agree with them partly.
    assert report.rand_index.value[0, simplex, at_five] < 0.7
    assert report.nearest_centroid_accuracy.value[0, simplex, 0] > 0.7, "the best guess can be told without any cluster"
