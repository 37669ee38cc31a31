"""Leading planes of groups of points, for many labelings at once: how flat each group is, and the angles between them.

Everything is computed from inner products, so that few points in many dimensions are cheap.

References:
    Björck & Golub 1973 (principal angles).
"""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

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
