"""Clusters: k-means for a range of k, separation by silhouettes, and agreement with given labels.

k-means finds clusters in any data, so silhouettes are compared with those of a Gaussian cloud of the same covariance.

References:
    Arthur & Vassilvitskii 2007 (k-means++, and its greedy variant); Rousseeuw 1987 (silhouette);
    Hubert & Arabie 1985 (adjusted Rand); Tibshirani, Walther & Hastie 2001 (comparison with structureless clouds).
"""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from bayesgeom.stats.subspace import cloud_axes, covariance, leading_axes

MAX_STEPS, N_STARTS, N_AXES = 30, 2, 10
_ROUNDING = 1e-12
_AT_ONCE = 2**18  # distances of jackknife rows that are processed together: they fit into the cache of a core


def cluster_clouds(
    points: Float[Tensor, "cloud point d"], counts: Sequence[int], generator: torch.Generator
) -> tuple[Float[Tensor, "cloud point point"], Int64[Tensor, "count cloud point"], Float64[np.ndarray, "cloud count"]]:
    """Run k-means on the leading principal axes of each cloud, for every number of clusters in `counts`.

    Returns:
        The distances on which silhouettes rest, the labels of the points, and the mean silhouettes of Gaussian clouds
        of the same covariances.
    """
    leading, deviations = (torch.stack(parts) for parts in zip(*map(_leading, points), strict=True))
    noise = torch.randn(leading.shape, generator=generator, dtype=points.dtype).to(points)
    clouds = torch.cat([leading, noise * deviations[:, None]])
    labels = k_means(clouds, counts, n_starts=N_STARTS, generator=generator)
    distances, n_clouds = torch.cdist(clouds, clouds), len(points)
    pairs = zip(labels[:, n_clouds:], counts, strict=True)
    of_noise = [point_silhouettes(distances[n_clouds:], split, k) for split, k in pairs]
    return distances[:n_clouds], labels[:, :n_clouds], torch.stack(of_noise, dim=1).mean(dim=2).cpu().numpy()


def _leading(points: Float[Tensor, "point d"]) -> tuple[Float[Tensor, "point axis"], Float[Tensor, " axis"]]:
    """Project a cloud on its leading principal axes; return it with its standard deviations."""
    is_wide = len(points) < points.shape[1]
    variances, axes = cloud_axes(points) if is_wide else leading_axes(covariance(points), N_AXES)
    along = (points - points.mean(dim=0)) @ axes[:, :N_AXES].to(points)
    return along, variances[:N_AXES].sqrt().to(points)


def k_means(
    points: Float[Tensor, "cloud point d"], counts: Sequence[int], *, n_starts: int, generator: torch.Generator
) -> Int64[Tensor, "count cloud point"]:
    """Return labels for each number of clusters in `counts`, the best of `n_starts` runs from k-means++ seeds.

    The best run has the smallest sum of squared distances to the own center. An emptied cluster keeps its center.
    """
    n_clouds = len(points)
    repeated = points.repeat(n_starts, 1, 1)
    seeds = _spread_seeds(repeated, max(counts), generator)
    chosen = []
    for k in counts:
        labels, spread = _lloyd(repeated, seeds[:, :k])
        best = spread.reshape(n_starts, n_clouds).argmin(dim=0)
        chosen.append(labels.reshape(n_starts, n_clouds, -1)[best, torch.arange(n_clouds, device=points.device)])
    return torch.stack(chosen)


def point_silhouettes(
    distances: Float[Tensor, "cloud point point"], labels: Int64[Tensor, "cloud point"], n_labels: int
) -> Float64[Tensor, "cloud point"]:
    """Return (b − a) / max(a, b), −1 to 1: a is the mean distance to the own cluster, b to the nearest other one.

    0 for points alone in their cluster; NaN with only one cluster.
    """
    return _silhouettes(*_totals(distances, labels, n_labels), labels)


