"""Domain separation: do prompts of different domains lie on manifolds of their own?

The claim is that text of one domain collapses to fewer dimensions than mixed text does, each domain to its own. A
cloud of few points always has few dimensions, and any two small samples differ; so every number stands beside the same
prompts with domains exchanged, and beside the network before training.

References: Agarwal, Dalal & Misra 2025, Paper III of their trilogy, sections 4.2 and 5; Björck & Golub 1973
(principal angles); Rousseeuw 1987 (silhouette).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesgeom.core.run import Run
from bayesgeom.core.sites import RESID_POST, V
from bayesgeom.core.trials import Trials
from bayesgeom.probes.base import Control, Needs, Probe, mean_over_copies, planted_run, planted_trials
from bayesgeom.results.report import Headline, Report
from bayesgeom.stats.bootstrap import jackknife_weights, mean_interval, percentile_interval, statistic_interval
from bayesgeom.stats.chance import gaussian_first_share
from bayesgeom.stats.clusters import point_silhouettes
from bayesgeom.stats.pca import cloud_axes, standardised, variance_shares
from bayesgeom.stats.resampling import refitted_axis_shares
from bayesgeom.stats.subspace import principal_angles

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

RANK, SHUFFLES = 2, 50
ABOVE_GAUSSIAN = 1.25  # a share of PC1 no larger than this, over that of Gaussian points, has no interval
_PANELS = (
    "Do domains cluster?",
    "Angle between their planes",
    "How flat is each?",
    "Flatter than mixed text? (null: 0)",
)
_EXCHANGED = "domains exchanged"


@final
@dataclass(frozen=True, kw_only=True)
class DomainSeparationReport(Report):
    """Vectors at the last scored position of each sequence, by the group that the sequence belongs to; per layer.

    `silhouette` (−1 to 1) of the groups as clusters; `angle_degrees` (0 to 90) is the mean principal angle between the
    leading planes of two groups, over all pairs. `pc12_share` is the share of a group's variance in its own leading
    plane, and its null that of mixed samples of the same size. Its interval is of the share less its jackknife bias;
    there is none where PC1 is not told apart from the next component. `pc12_gain` is the difference, and its range that
    of the group against single mixed samples: it excludes 0 where a permutation test of size 5 % rejects.

    `*_null` is the mean over random exchanges of the groups; `silhouette_most` and `angle_most` are the 97.5th
    percentile of those. `*_initialisation` is the untrained architecture. `standardised`: every coordinate had variance
    1 within each sample whose plane is sought, as in Paper III.
    """

    name: ClassVar[str] = "domain_separation"
    title: ClassVar[str] = "Domain separation: does each kind of text have a manifold of its own?"
    about: ClassVar[str] = (
        "Each prompt leaves one vector, at its last token. If prompts of a domain lie together, and apart from those "
        "of other domains, the silhouette is above zero; if they vary along directions of their own, the angle between "
        "the planes in which they vary most is large. The share of variance in the leading plane says how flat a "
        "domain's cloud is; the claim is that one domain is flatter than a mixture. Compare with the grey lines: the "
        "same prompts with domains exchanged at random, and the network before training. In many dimensions two planes "
        "fitted to different handfuls of points are always nearly orthogonal: a large angle alone proves nothing."
    )

    silhouette: Float[np.ndarray, " layer"]
    silhouette_lo: Float[np.ndarray, " layer"]
    silhouette_hi: Float[np.ndarray, " layer"]
    silhouette_null: Float[np.ndarray, " layer"]
    silhouette_most: Float[np.ndarray, " layer"]
    silhouette_initialisation: Float[np.ndarray, " layer"]
    angle_degrees: Float[np.ndarray, " layer"]
    angle_degrees_null: Float[np.ndarray, " layer"]
    angle_most: Float[np.ndarray, " layer"]
    angle_degrees_initialisation: Float[np.ndarray, " layer"]
    pc12_share: Float[np.ndarray, "layer group"]
    pc12_share_lo: Float[np.ndarray, "layer group"]
    pc12_share_hi: Float[np.ndarray, "layer group"]
    pc12_share_null: Float[np.ndarray, "layer group"]
    pc12_share_initialisation: Float[np.ndarray, "layer group"]
    pc12_gain: Float[np.ndarray, "layer group"]
    pc12_gain_lo: Float[np.ndarray, "layer group"]
    pc12_gain_hi: Float[np.ndarray, "layer group"]
    pc12_gain_initialisation: Float[np.ndarray, "layer group"]
    groups: tuple[str, ...]
    site: str
    standardised: bool
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        where = f"{self.site}, last layer"
        flat = [
            self.entry(
                "pc12_share", (-1, i), f"PC1 + PC2 share of {name}, {where}", null_label="mixed, as many prompts"
            )
            for i, name in enumerate(self.groups)
        ]
        return (
            self.entry("silhouette", (-1,), f"silhouette of the domains, {where}", null_label=_EXCHANGED),
            self.entry(
                "angle_degrees", (-1,), f"angle between the domains' planes, {where}", unit="°", null_label=_EXCHANGED
            ),
            *flat,
        )

    def figure(self) -> "Figure":
        from bayesgeom.charts.heads import add_profile
        from bayesgeom.results.theme import SERIES, label_axes, panels, with_room_for_legend

        figure = panels(self.title, _PANELS)
        levels = {_EXCHANGED: self.silhouette_null, "initialisation": self.silhouette_initialisation}
        band = (self.silhouette_lo, self.silhouette_hi)
        add_profile(figure, (1, 1), self.silhouette, name="silhouette", band=band, nulls=levels)
        label_axes(figure, (1, 1), "layer", "silhouette (−1 to 1)")
        levels = {_EXCHANGED: self.angle_degrees_null, "initialisation": self.angle_degrees_initialisation}
        add_profile(figure, (1, 2), self.angle_degrees, name="angle", nulls=levels, color=SERIES[1])
        label_axes(figure, (1, 2), "layer", "mean principal angle (degrees)")
        levels = {"mixed, as many prompts": self.pc12_share_null.mean(axis=1)}
        for i, name in enumerate(self.groups):
            shown = levels if i == 0 else None
            add_profile(figure, (2, 1), self.pc12_share[:, i], name=name, nulls=shown, color=SERIES[i % len(SERIES)])
        label_axes(figure, (2, 1), "layer", "share of variance in two dimensions")
        for i, name in enumerate(self.groups):
            color, band = SERIES[i % len(SERIES)], (self.pc12_gain_lo[:, i], self.pc12_gain_hi[:, i])
            untrained = {f"initialisation, {name}": self.pc12_gain_initialisation[:, i]}
            add_profile(figure, (2, 2), self.pc12_gain[:, i], name=name, band=band, nulls=untrained, color=color)
        label_axes(figure, (2, 2), "layer", "gain in that share")
        return with_room_for_legend(figure)


@final
@dataclass(frozen=True)
class DomainSeparation(Probe[DomainSeparationReport]):
    """Value vectors where they are recorded, else the residual stream; the last scored position of each sequence.

    `standardised` gives every coordinate of a sample variance 1 before its plane is sought.
    """

    name: ClassVar[str] = "domain_separation"
    needs: ClassVar[Needs] = Needs(sites=(RESID_POST,), optional=(V,), groups=True)
    standardised: bool = False

    def measure(self, run: Run, initialised: Sequence[DomainSeparationReport] = ()) -> DomainSeparationReport:
        assert run.trials.groups is not None, "`needs.groups` was checked"
        labels, n_groups = run.trials.groups.cpu(), len(run.trials.group_names)
        site = V if V in run.recorded else RESID_POST
        generator = torch.Generator().manual_seed(run.seed)
        exchanged = torch.stack([labels[torch.randperm(len(labels), generator=generator)] for _ in range(SHUFFLES)])
        how = _How(standardised=self.standardised, seed=run.seed)
        layers = [
            _separation(_points(run, layer), torch.cat([labels[None], exchanged]), n_groups, how)
            for layer in range(run.spec.n_layers)
        ]
        lo, hi = mean_interval(np.stack([layer.pop("per_sequence") for layer in layers], axis=1), seed=run.seed)
        arrays = {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
        fresh: dict[str, Any] = {
            f"{name}_initialisation": mean_over_copies([vars(copy)[name] for copy in initialised], like=arrays[name])
            for name in ("silhouette", "angle_degrees", "pc12_share", "pc12_gain")
        }
        return DomainSeparationReport(
            **arrays, **fresh, silhouette_lo=lo, silhouette_hi=hi, groups=run.trials.group_names, site=site.name,
            standardised=self.standardised, intervals={}, nulls={}, n=len(labels),
        )  # fmt: skip

    def controls(self) -> Iterator[Control[DomainSeparationReport]]:
        rng = np.random.default_rng(0)
        labels = np.arange(66) % 3
        trials = _planted_groups(labels, rng)
        noise = rng.normal(size=(66, 1, 13))
        centres = 9 * np.eye(3, 13)[labels][:, None]
        planes = 9 * rng.normal(size=(66, 3, 2)) * np.eye(3)[labels][:, :, None]
        flat = np.pad(planes.reshape(66, 1, 6), ((0, 0), (0, 0), (0, 7))) + 0.01 * noise
        stream = torch.from_numpy(np.stack([noise, noise + centres]))
        yield Control(
            label="noise, then clusters", run=planted_run(trials, {RESID_POST: stream}), holds=_finds_clusters
        )
        values = np.repeat(noise + centres, 5, axis=1)[None, :, :, None]
        values[0, :, -1, 0] = flat[:, 0]
        run = planted_run(trials, {RESID_POST: stream[:1], V: torch.from_numpy(values)})
        yield Control(label="planes of their own in the last values, clusters before", run=run, holds=_finds_planes)


def _points(run: Run, layer: int) -> Float64[Tensor, "point d"]:
    """One vector a sequence: at its last scored position, heads side by side."""
    if V in run.recorded:
        values = run.at(V)[layer]
        last = run.trials.scored_positions()[:, -1]
        return values[torch.arange(len(values), device=values.device), last].flatten(1).double().cpu()
    return run.at(RESID_POST)[layer][:, -1].double().cpu()


@final
@dataclass(frozen=True, kw_only=True)
class _How:
    """What is done to a sample before its plane is sought, and what resampling starts from."""

    standardised: bool
    seed: int

    def prepared(self, members: Float64[Tensor, "point d"]) -> Float64[Tensor, "point d"]:
        return standardised(members) if self.standardised else members - members.mean(dim=0)


def _separation(
    points: Float64[Tensor, "point d"], labels: Int64[Tensor, "draw point"], n_groups: int, how: _How
) -> dict[str, Any]:
    """All of the report for one layer; the first labelling is the true one."""
    distances = torch.cdist(points, points).expand(len(labels), -1, -1)
    silhouettes = point_silhouettes(distances, labels, n_groups)
    found = [_planes(points, drawn, n_groups, how) for drawn in labels]
    angles, shares = (np.stack(part) for part in zip(*found, strict=True))
    means = silhouettes.mean(dim=1).numpy()
    lo, hi = np.array([_share_ends(points[labels[0] == group], how) for group in range(n_groups)]).T
    gain_lo, gain_hi = percentile_interval(shares[0] - shares[1:])
    return {
        "per_sequence": silhouettes[0].numpy(),
        "silhouette": means[0],
        "silhouette_null": means[1:].mean(),
        "silhouette_most": np.quantile(means[1:], 0.975),
        "angle_degrees": angles[0],
        "angle_degrees_null": angles[1:].mean(),
        "angle_most": np.quantile(angles[1:], 0.975),
        "pc12_share": shares[0],
        "pc12_share_lo": lo,
        "pc12_share_hi": hi,
        "pc12_share_null": shares[1:].mean(axis=0),
        "pc12_gain": shares[0] - shares[1:].mean(axis=0),
        "pc12_gain_lo": gain_lo,
        "pc12_gain_hi": gain_hi,
    }


def _planes(
    points: Float64[Tensor, "point d"], labels: Int64[Tensor, " point"], n_groups: int, how: _How
) -> tuple[Float64[np.ndarray, ""], Float64[np.ndarray, " group"]]:
    """Mean angle between the groups' leading planes, and the share of variance in each; NaN for too small a group."""
    bases, shares = [], []
    for group in range(n_groups):
        members = points[labels == group]
        if len(members) <= RANK:
            return np.array(np.nan), np.full(n_groups, np.nan)
        variances, axes = cloud_axes(how.prepared(members))
        bases.append(axes[:, :RANK])
        shares.append(float(variance_shares(variances)[:RANK].sum()))
    angles = [principal_angles(a, b).mean() for a, b in combinations(bases, 2)]
    return np.array(float(torch.stack(angles).mean())), np.array(shares)


