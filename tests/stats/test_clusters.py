"""Clusters against scikit-learn, and on clouds whose clusters are planted."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, silhouette_samples
from sklearn.neighbors import NearestCentroid

from bayesgeom.stats.bootstrap import jackknife_weights
from bayesgeom.stats.clusters import (
    adjusted_rand,
    k_means,
    left_out_silhouettes,
    meetings,
    nearest_centroid_labels,
    point_silhouettes,
    resampled_agreement,
)

CLOUDS, POINTS, D, BLOBS = 2, 61, 5, 3


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.fixture
def blobs(rng: np.random.Generator) -> tuple[torch.Tensor, np.ndarray]:
    truth = rng.integers(BLOBS, size=(CLOUDS, POINTS))
    centers = 20 * np.eye(BLOBS, D)
    return torch.from_numpy(centers[truth] + rng.normal(size=(CLOUDS, POINTS, D))), truth


def rand_of(labels: torch.Tensor, truth: np.ndarray) -> float:
    rows = torch.nn.functional.one_hot(torch.from_numpy(truth)).double()[:, None]
    return float(adjusted_rand(meetings(labels[None, None], rows))[0, 0, 0])


def test_planted_blobs_are_found_in_every_cloud(blobs: tuple[torch.Tensor, np.ndarray]) -> None:
    points, truth = blobs
    labels = k_means(points, [2, BLOBS], n_starts=5, generator=seeded())
    assert labels.shape == (2, CLOUDS, POINTS)
    for cloud in range(CLOUDS):
        assert rand_of(labels[1, cloud], truth[cloud]) == 1


@pytest.mark.parametrize("k", [2, 7])
def test_spread_is_near_scikit_learns_best(k: int, rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(1, POINTS, D)))
    labels = k_means(points, [k], n_starts=11, generator=seeded())[0, 0]
    spread = sum(float(((c := points[0][labels == i]) - c.mean(dim=0)).pow(2).sum()) for i in labels.unique())
    assert spread <= 1.05 * KMeans(k, n_init=20, random_state=0).fit(points[0].numpy()).inertia_


def test_points_that_coincide_are_no_trouble() -> None:
    labels = k_means(torch.ones(1, 11, 2), [3], n_starts=2, generator=seeded())
    assert labels.shape == (1, 1, 11) and labels.unique().numel() == 1


@pytest.mark.parametrize("k", [2, 5])
def test_silhouette_is_scikit_learns(k: int, rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(CLOUDS, POINTS, D)))
    labels = torch.from_numpy(rng.integers(k, size=(CLOUDS, POINTS)))
    labels[0, labels[0] == 1] = 0
    labels[0, 7] = 1  # alone in its cluster
    found = point_silhouettes(torch.cdist(points, points), labels, k + 1)  # one label is never used
    for cloud in range(CLOUDS):
        np.testing.assert_allclose(found[cloud], silhouette_samples(points[cloud], labels[cloud]), atol=1e-6)


@pytest.mark.parametrize("n_others", [1, 3, 7])
def test_adjusted_rand_is_scikit_learns(n_others: int, rng: np.random.Generator) -> None:
    labels, truth = torch.from_numpy(rng.integers(4, size=POINTS)), rng.integers(n_others, size=POINTS)
    truth[:20] = (labels[:20] % n_others).numpy()
    assert rand_of(labels, truth) == pytest.approx(adjusted_rand_score(truth, labels), abs=1e-12)


def test_adjusted_rand_of_nothing_is_unknown() -> None:
    assert adjusted_rand(torch.zeros(2, 3, 5, dtype=torch.float64)).isnan().all()


def test_meetings_are_counted_and_empty_rows_left_out(rng: np.random.Generator) -> None:
    labels = torch.from_numpy(rng.integers(3, size=(2, CLOUDS, POINTS)))
    labels[:, :, 0] = 2
    others = torch.nn.functional.one_hot(torch.from_numpy(rng.integers(5, size=(POINTS, 7))), 5).double()
    others[:11] = 0
    table = meetings(labels, others)
    assert table.shape == (CLOUDS, 7, 2, 3, 5)
    for cloud, draw, count, label, other in np.ndindex(*table.shape):
        twin = sum(
            int(labels[count, cloud, point]) == label and float(others[point, draw, other]) == 1
            for point in range(POINTS)
        )
        assert int(table[cloud, draw, count, label, other]) == twin


def test_resampled_agreement_counts_pairs_of_different_points_alone(rng: np.random.Generator) -> None:
    labels, truth = torch.from_numpy(rng.integers(3, size=(CLOUDS, 13))), rng.integers(5, size=13)
    others = torch.nn.functional.one_hot(torch.from_numpy(truth), 5).double()
    owner = torch.from_numpy(np.sort(rng.integers(11, size=13)))  # some sequences have several points, some none
    of_sequences = torch.from_numpy(rng.integers(0, 4, size=(7, 11))).double()
    draws = torch.cat([torch.ones(1, 11, dtype=torch.float64), of_sequences])
    found, times = resampled_agreement(labels, others, owner, draws), of_sequences[:, owner]
    for cloud in range(CLOUDS):
        assert float(found[0, cloud]) == pytest.approx(adjusted_rand_score(truth, labels[cloud]), abs=1e-12)
        for draw in range(7):
            weight = np.triu(np.outer(times[draw], times[draw]), 1)
            a, b = (np.equal.outer(x, x) for x in (labels[cloud].numpy(), truth))
            together, rows, columns = (float((weight * x).sum()) for x in (a & b, a, b))
            expected = rows * columns / weight.sum()
            twin = (together - expected) / ((rows + columns) / 2 - expected)
            assert float(found[draw + 1, cloud]) == pytest.approx(twin, abs=1e-12)


def test_nearest_centroid_is_scikit_learns(blobs: tuple[torch.Tensor, np.ndarray]) -> None:
    points, truth = blobs[0][0] / 10, blobs[1][0]
    reference = NearestCentroid().fit(points, truth)
    centroids = torch.from_numpy(reference.centroids_.T.copy())
    of_draws = torch.stack([centroids, centroids], dim=1)
    is_known = torch.tensor([[True, True, True], [True, False, True]])
    labels, without = nearest_centroid_labels(points, of_draws, is_known).T
    assert labels.tolist() == reference.predict(points).tolist()
    assert 1 not in without


def test_a_sequence_that_is_left_out_counts_neither_as_points_nor_in_distances(rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(CLOUDS, POINTS, D)))
    labels, owner = torch.from_numpy(rng.integers(3, size=(CLOUDS, POINTS))), np.arange(POINTS) % 7
    weights = jackknife_weights(7)[:, owner]
    found = left_out_silhouettes(torch.cdist(points, points), labels, 3, weights)
    for row, weight in zip(found, weights, strict=True):
        kept = weight > 0
        for cloud, score in enumerate(row):
            expected = silhouette_samples(points[cloud, kept], labels[cloud, kept]).mean()
            assert float(score) == pytest.approx(expected, abs=1e-6)
