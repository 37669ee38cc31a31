"""Separation of groups of points: do they cluster, do their planes differ, and is each flatter than a mixture?

Every statistic is computed for the true labels and for exchanged ones. Planes of many labelings are compared through
inner products, so that few points in many dimensions are cheap.

References:
    Björck & Golub 1973 (principal angles).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.verdict import Reason
from bayesgeom.stats.bootstrap import jackknife_weights, percentile_interval, statistic_interval
from bayesgeom.stats.clusters import left_out_silhouettes, point_silhouettes
from bayesgeom.stats.resampling import refitted_axis_shares
from bayesgeom.stats.subspace import cloud_axes, gaussian_first_share, span_coordinates, standardized, variance_shares

Prepared = Callable[[Float64[Tensor, "*sample point d"]], Float64[Tensor, "*sample point d"]]


def planes_of_groups(
    points: Float64[Tensor, "point d"],
    labels: Int64[Tensor, "labeling point"],
    *,
    n_groups: int,
    rank: int,
    prepared: Prepared,
) -> tuple[Float64[np.ndarray, " labeling"], Float64[np.ndarray, "labeling group"]]:
    """Compare the leading planes of groups of points under each labeling.

    Args:
        points: All points.
        labels: The group of each point, in each labeling; all labelings have groups of the same sizes.
        n_groups: Number of groups.
        rank: Dimensions of a plane.
        prepared: Centers the points of a group, or standardizes them.

    Returns:
        The mean principal angle in degrees over all pairs of groups, and the share of the variance of each group in its
        own plane. NaN where a group has no more points than a plane has dimensions.

    Example:
        >>> points = torch.tensor([[0, 1, 0, 0], [0, -1, 0, 0], [2, 0, 0, 0], [-2, 0, 0, 0]]).double()
        >>> labels = torch.tensor([[0, 0, 1, 1]])
        >>> angles, shares = planes_of_groups(points, labels, n_groups=2, rank=1, prepared=lambda own: own)
        >>> angles.tolist(), shares.tolist()
        ([90.0], [[1.0, 1.0]])
    """
    order = labels.argsort(dim=1, stable=True)
    members = order.split(torch.bincount(labels[0], minlength=n_groups).tolist(), dim=1)
    if min(own.shape[1] for own in members) <= rank:
        return np.full(len(labels), np.nan), np.full((len(labels), n_groups), np.nan)
    clouds = [prepared(points[own]) for own in members]
    lengths, axes = zip(*(torch.linalg.eigh(cloud @ cloud.mT) for cloud in clouds), strict=True)
    shares = [own[:, -rank:].sum(dim=1) / own.clamp_min(0.0).sum(dim=1) for own in lengths]
    angles = []
    for a, b in combinations(range(n_groups), 2):
        products = axes[a][..., -rank:].mT @ (clouds[a] @ clouds[b].mT) @ axes[b][..., -rank:]
        sizes = lengths[a][:, -rank:, None].clamp_min(0.0).sqrt() * lengths[b][:, None, -rank:].clamp_min(0.0).sqrt()
        cosines = torch.linalg.svdvals(torch.where(sizes > 0, products / sizes, 0.0))
        angles.append(cosines.clamp(0.0, 1.0).arccos().rad2deg())
    return torch.stack(angles).mean(dim=(0, 2)).numpy(), torch.stack(shares, dim=1).numpy()


RANK = 2  # of a group's plane
ABOVE_GAUSSIAN = 1.25  # a PC1 share below this multiple of that of Gaussian points has no interval


@final
@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Preparation of a sample before its plane is fitted, and the inputs of resampling."""

    standardized: bool
    seed: int

    def prepared(self, members: Float64[Tensor, "*sample point d"]) -> Float64[Tensor, "*sample point d"]:
        """Return samples with every coordinate at mean 0, and at variance 1 if `standardized`."""
        return standardized(members) if self.standardized else members - members.mean(dim=-2, keepdim=True)


@final
@dataclass(frozen=True, kw_only=True)
class Separation:
    """One layer; the first labeling is the true one, the others exchange domains."""

    silhouette_rows: Float64[np.ndarray, " replicate"]
    silhouettes: Float64[np.ndarray, " labeling"]
    angles: Float64[np.ndarray, " labeling"]
    shares: Float64[np.ndarray, "labeling group"]
    share_ends: Float64[np.ndarray, "3 group"]  # both ends, then the numbers of reasons
    gain_ends: Float64[np.ndarray, "2 group"]


def separation(
    points: Float64[Tensor, "point d"], labels: Int64[Tensor, "labeling point"], n_groups: int, preparation: Preparation
) -> Separation:
    """Measure one layer.

    Args:
        points: One vector per sequence.
        labels: The group of every point: the true ones first, then exchanged ones.
        n_groups: Number of groups.
        preparation: How a sample is prepared before its plane is fitted.

    Returns:
        Silhouettes, angles between planes and shares of variance, for every labeling, with intervals of the shares.
    """
    width = points.shape[1]
    if len(points) < width and not preparation.standardized:
        points = span_coordinates(points)
    distances = torch.cdist(points, points).expand(len(labels), -1, -1)
    silhouettes = point_silhouettes(distances, labels, n_groups)
    angles, shares = planes_of_groups(points, labels, n_groups=n_groups, rank=RANK, prepared=preparation.prepared)
    return Separation(
        silhouette_rows=left_out_silhouettes(distances[:1], labels[:1], n_groups, jackknife_weights(len(points)))[:, 0],
        silhouettes=silhouettes.mean(dim=1).numpy(),
        angles=angles,
        shares=shares,
        share_ends=np.array(
            [_share_ends(points[labels[0] == group], preparation, width) for group in range(n_groups)]
        ).T,
        gain_ends=np.stack(percentile_interval(shares[0] - shares[1:])),
    )


def _share_ends(members: Float64[Tensor, "point d"], preparation: Preparation, width: int) -> tuple[float, ...]:
    """Return the interval of a group's share of variance in its plane, and the number of its reason.

    The plane is refitted without each sequence. `width` is the dimension of the vectors, which may be given in
    coordinates of their span.
    """
    if len(members) <= RANK:
        return math.nan, math.nan, Reason.FEW
    cloud = preparation.prepared(members)
    if len(cloud) < cloud.shape[1]:
        cloud = span_coordinates(cloud)
    variances, axes = cloud_axes(cloud)
    if float(variance_shares(variances)[0]) <= ABOVE_GAUSSIAN * gaussian_first_share(len(cloud), width):
        return math.nan, math.nan, Reason.FLAT
    plane, weights = axes[:, :RANK].numpy(), jackknife_weights(len(cloud))
    rows = refitted_axis_shares(cloud[:, None].numpy(), plane, weights).sum(axis=1)
    found = statistic_interval(rows, seed=preparation.seed, scale="share")
    return float(found.lo), float(found.hi), float(found.code)