def _share_ends(members: Float64[Tensor, "point d"], how: _How) -> tuple[float, float]:
    """Interval of the share of a group's variance in its plane, which is fitted anew without each of its sequences."""
    unknown = float("nan"), float("nan")
    if len(members) <= RANK:
        return unknown
    cloud = how.prepared(members)
    variances, axes = cloud_axes(cloud)
    if float(variance_shares(variances)[0]) <= ABOVE_GAUSSIAN * gaussian_first_share(*cloud.shape):
        return unknown
    plane, weights = axes[:, :RANK].numpy(), jackknife_weights(len(cloud))
    rows = refitted_axis_shares(cloud[:, None].numpy(), plane, weights).sum(axis=1)
    lo, hi = statistic_interval(rows, seed=how.seed, scale="share")
    return float(lo), float(hi)


def _planted_groups(labels: Int64[np.ndarray, " sequence"], rng: np.random.Generator) -> Trials:
    exact = np.full((len(labels), 1, 3), 1 / 3)
    trials = planted_trials(exact, rng.integers(7, size=(len(labels), 5)))
    return replace(trials, groups=torch.from_numpy(labels), group_names=("one", "two", "three"))


def _finds_clusters(report: DomainSeparationReport) -> bool:
    noise, clusters = report.silhouette
    return bool(abs(noise - report.silhouette_null[0]) < 0.05 and clusters > 0.5 > report.silhouette_most[1])


def _finds_planes(report: DomainSeparationReport) -> bool:
    return bool(
        report.site == "v"
        and report.silhouette[0] < 0.2
        and report.angle_degrees[0] > 80 > report.angle_most[0]
        and (report.pc12_share > 0.99).all()
        and (report.pc12_share_null < 0.9).all()
    )
