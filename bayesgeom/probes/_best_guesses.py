"""Measure whether vectors form clusters, and whether the clusters are the best guesses or the token just read.

The best guess is the most probable hypothesis. Any accurate model clusters by best guess to some degree, so each score
has a chance level from Gaussian clouds or shuffled beliefs. Intervals are over sequences, because points of one
sequence are not independent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesgeom.stats.bootstrap import ratio_interval, statistic_interval
from bayesgeom.stats.clusters import (
    Clusters,
    adjusted_rand,
    cluster_clouds,
    left_out_silhouettes,
    meetings,
    resampled_agreement,
)
from bayesgeom.stats.intervals import Interval
from bayesgeom.stats.readout import LABEL, BeliefTargets, CloudScores, Readout, commonest, in_bands


@final
@dataclass(frozen=True, kw_only=True)
class ClusterScores:
    """Scores of k-means by cloud and number of clusters; the chance level of `silhouette` is a Gaussian cloud."""

    silhouette: CloudScores
    rand_index: CloudScores
    token_rand_index: CloudScores


def cluster_scores(
    clouds: Float[Tensor, "cloud point d"],
    targets: BeliefTargets,
    tokens: Float[Tensor, "point shuffle token"],
    counts: Sequence[int],
    weights: Float64[np.ndarray, "draw sequence"],
    *,
    n_clustered: int,
    seed: int,
) -> ClusterScores:
    """Run k-means on a sample of the points and score the clusters.

    `silhouette` measures separation. `rand_index` and `token_rand_index` compare the clusters with the best guesses and
    with the token just read. The chance level of silhouettes is a Gaussian cloud; that of adjusted Rand indices is
    shuffled beliefs or tokens. Intervals are over all sequences with the clusters fixed; `weights` are the
    `jackknife_weights` of all sequences. Tokens are one-hot rows: the first draw is the true one, others are shuffled.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(clouds.shape[1], generator=generator)[:n_clustered].sort().values
    found = cluster_clouds(clouds[:, chosen], counts, generator)
    owner = chosen // targets.n_positions

    def agreement(others: Float[Tensor, "point shuffle label"]) -> CloudScores:
        indices = adjusted_rand(meetings(found.labels, others)).numpy()
        ends = statistic_interval(_resampled_agreement(found, others[:, 0], owner, weights), seed=seed)
        return _scored(indices[:, 0], ends, indices[:, 1:].mean(axis=1))

    silhouettes = statistic_interval(_resampled_silhouettes(found, counts, owner, weights), seed=seed)
    return ClusterScores(
        silhouette=_scored(
            found.point_scores.mean(dim=2).cpu().numpy(), silhouettes, found.gaussian_scores.cpu().numpy()
        ),
        rand_index=agreement(targets.values[chosen, :, LABEL]),
        token_rand_index=agreement(tokens[chosen]),
    )


def guess_scores(
    readouts: Sequence[Readout],
    targets: BeliefTargets,
    bands: Sequence[tuple[float, float]],
    *,
    seed: int = 0,
) -> tuple[CloudScores, Float64[np.ndarray, " band"]]:
    """Return the accuracy of predicting the best guess by the nearest centroid, by cloud and band of confidence.

    Returns:
        The accuracy, with the accuracy after a shuffle as its chance level, and the accuracy of always predicting the
        most common guess.
    """
    is_counted = in_bands(targets, bands)
    n_points = is_counted.sum(axis=2, dtype=np.float64)  # band, sequence, draw
    rows = []
    for readout in readouts:
        n_hits = (readout.hits & is_counted).sum(axis=2, dtype=np.float64)
        everything = _ratio(n_hits.sum(axis=1), n_points.sum(axis=1))
        found = ratio_interval(n_hits[:, :, 0].T, n_points[:, :, 0].T, seed=seed, bounds=(0.0, 1.0))
        rows.append((everything[:, 0], found.lo, found.hi, found.code, everything[:, 1:].mean(axis=1)))
    value, low, high, code, level = (np.stack(column) for column in zip(*rows, strict=True))
    return CloudScores(value=value, low=low, high=high, code=code, level=level), commonest(targets, is_counted)


def _scored(
    value: Float64[np.ndarray, "*cloud"], interval: Interval, level: Float64[np.ndarray, "*cloud"]
) -> CloudScores:
    return CloudScores(value=value, low=interval.lo, high=interval.hi, code=interval.code, level=level)


def _resampled_silhouettes(
    found: Clusters,
    counts: Sequence[int],
    owner: Int64[Tensor, " point"],
    weights: Float64[np.ndarray, "draw sequence"],
) -> Float64[np.ndarray, "draw cloud count"]:
    """Return silhouettes with the points of sequences left out."""
    counted = weights[:, owner.numpy()]
    parts = (
        left_out_silhouettes(found.distances, labels, k, counted)
        for labels, k in zip(found.labels, counts, strict=True)
    )
    return np.stack(list(parts), axis=2)


def _resampled_agreement(
    found: Clusters,
    labels: Float[Tensor, "point hypothesis"],
    owner: Int64[Tensor, " point"],
    weights: Float64[np.ndarray, "draw sequence"],
) -> Float64[np.ndarray, "draw cloud count"]:
    """Return adjusted Rand indices of tables in which each point counts as often as its sequence."""
    occurring = labels[:, labels.any(dim=0)]  # a hypothesis that is never the best guess has empty columns
    times = torch.from_numpy(weights * weights.shape[1])
    drawn = [resampled_agreement(of_count, occurring, owner, times) for of_count in found.labels]
    return torch.stack(drawn, dim=2).numpy()


def _ratio(above: Float64[np.ndarray, "*axes"], below: Float64[np.ndarray, "*axes"]) -> Float64[np.ndarray, "*axes"]:
    """Divide; NaN where the denominator is 0."""
    return np.asarray(above / np.where(below > 0, below, np.nan))