def left_out_silhouettes(
    distances: Float[Tensor, "cloud point point"],
    labels: Int64[Tensor, "cloud point"],
    n_labels: int,
    weights: Float64[np.ndarray, "replicate point"],
) -> Float64[np.ndarray, "replicate cloud"]:
    """Return each cloud's silhouette under rows of jackknife weights, with the labels fixed.

    A point that is left out counts neither as a point nor in the distances of the others. If only the mean of the
    scores were resampled, the interval would hold the true silhouette in 72 to 78 % of planted data sets.

    Args:
        distances: Between the points of each cloud.
        labels: Cluster of every point.
        n_labels: Number of clusters.
        weights: Rows of `jackknife_weights` for the sequences of the points; 0 for a point that is left out.
    """
    total, size = _totals(distances, labels, n_labels)
    is_out = torch.from_numpy(weights == 0).to(labels.device)
    rows_at_once = max(1, _AT_ONCE // max(1, total.numel()))
    scores = [_without(part, distances, labels, total, size) for part in is_out.split(rows_at_once)]
    return torch.cat(scores).cpu().numpy()


def _totals(
    distances: Float[Tensor, "cloud point point"], labels: Int64[Tensor, "cloud point"], n_labels: int
) -> tuple[Float[Tensor, "cloud label point"], Float[Tensor, "cloud label"]]:
    """Return the total distance of each point to each cluster, and the sizes of the clusters."""
    member = torch.nn.functional.one_hot(labels, n_labels).to(distances.dtype)
    return member.mT @ distances, member.sum(dim=1)  # distances are symmetric: half the time of the other order


def _without(
    is_out: Bool[Tensor, "row point"],
    distances: Float[Tensor, "cloud point point"],
    labels: Int64[Tensor, "cloud point"],
    total: Float[Tensor, "cloud label point"],
    size: Float[Tensor, "cloud label"],
) -> Float64[Tensor, "row cloud"]:
    """Return silhouettes without some points: their distances are subtracted from the total of their cluster."""
    (n_clouds, n_labels, n_points), n_rows = total.shape, len(is_out)
    row, out = is_out.nonzero(as_tuple=True)
    of_cloud = n_rows * torch.arange(n_clouds, device=labels.device)[:, None]
    place = ((of_cloud + row) * n_labels + labels.index_select(1, out)).flatten()
    totals = total[:, None].repeat(1, n_rows, 1, 1).flatten(0, 2)
    totals.index_add_(0, place, distances.index_select(1, out).flatten(0, 1), alpha=-1)
    sizes = size[:, None].repeat(1, n_rows, 1).flatten().index_add_(0, place, size.new_ones(len(place)), alpha=-1)
    in_rows, of_points = (n_clouds, n_rows, n_labels), labels[:, None].expand(-1, n_rows, -1)
    scores = _silhouettes(totals.reshape(*in_rows, n_points), sizes.reshape(in_rows), of_points)
    return scores.masked_fill_(is_out, 0.0).sum(dim=2).T / (~is_out).sum(dim=1)[:, None]


def _silhouettes(
    total: Float[Tensor, "*cloud label point"],
    size: Float[Tensor, "*cloud label"],
    labels: Int64[Tensor, "*cloud point"],
) -> Float64[Tensor, "*cloud point"]:
    """Return the score of each point from its total distance to each cluster, whose memory is overwritten."""
    own_label, own_size = labels.unsqueeze(-2), size.gather(-1, labels)
    within = total.gather(-2, own_label).squeeze(-2).div_((own_size - 1).clamp_min_(1))
    means = total.div_(size.clamp_min(1)[..., None]).scatter_(-2, own_label, torch.inf)
    is_empty = size == 0
    if bool(is_empty.any()):
        means.masked_fill_(is_empty[..., None], torch.inf)
    other = means.amin(dim=-2)
    score = (other - within).div_(torch.maximum(within, other).clamp_min_(torch.finfo(total.dtype).tiny))
    score = score.masked_fill_(own_size <= 1, 0.0).double()
    return score.masked_fill_((~is_empty).sum(dim=-1, keepdim=True) <= 1, torch.nan)


def meetings(
    labels: Int64[Tensor, "count cloud point"], others: Float[Tensor, "point draw other"]
) -> Float64[Tensor, "cloud draw count label other"]:
    """Return the contingency table of labels and one-hot rows; an all-zero row leaves its point out."""
    member = torch.nn.functional.one_hot(labels.cpu()).double()
    return torch.einsum("klpc,pdh->ldkch", member, others.double())


def adjusted_rand(
    table: Float64[Tensor, "*batch label other"], squares: Float64[Tensor, "*batch label other"] | None = None
) -> Float64[Tensor, "*batch"]:
    """Return the adjusted Rand index of a contingency table: 1 for equal partitions, 0 expected by chance.

    (Σ C(n_ij, 2) − E) / (½ [Σ C(a_i, 2) + Σ C(b_j, 2)] − E) with E = Σ C(a_i, 2) Σ C(b_j, 2) / C(n, 2). NaN for fewer
    than two points, and if both partitions are trivial. If points have multiplicities, `squares` is the sum of their
    squares: a point is then not paired with its own copies, which always agree.
    """
    squared = table if squares is None else squares
    together = _pairs(table, squared).sum(dim=(-2, -1))
    rows, columns = (_pairs(table.sum(dim=axis), squared.sum(dim=axis)).sum(dim=-1) for axis in (-1, -2))
    expected = rows * columns / _pairs(table.sum(dim=(-2, -1)), squared.sum(dim=(-2, -1)))
    above = together - expected
    # With one cluster it is 0 in every resample; rounding would look like a spread.
    above = torch.where(above.abs() <= _ROUNDING * expected.abs(), 0.0, above)
    return above / ((rows + columns) / 2 - expected)


def resampled_agreement(
    labels: Int64[Tensor, "cloud point"],
    others: Float[Tensor, "point other"],
    owner: Int64[Tensor, " point"],
    times: Float64[Tensor, "draw sequence"],
) -> Float64[Tensor, "draw cloud"]:
    """Return `adjusted_rand` of one clustering in resamples, given the multiplicity of each sequence.

    Args:
        labels: Cluster of each point.
        others: One-hot rows to compare with.
        owner: Sequence of each point.
        times: Multiplicity of each sequence, and so of its points, in each resample.
    """
    member = torch.nn.functional.one_hot(labels.cpu()).double()
    of_points = torch.einsum("lpc,ph->plch", member, others.double())
    together = of_points.new_zeros(times.shape[1], *of_points.shape[1:]).index_add_(0, owner, of_points)
    return adjusted_rand(*(torch.tensordot(power, together, dims=1) for power in (times, times**2)))


def nearest_centroid_labels(
    points: Float[Tensor, "point d"],
    centroids: Float[Tensor, "d draw label"],
    is_known: Bool[Tensor, "draw label"],
) -> Int64[Tensor, "point draw"]:
    """Return the label whose centroid is nearest (Euclidean) to each point, among the known centroids of each draw."""
    half = torch.where(is_known, (centroids**2).sum(dim=0) / 2, torch.inf)
    return cast(Tensor, ((points @ centroids.flatten(1)).unflatten(1, half.shape) - half).argmax(dim=2))


def _spread_seeds(
    points: Float[Tensor, "cloud point d"], k: int, generator: torch.Generator
) -> Float[Tensor, "cloud k d"]:
    """Draw greedy k-means++ seeds.

    Candidates are drawn with probability proportional to their squared distance from the nearest seed. The one that
    leaves the smallest sum of these distances is the next seed, so a cluster is seldom left without one.
    """
    clouds, n_candidates = torch.arange(len(points), device=points.device), 2 + int(math.log(k))
    weight = torch.ones_like(points[:, :, 0])
    chosen: list[Tensor] = []
    for step in range(k):
        # If every point coincides with a seed, any point is a valid next seed.
        weight = torch.where(weight.sum(dim=1, keepdim=True) > 0, weight, 1.0)
        n_drawn = n_candidates if step else 1
        drawn = torch.multinomial(weight.cpu(), n_drawn, replacement=True, generator=generator).to(points.device)
        candidates = points[clouds[:, None], drawn]
        distance = torch.cdist(candidates, points).square()
        left = torch.minimum(weight[:, None], distance) if step else distance
        best = left.sum(dim=2).argmin(dim=1)
        chosen.append(candidates[clouds, best])
        weight = left[clouds, best]
    return torch.stack(chosen, dim=1)


def _lloyd(
    points: Float[Tensor, "cloud point d"], seeds: Float[Tensor, "cloud k d"]
) -> tuple[Int64[Tensor, "cloud point"], Float[Tensor, " cloud"]]:
    """Run Lloyd's iteration, at most `MAX_STEPS` times; return labels, and Σ distance² minus Σ|x|².

    A point at equal distance of two centers counts in both means: such centers coincide.
    """
    centers, moving = seeds.clone(), torch.arange(len(points), device=points.device)
    rest, nearest_before = points, torch.zeros_like(_distances(points, seeds), dtype=torch.bool)  # in no cluster
    for _ in range(MAX_STEPS):
        distance = _distances(rest, centers[moving])
        nearest = distance == distance.amin(dim=1, keepdim=True)
        has_moved = (nearest ^ nearest_before).flatten(1).view(torch.uint8).amax(dim=1) > 0  # `any` is slow
        if not bool(has_moved.all()):  # clouds whose labels do not change are finished
            moving, rest, nearest = moving[has_moved], rest[has_moved], nearest[has_moved]
        if not len(moving):
            break
        nearest_before, members = nearest, nearest.to(points.dtype)
        size = members.sum(dim=2, keepdim=True)
        centers[moving] = torch.where(size > 0, (members @ rest) / size.clamp_min(1), centers[moving])
    least = _distances(points, centers).min(dim=1)
    return least.indices, least.values.sum(dim=1)


def _distances(
    points: Float[Tensor, "cloud point d"], centers: Float[Tensor, "cloud k d"]
) -> Float[Tensor, "cloud k point"]:
    """Return squared distances minus |x|², which is the same for all centers."""
    return torch.baddbmm((centers**2).sum(dim=2, keepdim=True), centers, points.mT, alpha=-2)


def _pairs(n: Float64[Tensor, "..."], own: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Count pairs of different points among n; `own` is the number of pairs of a point with itself."""
    return (n**2 - own) / 2
