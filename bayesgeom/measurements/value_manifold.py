"""Value manifold: do the vectors at scored positions lie on a curve that is ordered by the exact entropy?

Here "values" are only the value vectors `v`; other sites have their own names. In many tasks entropy depends on
position, so any code for position passes a naive test. The test is therefore made within positions.

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the claim; their scripts read the residual stream).
    Hastie, Tibshirani & Friedman 2009, section 5.2.1 (the curve).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, product
from typing import Annotated, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import ATTN_OUT, RESID_POST, STATE, Reason, Run, Site, Trials, V, Verdict, Z
from bayesgeom.core.text import percent_text
from bayesgeom.measurements.base import Control, Needs, Probe, known, planted_run, planted_trials, with_untrained
from bayesgeom.report.estimate import R2, UNTRAINED, Baseline, Estimate, Quantity, Share, Signed, Unit, with_interval
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import jackknife_weights, permutation_p, statistic_interval
from bayesgeom.stats.intervals import no_interval
from bayesgeom.stats.manifold import (
    N_AXES,
    CloudStatistics,
    EntropyScale,
    cloud_statistics,
    head_statistics,
    shuffled_scale,
    view,
)
from bayesgeom.stats.regression import absolute_interval
from bayesgeom.stats.resampling import order_under_permutation, refitted_axis_shares, resampled_order
from bayesgeom.stats.subspace import gaussian_first_share, span_coordinates, standardized

PointsOf = Callable[[Site, int], Float[Tensor, "point d"]]
Clouds = Mapping[Site, Sequence[CloudStatistics]]
MAX_POINTS = 3_072  # about 150 sequences, which give correlations to a few hundredths
MIN_SEQUENCES = 16  # used however long they are
SHUFFLES, PERMUTATIONS, GROUPS, N_SHOWN, N_STEPS = 10, 199, 20, 600, 60
_ABOVE_GAUSSIAN = 1.25  # a PC1 share below this multiple cannot be distinguished from the next component's
_SITES, _SHOWN = (V, Z, ATTN_OUT, RESID_POST, STATE), (V, RESID_POST)
CONDITIONS = UNIDENTIFIED, OWN_ENTROPY, STANDARDIZED = "not identified", "the model's own", "standardized"
SHUFFLE, GAUSSIAN = "shuffle within position", "Gaussian points"
ORDERINGS = ("over all points", "within positions")
_OVERALL, _WITHIN = range(2)
_RELATIONS = ("spearman", "partial_spearman")  # of a cloud, in the same order
LEAST_SHARE = 0.5  # a smooth curve that explains less of the variance would mislead
_CURVE, _READ_OUT = "R² of a smooth curve", "R² of linear read-out"
_ORDERED = ("|Spearman| of PC1 with entropy", "|Spearman| of PC1 within positions")


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class ValueManifoldReport(Report):
    """Each dot is the model's vector at one scored position, plotted along the directions of largest variance.

    These are the principal components (PC); the color is the entropy of the exact posterior. Do these vectors lie on
    one curve, ordered by entropy? The baselines are untrained networks, and the same vectors with entropies exchanged
    between sequences at the same position, which preserves the effect of a code for position. If entropy is a function
    of position, as when keys never return, the two cannot be distinguished and the verdict is "not identified": then
    only the shape counts, not the order.

    Fields: clouds of vectors at scored positions, one per site and layer, against the exact entropy of the predictive.

    Shares are of the variance, 0 to 1. `entropy_r2` and `curve_share` are on held-out sequences: at most 1, and 0 for
    the mean. `conditions` states whether entropy is not identified, is the model's own (text without a known
    posterior), and whether every coordinate was scaled to variance 1 (`STANDARDIZED`).
    `spearman` is |Spearman| of PC1 with entropy, over all points and within positions. The latter compares points of
    the same position only, and is NaN unless `identified`. `pearson` is an absolute value too, because the sign of a
    principal axis is arbitrary.

    Intervals of shares are corrected for the bias of fitted axes. They are withheld for shares of PC1 below 1.25 times
    that of as many Gaussian points as sequences. `signed_spearman` is the correlation along PC1, whose largest entry is
    positive, with intervals in the last layer of the `shown_sites`. The absolute value has an interval only if the
    signed one excludes 0. `p_value` are two-sided p-values of permuting the entropies of whole sequences, which
    preserves effects of position. `shown_*` are points to plot, NaN for sites that are not shown.
    """

    name: ClassVar[str] = "value_manifold"
    title: ClassVar[str] = "Value manifold: ordered by uncertainty?"
    limit: ClassVar[str] = "at most 3,072 scored positions"

    pc1_share: Annotated[Estimate, Share("site layer", better="higher", label="PC1 share of variance")]
    pc12_share: Annotated[Estimate, Share("site layer", better="higher", label="PC1 + PC2 share of variance")]
    participation_ratio: Annotated[Estimate, Quantity("site layer", label="participation ratio of the variances")]
    spearman: Annotated[Estimate, Share("ordering site layer", better="higher", label="|Spearman| of PC1, entropy")]
    signed_spearman: Annotated[Estimate, Signed("ordering site layer", label="Spearman of PC1 with entropy")]
    p_value: Annotated[Estimate, Quantity("ordering site layer", label="p-value of Spearman, by permutation")]
    pearson: Annotated[Estimate, Share("site layer", better="higher", label="|Pearson| of PC1 with entropy")]
    entropy_r2: Annotated[Estimate, R2("site layer", better="higher", label="R² of linear read-out")]
    curve_share: Annotated[Estimate, R2("site layer", better="higher", label="R² of a curve in entropy")]
    head_pc1_share: Annotated[Estimate, Share("layer kv_head", better="higher", label="PC1 share of each head")]
    head_spearman: Annotated[Estimate, Share("layer kv_head", better="higher", label="|Spearman| of PC1 of each head")]
    shown_points: Annotated[Float[np.ndarray, "site point component"], Unit("1")]
    shown_curve: Annotated[Float[np.ndarray, "site step component"], Unit("1")]
    shown_entropy_bits: Annotated[Float[np.ndarray, " point"], Unit("bits")]
    shown_position: Annotated[Float[np.ndarray, " point"], Unit("1")]  # among the scored ones, from 0
    curve_entropy_bits: Annotated[Float[np.ndarray, " step"], Unit("bits")]
    conditions: tuple[str, ...]
    sites: tuple[str, ...]
    orderings: tuple[str, ...]
    n: int

    @property
    def identified(self) -> bool:
        """Return whether entropy varies between sequences at the same position."""
        return UNIDENTIFIED not in self.conditions

    @property
    def shown_sites(self) -> tuple[str, ...]:
        """Return the sites whose points are stored."""
        return tuple(compress(self.sites, np.isfinite(self.shown_points).any(axis=(1, 2))))

    def headlines(self) -> Sequence[Headline]:
        # If entropy is a function of position, no relation to entropy is identified.
        verdict = None if self.identified else str(Verdict.NOT_IDENTIFIED)
        unless = f" ({OWN_ENTROPY})" * (OWN_ENTROPY in self.conditions)
        how = f", {STANDARDIZED}" if STANDARDIZED in self.conditions else ""
        site = self.shown_sites[0]  # a panel shows the others
        share = headline_of(self, "pc1_share", (self.sites.index(site), -1), f"PC1 share of {site}, last layer{how}")
        row, where = self.sites.index("resid_post"), "resid_post, last layer"
        ordered = [("spearman", (ordering, row, -1), label) for ordering, label in enumerate(_ORDERED)]
        related = (("curve_share", (row, -1), _CURVE), ("entropy_r2", (row, -1), _READ_OUT), *ordered)
        lines = [headline_of(self, m, at, f"{label}, {where}{unless}", verdict=verdict) for m, at, label in related]
        return share, *lines

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import brief
        from bayesgeom.report.theme import SERIES, label_axes

        row = self.sites.index("resid_post")
        related = {_CURVE: self.curve_share[row], _READ_OUT: self.entropy_r2[row]}
        related |= {label: self.spearman[ordering, row] for ordering, label in enumerate(_ORDERED)}
        shares = {site: self.pc1_share[at] for at, site in enumerate(self.sites)}
        at = self.sites.index(self.shown_sites[-1]) if self.shown_sites else row
        largest, rho = float(self.pc1_share.value[at, -1]), float(self.spearman.value[_OVERALL, at, -1])
        title = f"PC1 holds {percent_text(largest)} of the variance of {self.sites[at]} in the last layer"
        shape = _profiles(title, shares, UNTRAINED, SERIES[:4])
        order = _profiles(f"PC1 and entropy: |Spearman| {brief(rho)} in the last layer", related, SHUFFLE, SERIES[4:8])
        label_axes(shape.figure, "layer", "share of variance (0 to 1)")
        lowest = min(float(np.nanmin(estimate.value, initial=0.0)) for estimate in related.values())
        cut = "; cut at −1" if lowest < -1 else ""  # a share far below 0 would hide all other lines
        order.figure.update_yaxes(range=[-1.02, 1.02] if cut else None)
        label_axes(order.figure, "layer", f"|correlation| or share (0 to 1{cut})")
        return [*self._clouds(), shape, order]

    def _clouds(self) -> Iterator[Panel]:
        """Yield each site's points along PC1 and PC2, then along entropy and PC1."""
        from bayesgeom.charts.cloud import add_cloud
        from bayesgeom.charts.lines import brief
        from bayesgeom.report.theme import EXACT, POSITIONS, label_axes

        for nth, site in enumerate(self.shown_sites):
            at = self.sites.index(site)
            points, curve, is_folded = self.shown_points[at], self.shown_curve[at], nth + 1 < len(self.shown_sites)
            explained = float(self.curve_share.value[at, -1])
            has_curve, entropy_bits, unit = explained >= LEAST_SHARE, self.shown_entropy_bits, "exact entropy (bits)"
            summary = f"a curve explains {percent_text(explained)}" if has_curve else "no curve in entropy"
            plane = Panel.blank(f"Last layer of {site}, colored by entropy: {summary}", height=340, is_folded=is_folded)
            add_cloud(plane.figure, points[:, 0], points[:, 1], entropy_bits, colored_by=unit)
            if has_curve:
                line = {"color": EXACT, "width": 2.5}
                drawn = {"mode": "lines", "name": "smooth curve in entropy", "line": line, "hoverinfo": "skip"}
                plane.figure.add_scatter(x=curve[:, 0], y=curve[:, 1], **drawn)
            label_axes(plane.figure, "PC1 (activation units)", "PC2 (activation units)")
            rho = self.spearman.value[_OVERALL, at, -1]
            along = Panel.blank(f"{site}: entropy and PC1 have |Spearman| {brief(rho)}", height=340, is_folded=True)
            place, by = self.shown_position + 1, "scored position"  # counted from 1
            add_cloud(along.figure, entropy_bits, points[:, 0], place, colored_by=by, scale=POSITIONS)
            label_axes(along.figure, unit, "PC1 (activation units)")
            yield from (plane, along)


