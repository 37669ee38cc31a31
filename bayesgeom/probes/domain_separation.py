"""Domain separation: do prompts of different domains lie on separate manifolds?

The claim is that text of one domain has fewer dimensions than mixed text, and each domain its own. Few points always
span few dimensions, and any two small samples differ. Each number is therefore compared with the same prompts with
domains exchanged, and with untrained networks.

References:
    Agarwal, Dalal & Misra 2025, Paper III of their trilogy, sections 4.2 and 5.
    Björck & Golub 1973 (principal angles); Rousseeuw 1987 (silhouette).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.run import RESID_POST, Run, Trials, V
from bayesgeom.probes._separation import Preparation, separation
from bayesgeom.probes.base import Control, Needs, Probe, planted_run, planted_trials
from bayesgeom.report.estimate import (
    UNTRAINED,
    Baseline,
    Estimate,
    Quantity,
    Share,
    Signed,
    of_untrained,
    smooth_estimate,
)
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.reduction import LAST_RESIDUAL, LAST_VALUES

SHUFFLES = 50
_PANELS = (
    "Do domains cluster?",
    "Angle between their planes",
    "How flat is each?",
    "Flatter than mixed text? (chance: 0)",
)
EXCHANGED, MIXED = "domains exchanged", "mixed samples of the same size"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class DomainSeparationReport(Report):
    """Each prompt gives one vector, at its last token.

    If domains form clusters, the silhouette is above zero. If domains vary along different directions, the angle
    between their leading planes is large. The share of variance in the leading plane says how flat a domain's cloud is;
    the claim is that one domain is flatter than a mixture. Compare with the gray lines: the same prompts with domains
    exchanged at random, and untrained networks. In many dimensions, two planes fitted to different small samples are
    always nearly orthogonal, so a large angle alone proves nothing.

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
    title: ClassVar[str] = "Domain separation"

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
        from bayesgeom.charts.heads import add_profile
        from bayesgeom.report.theme import SERIES, label_axes

        clusters, angles, shares, gains = (Panel.blank(title) for title in _PANELS)
        own, levels = self.silhouette, _levels(self.angle_degrees)
        add_profile(clusters.figure, own.value, name="silhouette", band=own.ends, baselines=_levels(own))
        label_axes(clusters.figure, "layer", "silhouette (−1 to 1)")
        add_profile(angles.figure, self.angle_degrees.value, name="angle", baselines=levels)
        label_axes(angles.figure, "layer", "mean principal angle (degrees)")
        mixed = {MIXED: self.pc12_share.baseline(MIXED).value.mean(axis=1)}
        for i, name in enumerate(self.groups):
            color, share, gain = SERIES[i % len(SERIES)], self.pc12_share[:, i], self.pc12_gain[:, i]
            add_profile(shares.figure, share.value, name=name, baselines=None if i else mixed, color=color)
            fresh = {f"{level}, {name}": values for level, values in _levels(gain).items() if level == UNTRAINED}
            add_profile(gains.figure, gain.value, name=name, band=gain.ends, baselines=fresh, color=color)
        label_axes(shares.figure, "layer", "variance in two dimensions")
        label_axes(gains.figure, "layer", "gain in that share")
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
        labels, n_groups = run.trials.groups.cpu(), len(run.trials.group_names)
        site = V if LAST_VALUES.is_in(run) else RESID_POST
        generator = torch.Generator().manual_seed(run.seed)
        exchanged = torch.stack([labels[torch.randperm(len(labels), generator=generator)] for _ in range(SHUFFLES)])
        preparation = Preparation(standardized=self.standardized, seed=run.seed)
        layers = [
            separation(_points(run, layer), torch.cat([labels[None], exchanged]), n_groups, preparation)
            for layer in range(run.spec.n_layers)
        ]
        silhouettes, angles, shares = (
            np.stack(part) for part in zip(*((own.silhouettes, own.angles, own.shares) for own in layers), strict=True)
        )
        n, mixed = len(labels), shares[:, 1:].mean(axis=1)
        rows = np.stack([own.silhouette_rows for own in layers], axis=1)
        share_low, share_high, code = np.stack([own.share_ends for own in layers], axis=1)
        gain_low, gain_high = np.stack([own.gain_ends for own in layers], axis=1)
        silhouette_levels = (
            _of_exchanges(EXCHANGED, silhouettes),
            *of_untrained([copy.silhouette.value for copy in untrained]),
        )
        angle_levels = (
            _of_exchanges(EXCHANGED, angles),
            *of_untrained([copy.angle_degrees.value for copy in untrained]),
        )
        share_levels = (
            _of_exchanges(MIXED, shares),
            *of_untrained([copy.pc12_share.value for copy in untrained]),
        )
        gain_levels = (
            Baseline.of("permutation", MIXED, 0.0),
            *of_untrained([copy.pc12_gain.value for copy in untrained]),
        )
        return DomainSeparationReport(
            silhouette=smooth_estimate(rows, seed=run.seed, n=n, baselines=silhouette_levels),
            angle_degrees=Estimate.of(angles[:, 0], n=n, baselines=angle_levels),
            pc12_share=Estimate.of(
                shares[:, 0], (share_low, share_high), n=n, baselines=share_levels, reason=code.astype(np.int64)
            ),
            pc12_gain=Estimate.of(
                shares[:, 0] - mixed, (gain_low, gain_high), resampled="mixed samples", baselines=gain_levels
            ),
            groups=run.trials.group_names,
            site=site.name,
            standardized=self.standardized,
            n=n,
        )

    def controls(self) -> Iterator[Control[DomainSeparationReport]]:
        rng = np.random.default_rng(0)
        labels = np.arange(66) % 3
        trials = _planted_groups(labels, rng)
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


def _points(run: Run, layer: int) -> Float64[Tensor, "point d"]:
    """Return one vector per sequence, at its last scored position, with heads concatenated."""
    vectors = LAST_VALUES if LAST_VALUES.is_in(run) else LAST_RESIDUAL
    return vectors.at(run, layer, run.n_recorded).double().cpu()


def _of_exchanges(name: str, found: Float64[np.ndarray, "layer labeling *rest"]) -> Baseline:
    """Return the mean over exchanged labelings, with the 2.5th and 97.5th percentile; the true one comes first."""
    drawn = found[:, 1:]
    low, high = np.quantile(drawn, (0.025, 0.975), axis=1)
    return Baseline.of("permutation", name, drawn.mean(axis=1), low=low, high=high)


def _levels(own: Estimate) -> dict[str, Float64[np.ndarray, " layer"]]:
    return {level.name: level.value for level in own.baselines}


def _planted_groups(labels: Int64[np.ndarray, " sequence"], rng: np.random.Generator) -> Trials:
    exact = np.full((len(labels), 1, 3), 1 / 3)
    trials = planted_trials(exact, rng.integers(7, size=(len(labels), 5)))
    return replace(trials, groups=torch.from_numpy(labels), group_names=("one", "two", "three"))


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
