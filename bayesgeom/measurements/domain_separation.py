"""Domain separation: do prompts of different domains lie on separate manifolds?

The claim is that text of one domain has fewer dimensions than mixed text, and each domain its own. Few points always
span few dimensions, and any two small samples differ. Each number is therefore compared with the same prompts with
domains exchanged, and with untrained networks.

References:
    Agarwal, Dalal & Misra 2025, Paper III of their trilogy, sections 4.2 and 5.
    Björck & Golub 1973 (principal angles); Rousseeuw 1987 (silhouette).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core import RESID_POST, Reason, Run, V
from bayesgeom.measurements.base import Control, Needs, Probe, planted_run, planted_trials, with_untrained
from bayesgeom.report.estimate import UNTRAINED, Baseline, Estimate, Quantity, Share, Signed, of_draws, smooth_estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import jackknife_weights, percentile_interval, statistic_interval
from bayesgeom.stats.clusters import left_out_silhouettes, point_silhouettes
from bayesgeom.stats.reduction import LAST_RESIDUAL, LAST_VALUES
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
    if min(members_of.shape[1] for members_of in members) <= rank:
        return np.full(len(labels), np.nan), np.full((len(labels), n_groups), np.nan)
    clouds = [prepared(points[members_of]) for members_of in members]
    lengths, axes = zip(*(torch.linalg.eigh(cloud @ cloud.mT) for cloud in clouds), strict=True)
    shares = [members_of[:, -rank:].sum(dim=1) / members_of.clamp_min(0.0).sum(dim=1) for members_of in lengths]
    angles = []
    for a, b in combinations(range(n_groups), 2):
        products = axes[a][..., -rank:].mT @ (clouds[a] @ clouds[b].mT) @ axes[b][..., -rank:]
        sizes = lengths[a][:, -rank:, None].clamp_min(0.0).sqrt() * lengths[b][:, None, -rank:].clamp_min(0.0).sqrt()
        cosines = torch.linalg.svdvals(torch.where(sizes > 0, products / sizes, 0.0))
        angles.append(cosines.clamp(0.0, 1.0).arccos().rad2deg())
    return torch.stack(angles).mean(dim=(0, 2)).numpy(), torch.stack(shares, dim=1).numpy()


RANK = 2  # of a group's plane
ABOVE_GAUSSIAN = 1.25  # a PC1 share below this multiple of that of Gaussian points has no interval


def _centered(members: Float64[Tensor, "*sample point d"]) -> Float64[Tensor, "*sample point d"]:
    return members - members.mean(dim=-2, keepdim=True)


def _share_ends(members: Float64[Tensor, "point d"], prepared: Prepared, width: int, seed: int) -> tuple[float, ...]:
    """Return the interval of a group's share of variance in its plane, and the number of its reason.

    The plane is refitted without each sequence. `width` is the dimension of the vectors, which may be given in
    coordinates of their span.
    """
    if len(members) <= RANK:
        return math.nan, math.nan, Reason.FEW
    cloud = prepared(members)
    if len(cloud) < cloud.shape[1]:
        cloud = span_coordinates(cloud)
    variances, axes = cloud_axes(cloud)
    if float(variance_shares(variances)[0]) <= ABOVE_GAUSSIAN * gaussian_first_share(len(cloud), width):
        return math.nan, math.nan, Reason.FLAT
    plane, weights = axes[:, :RANK].numpy(), jackknife_weights(len(cloud))
    rows = refitted_axis_shares(cloud[:, None].numpy(), plane, weights).sum(axis=1)
    interval = statistic_interval(rows, seed=seed, scale="share")
    return float(interval.lo), float(interval.hi), float(interval.code)


SHUFFLES = 50
EXCHANGED, MIXED = "domains exchanged", "mixed samples of the same size"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class DomainSeparationReport(Report):
    """Each prompt gives one vector, at its last token.

    If domains form clusters, the silhouette is above zero. If domains vary along different directions, the angle
    between their leading planes is large. The share of variance in the leading plane says how flat a domain's cloud is,
    next to that of a mixture. Compare with the gray lines: the same prompts with domains exchanged at random, and
    untrained networks. In many dimensions, two planes fitted to different small samples are always nearly orthogonal,
    so a large angle alone proves nothing.

    Fields: geometry of the vectors at the last scored position of each sequence, by group of sequences and layer.

    `silhouette` (−1 to 1) is of the groups as clusters. `angle_degrees` (0 to 90) is the mean principal angle between
    the leading planes of two groups, over all pairs. `pc12_share` is the share of a group's variance in its own leading
    plane, compared with mixed samples of the same size. Its interval is corrected for the jackknife bias, and withheld
    if PC1 cannot be distinguished from the next component. `pc12_gain` is the difference from mixed samples; its range
    is over single mixed samples and excludes 0 if a permutation test of size 5 % rejects.

    Baselines are random exchanges of the groups, with the range from the 2.5th to the 97.5th percentile, and untrained
    networks. `standardized`: every coordinate had variance 1 within each sample, as in Paper III.
    """

    name: ClassVar[str] = "domain_separation"
    title: ClassVar[str] = "Domain separation: do domains lie apart?"

    silhouette: Annotated[Estimate, Signed("layer", better="higher", label="silhouette of the domains")]
    angle_degrees: Annotated[
        Estimate, Quantity("layer", unit="°", better="higher", label="angle between the domains' planes")
    ]
    pc12_share: Annotated[Estimate, Share("layer group", better="higher", label="PC1 + PC2 share")]
    pc12_gain: Annotated[
        Estimate, Signed("layer group", better="higher", label="PC1 + PC2 share minus that of mixed samples")
    ]
    groups: tuple[str, ...]
    site: str
    standardized: bool
    n: int

    def headlines(self) -> Sequence[Headline]:
        where = f"{self.site}, last layer"
        flat = [
            headline_of(self, "pc12_share", (-1, i), f"PC1 + PC2 share of {name}, {where}")
            for i, name in enumerate(self.groups)
        ]
        return (
            headline_of(self, "silhouette", (-1,), f"silhouette of the domains, {where}"),
            headline_of(self, "angle_degrees", (-1,), f"angle between the domains' planes, {where}"),
            *flat,
        )

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import add_baseline, add_line, brief, estimate_panel
        from bayesgeom.report.theme import SERIES, label_axes

        layers, best = range(len(self.silhouette.value)), int(np.nan_to_num(self.silhouette.value).argmax())
        highest, angle = self.silhouette.value[best], self.angle_degrees.value[-1]
        title = f"Domains cluster most in layer {best}: silhouette {brief(highest)}"
        clusters = estimate_panel(title, ("layer", "silhouette (−1 to 1)"), layers, self.silhouette, name="domains")
        title, y = f"The domains' planes are {angle:.0f}° apart in the last layer", "mean principal angle (degrees)"
        angles = estimate_panel(title, ("layer", y), layers, self.angle_degrees, name="domains", is_folded=True)
        shares = Panel.blank("Variance of each domain in its leading plane", is_folded=True)
        gains = Panel.blank("The same, minus that of mixed samples", is_folded=True)
        mixed = self.pc12_share.baseline(MIXED).value.mean(axis=1)
        add_baseline(shares.figure, layers, mixed, name=f"baseline: {MIXED}")
        add_baseline(gains.figure, layers, 0.0, name=f"baseline: {MIXED}")
        for i, name in enumerate(self.groups):
            color, share, gain = SERIES[i % len(SERIES)], self.pc12_share[:, i], self.pc12_gain[:, i]
            add_line(shares.figure, layers, share.value, name=name, color=color)
            for level in (each for each in gain.baselines if each.name == UNTRAINED):
                add_baseline(gains.figure, layers, level.value, name=f"{UNTRAINED}, {name}", color=color)
            add_line(gains.figure, layers, gain.value, name=name, color=color, band=gain.ends)
        label_axes(shares.figure, "layer", "share of variance (0 to 1)")
        label_axes(gains.figure, "layer", "gain in share (dashed: untrained)")
        return clusters, angles, shares, gains


@final
@dataclass(frozen=True)
class DomainSeparation(Probe[DomainSeparationReport]):
    """Measure value vectors if they are recorded, else the residual stream, at each sequence's last scored position.

    `standardized` scales every coordinate of a sample to variance 1 before its plane is fitted.
    """

    name: ClassVar[str] = "domain_separation"
    needs: ClassVar[Needs] = Needs(
        sites=(RESID_POST,), optional=(V,), groups=True, streamed=(LAST_RESIDUAL, LAST_VALUES)
    )
    standardized: bool = False

    def measure(self, run: Run, untrained: Sequence[DomainSeparationReport] = ()) -> DomainSeparationReport:
        assert run.trials.groups is not None, "`needs.groups` was checked"
        groups, n_groups = run.trials.groups.cpu(), len(run.trials.group_names)
        site = V if LAST_VALUES.is_in(run) else RESID_POST
        generator = torch.Generator().manual_seed(run.seed)
        exchanged = [groups[torch.randperm(len(groups), generator=generator)] for _ in range(SHUFFLES)]
        labels, n = torch.stack([groups, *exchanged]), len(groups)
        prepared = standardized if self.standardized else _centered
        by_layer = list[tuple[np.ndarray, ...]]()
        for layer in range(run.spec.n_layers):
            vectors = LAST_VALUES if LAST_VALUES.is_in(run) else LAST_RESIDUAL
            points = vectors.at(run, layer, run.n_recorded).double().cpu()
            width = points.shape[1]
            if len(points) < width and not self.standardized:
                points = span_coordinates(points)
            distances = torch.cdist(points, points).expand(1 + SHUFFLES, -1, -1)
            left_out = left_out_silhouettes(distances[:1], labels[:1], n_groups, jackknife_weights(len(points)))
            planes = planes_of_groups(points, labels, n_groups=n_groups, rank=RANK, prepared=prepared)
            score = point_silhouettes(distances, labels, n_groups).mean(dim=1).numpy()
            members = [points[labels[0] == group] for group in range(n_groups)]
            ends = np.array([_share_ends(rows_of, prepared, width, run.seed) for rows_of in members])
            by_layer.append((left_out[:, 0], score, *planes, ends))
        rows, score, angle, share, ends = (np.stack(parts, axis=1) for parts in zip(*by_layer, strict=True))
        # The first labeling is the true one.
        score_level, angle_level = ([of_draws("permutation", EXCHANGED, drawn[1:])] for drawn in (score, angle))
        gains, mixed, (low, high, code) = share[0] - share[1:], [of_draws("permutation", MIXED, share[1:])], ends.T
        report = DomainSeparationReport(
            silhouette=smooth_estimate(rows, seed=run.seed, n=n, baselines=score_level),
            angle_degrees=Estimate.of(angle[0], n=n, baselines=angle_level),
            pc12_share=Estimate.of(share[0], (low, high), n=n, baselines=mixed, reason=code.astype(np.int64)),
            pc12_gain=Estimate.of(
                gains.mean(axis=0),
                percentile_interval(gains),
                resampled="mixed samples",
                baselines=[Baseline.of("permutation", MIXED, 0.0)],
            ),
            groups=run.trials.group_names,
            site=site.name,
            standardized=self.standardized,
            n=n,
        )
        return with_untrained(report, untrained, "silhouette", "angle_degrees", "pc12_share", "pc12_gain")

    def controls(self) -> Iterator[Control[DomainSeparationReport]]:
        rng = np.random.default_rng(0)
        labels = np.arange(66) % 3
        trials = planted_trials(np.full((66, 1, 3), 1 / 3), rng.integers(7, size=(66, 5)))
        trials = replace(trials, groups=torch.from_numpy(labels), group_names=("one", "two", "three"))
        noise = rng.normal(size=(66, 1, 13))
        centers = 9 * np.eye(3, 13)[labels][:, None]
        planes = 9 * rng.normal(size=(66, 3, 2)) * np.eye(3)[labels][:, :, None]
        flat = np.pad(planes.reshape(66, 1, 6), ((0, 0), (0, 0), (0, 7))) + 0.01 * noise
        stream = torch.from_numpy(np.stack([noise, noise + centers]))
        yield Control(
            label="noise, then clusters", run=planted_run(trials, {RESID_POST: stream}), holds=_finds_clusters
        )
        values = np.repeat(noise + centers, 5, axis=1)[None, :, :, None]
        values[0, :, -1, 0] = flat[:, 0]
        run = planted_run(trials, {RESID_POST: stream[:1], V: torch.from_numpy(values)})
        yield Control(label="planes of their own in the last values, clusters before", run=run, holds=_finds_planes)


def _finds_clusters(report: DomainSeparationReport) -> bool:
    noise, clusters = report.silhouette.value
    chance = report.silhouette.baseline(EXCHANGED)
    return bool(
        chance.high is not None and abs(noise - chance.value[0]) < 0.05 and clusters > 0.5 > float(chance.high[1])
    )


def _finds_planes(report: DomainSeparationReport) -> bool:
    exchanged = report.angle_degrees.baseline(EXCHANGED)
    return bool(
        report.site == "v"
        and report.silhouette.value[0] < 0.2
        and exchanged.high is not None
        and report.angle_degrees.value[0] > 80 > exchanged.high[0]
        and (report.pc12_share.value > 0.99).all()
        and (report.pc12_share.baseline(MIXED).value < 0.9).all()
    )