def _profiles(title: str, profiles: Mapping[str, Estimate], level: str, colors: Sequence[str]) -> Panel:
    """Draw lines over layers, and the baseline of each, dashed in its color."""
    from bayesgeom.charts.lines import add_baseline, add_line

    known = {name: estimate for name, estimate in profiles.items() if np.isfinite(estimate.value).any()}
    panel = Panel.blank(title, note=f"Dashed, in the color of the line: {level}.", is_folded=True)
    layers = range(len(next(iter(profiles.values())).value))
    for color, (name, estimate) in zip(colors, known.items(), strict=False):
        add_line(panel.figure, layers, estimate.value, name=name, color=color)
    # On top, so that an equal baseline is seen.
    for color, (name, estimate) in zip(colors, known.items(), strict=False):
        add_baseline(panel.figure, layers, _level(estimate, level), name=f"baseline: {level}, {name}", color=color)
    return panel


def _level(estimate: Estimate, name: str) -> Float[np.ndarray, " layer"]:
    """Return the level of a baseline; NaN where it is unknown."""
    levels = [level.value for level in estimate.baselines if level.name == name]
    return levels[0] if levels else np.full(estimate.value.shape, np.nan)


@final
@dataclass(frozen=True)
class ValueManifold(Probe[ValueManifoldReport]):
    """Measure every recorded site and layer on at most `MAX_POINTS` points, or 16 sequences; `n` says how many.

    It needs stored activations: rank correlations along a principal axis, its permutations and the refitted axes of the
    intervals need every point, and a covariance gives the shares of the variance alone.
    `standardized` first scales every coordinate to the same variance, as in Paper III.
    """

    name: ClassVar[str] = "value_manifold"
    needs: ClassVar[Needs] = Needs(sites=(RESID_POST,), optional=(V, Z, ATTN_OUT, STATE), partial=(STATE,))
    relative_time: ClassVar[int] = 5
    standardized: bool = False

    def measure(self, run: Run, untrained: Sequence[ValueManifoldReport] = ()) -> ValueManifoldReport:
        n = min(run.n_recorded, max(MIN_SEQUENCES, MAX_POINTS // run.trials.n_scored))
        trials = run.trials.rows(slice(0, n))
        # Entropies are compared by rank, so those that differ only by rounding must be equal.
        entropy = run.reference_entropy_bits()[:n].round(9)
        level = trials.scored_positions().cpu().numpy()
        scale = shuffled_scale(entropy, level, shuffles=SHUFFLES, seed=run.seed)

        def recorded_points(site: Site, layer: int) -> Float[Tensor, "point d"]:
            points = run.vectors(site, run.rows_of(site)[layer])[:n].flatten(0, 1)
            return standardized(points) if self.standardized else points

        points_of = _spanned(recorded_points)
        layers, sites = range(run.spec.n_layers), [site for site in _SITES if site in run.recorded]
        widths = {site: run.at(site)[0, 0, 0].numel() for site in sites}
        few, least = jackknife_weights(n, most=GROUPS), {site: gaussian_first_share(n, widths[site]) for site in sites}
        clouds: dict[Site, list[CloudStatistics]] = {site: [] for site in sites}
        refitted = np.full((len(few), 2, len(sites), len(layers)), np.nan)
        for (row, site), layer in product(enumerate(sites), layers):
            cloud = cloud_statistics(points := points_of(site, layer), scale, width=widths[site])
            if cloud.shape["pc1_share"] > _ABOVE_GAUSSIAN * least[site]:
                refitted[:, :, row, layer] = _refitted(points, cloud, few, n=n)
            clouds[site].append(replace(cloud, covariance=None))  # those of all layers would fill the memory
        head_share, head_related = _heads(run, scale, recorded_points)
        pc1_share, pc12_share = _shares(clouds, refitted, least, n=n, seed=run.seed)
        spearman, signed_spearman, p_value = _ordered(run, clouds, entropy)
        holds = (not scale.identified, not run.has_posterior, self.standardized)
        related: dict[str, Any] = {}
        for name in ("pearson", "entropy_r2", "curve_share"):
            values, shuffle = _relation(clouds, name)
            related[name] = Estimate.of(values, n=n, baselines=known(shuffle))
        report = ValueManifoldReport(
            pc1_share=pc1_share,
            pc12_share=pc12_share,
            participation_ratio=Estimate.of(_shape(clouds, "participation_ratio"), n=n),
            spearman=spearman,
            signed_spearman=signed_spearman,
            p_value=p_value,
            **related,
            head_pc1_share=Estimate.of(head_share, n=n),
            head_spearman=Estimate.of(head_related, n=n),
            **_shown(run, clouds, entropy, points_of),
            conditions=tuple(compress(CONDITIONS, holds)),
            sites=tuple(site.name for site in sites),
            orderings=ORDERINGS,
            n=n,
        )
        shapes = ("pc1_share", "pc12_share", "participation_ratio", "head_pc1_share")
        orders = ("spearman", "pearson", "entropy_r2", "curve_share", "head_spearman")
        return with_untrained(report, untrained, *shapes, *orders)

    def controls(self) -> Iterator[Control[ValueManifoldReport]]:
        rng = np.random.default_rng(0)
        certainty, steps = rng.uniform(size=(61, 5)), np.tile(np.linspace(0.1, 0.9, 5), (61, 1))
        (trials, curve), (in_step, code) = (_planted(x, rng) for x in (certainty, steps))
        noise = rng.normal(size=curve.shape)
        values = rng.normal(scale=1e3, size=(1, 61, 11, 1, 7))
        values[0, :, -5:, 0] = curve
        yield Control(
            label="noise, then a curve in entropy",
            run=planted_run(trials, {RESID_POST: torch.from_numpy(np.stack([noise, curve]))}),
            holds=lambda r: (
                r.curve_share.value[0, 1] > 0.95 > 0.1 > r.curve_share.value[0, 0]
                and r.entropy_r2.value[0, 1] > 0.9 > 0.2 > r.entropy_r2.value[0, 0]
                and r.spearman.value[_WITHIN, 0, 1] > 0.9 > 0.2 > r.spearman.value[_WITHIN, 0, 0]
            ),
        )
        yield Control(
            label="values: only scored positions count",
            run=planted_run(trials, {RESID_POST: torch.from_numpy(noise[None]), V: torch.from_numpy(values)}),
            holds=lambda r: (
                r.sites == ("v", "resid_post") and r.curve_share.value[0, 0] > 0.95 > 0.1 > r.curve_share.value[1, 0]
            ),
        )
        yield Control(
            label="a code for position is not identified",
            run=planted_run(in_step, {RESID_POST: torch.from_numpy(code[None])}),
            holds=lambda r: (
                not r.identified
                and np.isnan(r.spearman.value[_WITHIN]).all()
                and np.allclose(r.spearman.value[_OVERALL], r.spearman.baseline(SHUFFLE).value[_OVERALL])
                and np.allclose(r.curve_share.value, r.curve_share.baseline(SHUFFLE).value)
            ),
        )


def _heads(run: Run, scale: EntropyScale, points_of: PointsOf) -> Float[np.ndarray, "2 layer kv_head"]:
    """Return the share of PC1, and its |Spearman|, for the value vectors of each head; NaN if not recorded."""
    n_heads, n_layers = run.spec.n_kv_heads, run.spec.n_layers
    if V not in run.recorded:
        return np.full((2, n_layers, n_heads), np.nan)
    heads = (points_of(V, layer).unflatten(1, (n_heads, -1)) for layer in range(n_layers))
    return np.stack([head_statistics(head, scale) for head in heads], axis=1)


def _shape(clouds: Clouds, name: str) -> Float64[np.ndarray, "site layer"]:
    return np.array([[cloud.shape[name] for cloud in layers] for layers in clouds.values()])


def _relation(clouds: Clouds, name: str) -> tuple[Float64[np.ndarray, "site layer"], Baseline]:
    """Return a relation to entropy, and its mean over the shuffles."""
    relations = np.array([[cloud.relation[name] for cloud in layers] for layers in clouds.values()])
    return relations[:, :, 0], Baseline.of("permutation", SHUFFLE, relations[:, :, 1:].mean(axis=-1))


def _spanned(points_of: PointsOf) -> PointsOf:
    """Return the same clouds; those with fewer points than dimensions in cached coordinates of their span."""
    kept: dict[tuple[Site, int], Float64[Tensor, "point axis"]] = {}

    def spanned(site: Site, layer: int) -> Float[Tensor, "point d"]:
        if (site, layer) not in kept:
            points = points_of(site, layer)
            if len(points) >= points.shape[1]:
                return points
            kept[site, layer] = span_coordinates(points)
        return kept[site, layer]

    return spanned


def _refitted(
    points: Float[Tensor, "point d"], cloud: CloudStatistics, few: Float64[np.ndarray, "row sequence"], *, n: int
) -> Float64[np.ndarray, "row 2"]:
    """Return the shares of PC1 and of PC1 + PC2, fitted again for every row of weights."""
    spread = None if cloud.covariance is None else cloud.covariance.cpu().numpy()
    by_sequence, axes = points.unflatten(0, (n, -1)).cpu().numpy(), cloud.axes.cpu().numpy()[:, :2]
    return refitted_axis_shares(by_sequence, axes, few, covariance=spread).cumsum(axis=1)[:, [0, -1]]


def _shares(
    clouds: Clouds,
    refitted: Float64[np.ndarray, "row 2 site layer"],
    least: Mapping[Site, float],
    *,
    n: int,
    seed: int,
) -> tuple[Estimate, Estimate]:
    """Return shares of PC1 and of PC1 + PC2, with intervals where PC1 is distinguishable from the next component."""
    interval = statistic_interval(refitted, seed=seed, scale="share")
    code = np.where(np.isnan(refitted[0]), int(Reason.FLAT), interval.code)
    one, two = (_shape(clouds, name) for name in ("pc1_share", "pc12_share"))
    gaussian = np.broadcast_to(np.array([*least.values()])[:, None], one.shape).copy()
    alone = [Baseline.of("chance", GAUSSIAN, gaussian)]
    return (
        Estimate.of(one, (interval.lo[0], interval.hi[0]), n=n, baselines=alone, reason=code[0]),
        Estimate.of(two, (interval.lo[1], interval.hi[1]), n=n, reason=code[1]),
    )


def _ordered(
    run: Run,
    clouds: Clouds,
    entropy: Float64[np.ndarray, "sequence position"],
) -> tuple[Estimate, Estimate, Estimate]:
    """Return |Spearman|, signed Spearman and p-values.

    Intervals are at the shown sites: in the last layer from all groups of the jackknife, before it from 20.
    """
    n, n_layers = len(entropy), run.spec.n_layers
    level = run.trials.scored_positions()[:n].cpu().numpy()
    rng = np.random.default_rng(run.seed)
    orders = np.stack([np.arange(n), *(rng.permutation(n) for _ in range(PERMUTATIONS))])
    signed, p = (np.full((len(ORDERINGS), len(clouds), n_layers), np.nan) for _ in range(2))
    firsts = np.stack([[cloud.first.reshape(level.shape) for cloud in layers] for layers in clouds.values()])
    by_ordering = order_under_permutation(firsts, entropy, level, orders)
    for ordering, name in enumerate(_RELATIONS):
        signed[ordering], permuted = by_ordering[name][0], by_ordering[name][1:]
        p[ordering] = permutation_p(signed[ordering], permuted)
    ends = no_interval(signed.shape, n, Reason.NOT_COMPUTED)
    for row, layer in ((row, layer) for row, site in enumerate(clouds) if site in _SHOWN for layer in range(n_layers)):
        weights = jackknife_weights(n) if layer == n_layers - 1 else jackknife_weights(n, most=GROUPS)
        drawn = resampled_order(firsts[row, layer], entropy, level, weights)
        rows = np.stack([drawn[name] for name in _RELATIONS], axis=1)
        found_here = statistic_interval(rows, seed=run.seed, scale="correlation")
        for whole, values in ((ends.lo, found_here.lo), (ends.hi, found_here.hi), (ends.code, found_here.code)):
            whole[:, row, layer] = values
    size, shuffles = zip(*(_relation(clouds, name) for name in _RELATIONS), strict=True)
    shuffle = Baseline.of("permutation", SHUFFLE, np.stack([estimate.value for estimate in shuffles]))
    absolute = with_interval(np.stack(size), absolute_interval(ends), n=n, baselines=known(shuffle))
    return absolute, with_interval(signed, ends, n=n), Estimate.of(p, n=n)


def _shown(
    run: Run,
    clouds: Clouds,
    entropy: Float64[np.ndarray, "sequence position"],
    points_of: PointsOf,
) -> dict[str, Any]:
    """Return a sample of the last layer's points, and the curve through all of them."""
    flat = entropy.ravel()
    chosen = np.sort(np.random.default_rng(run.seed).permutation(len(flat))[:N_SHOWN])
    grid = np.linspace(flat.min(), flat.max(), N_STEPS)
    points, curve = np.full((len(clouds), len(chosen), N_AXES), np.nan), np.full((len(clouds), N_STEPS, N_AXES), np.nan)
    for at, site in enumerate(clouds):
        if site in _SHOWN:
            along, curve[at] = view(points_of(site, -1), clouds[site][-1].axes, flat, grid)
            points[at] = along[chosen]
    return {
        "shown_points": points,
        "shown_curve": curve,
        "shown_entropy_bits": flat[chosen],
        "shown_position": np.indices(entropy.shape)[1].ravel()[chosen].astype(np.float64),
        "curve_entropy_bits": grid,
    }


def _planted(
    certainty: Float64[np.ndarray, "sequence position"], rng: np.random.Generator
) -> tuple[Trials, Float64[np.ndarray, "sequence position d"]]:
    """Plant five hypotheses, one more probable by `certainty`, over eleven tokens: a noisy bent line in certainty."""
    favored = np.eye(5)[rng.integers(5, size=certainty.shape)]
    exact = (1 - certainty[..., None]) / 5 + certainty[..., None] * favored
    curve = np.stack([3 * certainty, certainty**2, np.sin(3 * certainty)], axis=-1) @ rng.normal(size=(3, 7))
    trials = planted_trials(exact, rng.integers(7, size=(len(certainty), 11)))
    return trials, curve + 0.01 * rng.normal(size=curve.shape)
