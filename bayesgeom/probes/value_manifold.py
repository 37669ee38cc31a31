"""Value manifold: do the vectors at scored positions lie on a curve that is ordered by the exact entropy?

Sites keep their own names: "values" are the value vectors `v` and nothing else. Entropy follows position in many tasks,
so any code for position passes a naive test; what remains within a position decides.

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the claim; their scripts read the residual stream);
Hastie, Tibshirani & Friedman 2009, section 5.2.1 (the curve).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.run import Run
from bayesgeom.core.sites import ATTN_OUT, RESID_POST, Site, V, Z
from bayesgeom.core.trials import Trials
from bayesgeom.probes.base import Control, Needs, Probe, mean_over_copies, planted_run, planted_trials
from bayesgeom.results.report import Headline, Report
from bayesgeom.stats.bootstrap import jackknife_weights, permutation_p, statistic_interval
from bayesgeom.stats.chance import gaussian_first_share
from bayesgeom.stats.manifold import (
    RELATIONS,
    SHAPES,
    CloudStatistics,
    EntropyScale,
    cloud_statistics,
    head_statistics,
    shuffled_scale,
    tabulated,
    view,
)
from bayesgeom.stats.pca import standardised
from bayesgeom.stats.resampling import order_under_permutation, resampled_cloud, resampled_order

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PointsOf = Callable[[Site, int], Float[Tensor, "point d"]]
MAX_POINTS = 3_072  # some 150 sequences: correlations are then known to a few hundredths
SHUFFLES, PERMUTATIONS, GROUPS, N_SHOWN, N_STEPS = 10, 199, 20, 600, 60
_ABOVE_GAUSSIAN = 1.25  # a share that is no larger is not told apart from the next component's
_SITES, _SHOWN = (V, Z, ATTN_OUT, RESID_POST), (V, RESID_POST)
_UNIDENTIFIED = "not identified: entropy is a function of position"
_BOUNDED = ("pc1_share", "pc12_share", "spearman", "partial_spearman")
_ORDER = {
    "curve_share": "share on a smooth curve in entropy",
    "entropy_r2": "R² of a linear read-out of entropy",
    "spearman": "|Spearman| of PC1 with entropy",
    "partial_spearman": "|Spearman| of PC1 with entropy within positions",
}


@final
@dataclass(frozen=True, kw_only=True)
class ValueManifoldReport(Report):
    """Clouds of vectors at scored positions, one per site and layer, against the exact entropy of the predictive.

    Shares are of the variance, 0 to 1; correlations are absolute values, since the sign of a principal axis means
    nothing; `entropy_r2` and `curve_share` are held out by sequence, at most 1, and 0 for the mean. On text whose
    posterior nobody knows the entropy is the model's own, and `is_own_entropy` says so. `partial_spearman`
    compares points of the same position only, and is NaN unless `identified`.

    `*_null` is the shuffle of entropies within position, for shapes the architecture at initialisation;
    `*_initialisation` is the latter for the rest. Intervals of shares are corrected for the bias of fitted axes;
    shares below 1.25 times `pc1_share_gaussian`, the share of PC1 of as many Gaussian points as there are sequences,
    have none. `*_signed` are the correlations along PC1, whose largest entry is positive, with intervals in the last
    layer of the `shown_sites`. The absolute value has an interval only where the signed one excludes 0. `*_p` are
    two-sided p-values of permuting the entropies of whole sequences, which leaves what position explains.
    `shown_*` are points to plot. `standardised`: every coordinate had variance 1 first.
    """

    name: ClassVar[str] = "value_manifold"
    title: ClassVar[str] = "Value manifold: a curve ordered by uncertainty?"
    about: ClassVar[str] = (
        "Each dot is the vector that the model holds at one scored position, seen along the directions in which such "
        "vectors vary most (principal components, PC), and coloured by how uncertain the exact posterior is there. The "
        "claim is that training bends these vectors onto one curve along which the uncertainty grows. Two levels to "
        "beat: the same network before training, and the same vectors with entropies exchanged between sequences at "
        "the same position, which keeps all that a code for position explains. Where entropy is a function of "
        "position, as when no key ever returns, the two cannot be told apart and the report says 'not identified': "
        "then only the shape counts, not the order."
    )

    pc1_share: Float[np.ndarray, "site layer"]
    pc1_share_lo: Float[np.ndarray, "site layer"]
    pc1_share_hi: Float[np.ndarray, "site layer"]
    pc1_share_null: Float[np.ndarray, "site layer"]
    pc12_share: Float[np.ndarray, "site layer"]
    pc12_share_lo: Float[np.ndarray, "site layer"]
    pc12_share_hi: Float[np.ndarray, "site layer"]
    pc12_share_null: Float[np.ndarray, "site layer"]
    participation_ratio: Float[np.ndarray, "site layer"]
    participation_ratio_null: Float[np.ndarray, "site layer"]
    spearman: Float[np.ndarray, "site layer"]
    spearman_lo: Float[np.ndarray, "site layer"]
    spearman_hi: Float[np.ndarray, "site layer"]
    spearman_null: Float[np.ndarray, "site layer"]
    spearman_initialisation: Float[np.ndarray, "site layer"]
    spearman_signed: Float[np.ndarray, "site layer"]
    spearman_signed_lo: Float[np.ndarray, "site layer"]
    spearman_signed_hi: Float[np.ndarray, "site layer"]
    spearman_p: Float[np.ndarray, "site layer"]
    pearson: Float[np.ndarray, "site layer"]
    pearson_null: Float[np.ndarray, "site layer"]
    pearson_initialisation: Float[np.ndarray, "site layer"]
    partial_spearman: Float[np.ndarray, "site layer"]
    partial_spearman_lo: Float[np.ndarray, "site layer"]
    partial_spearman_hi: Float[np.ndarray, "site layer"]
    partial_spearman_null: Float[np.ndarray, "site layer"]
    partial_spearman_initialisation: Float[np.ndarray, "site layer"]
    partial_spearman_signed: Float[np.ndarray, "site layer"]
    partial_spearman_signed_lo: Float[np.ndarray, "site layer"]
    partial_spearman_signed_hi: Float[np.ndarray, "site layer"]
    partial_spearman_p: Float[np.ndarray, "site layer"]
    pc1_share_gaussian: Float[np.ndarray, "site layer"]
    entropy_r2: Float[np.ndarray, "site layer"]
    entropy_r2_null: Float[np.ndarray, "site layer"]
    entropy_r2_initialisation: Float[np.ndarray, "site layer"]
    curve_share: Float[np.ndarray, "site layer"]
    curve_share_null: Float[np.ndarray, "site layer"]
    curve_share_initialisation: Float[np.ndarray, "site layer"]
    head_pc1_share: Float[np.ndarray, "layer kv_head"]
    head_pc1_share_null: Float[np.ndarray, "layer kv_head"]
    head_spearman: Float[np.ndarray, "layer kv_head"]
    head_spearman_null: Float[np.ndarray, "layer kv_head"]
    shown_points: Float[np.ndarray, "shown_site point component"]
    shown_curve: Float[np.ndarray, "shown_site step component"]
    shown_entropy_bits: Float[np.ndarray, " point"]
    shown_position: Float[np.ndarray, " point"]
    curve_entropy_bits: Float[np.ndarray, " step"]
    identified: bool
    is_own_entropy: bool
    standardised: bool
    sites: tuple[str, ...]
    shown_sites: tuple[str, ...]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        # Without repeated evidence nothing tells entropy from position: that holds for every relation to entropy.
        unless = ("" if self.identified else " (not identified)") + (
            " (the model's own)" if self.is_own_entropy else ""
        )
        shuffle = "shuffle within position"
        how = ", standardised" if self.standardised else ""
        shares = [self._last("pc1_share", f"PC1 share of {s}{how}", s, "initialisation") for s in self.shown_sites]
        related = [self._last(m, f"resid_post: {label}{unless}", "resid_post", shuffle) for m, label in _ORDER.items()]
        return (shares[0], *related, *shares[1:])

    def figure(self) -> "Figure":
        from bayesgeom.charts.manifold import Cloud, Profile, manifold_figure

        shown = zip(self.shown_sites, self.shown_points, self.shown_curve, strict=True)
        shapes = zip(self.sites, self.pc1_share, self.pc1_share_null, strict=True)
        row, of = self.sites.index("resid_post"), self.arrays()
        return manifold_figure(
            title=self.title if self.identified else f"{self.title} — {_UNIDENTIFIED}",
            clouds=[Cloud(site=site, points=points, curve=curve) for site, points, curve in shown],
            entropy=self.shown_entropy_bits,
            position=self.shown_position,
            shape=[Profile(name=site, values=values, null=null) for site, values, null in shapes],
            order=[Profile(name=name, values=of[m][row], null=of[f"{m}_null"][row]) for m, name in _ORDER.items()],
            null_labels=("initialisation", "shuffle within position"),
        )

    def _last(self, metric: str, label: str, site: str, null_label: str) -> Headline:
        return self.entry(metric, (self.sites.index(site), -1), label, null_label=null_label)


@final
@dataclass(frozen=True)
class ValueManifold(Probe[ValueManifoldReport]):
    """Every recorded site and layer; sequences beyond `MAX_POINTS` points are left out, and `n` says how many count.

    `standardised` gives every coordinate the same variance first, as Paper III does.
    """

    name: ClassVar[str] = "value_manifold"
    needs: ClassVar[Needs] = Needs(sites=(RESID_POST,), optional=(V, Z, ATTN_OUT))
    standardised: bool = False

    def measure(self, run: Run, initialised: Sequence[ValueManifoldReport] = ()) -> ValueManifoldReport:
        n = min(run.n_recorded, max(2, MAX_POINTS // run.trials.n_scored))
        trials = run.trials.rows(slice(0, n))
        # Entropies that differ by rounding are equal: they are compared by rank.
        entropy = run.reference_entropy_bits()[:n].round(9)
        level = trials.scored_positions().cpu().numpy()
        scale = shuffled_scale(entropy, level, shuffles=SHUFFLES, seed=run.seed)

        def points_of(site: Site, layer: int) -> Float[Tensor, "point d"]:
            values = run.at(site)[layer][:n]
            points = (trials.at_scored(values) if "key_pos" in site.axes else values).flatten(2).flatten(0, 1)
            return standardised(points) if self.standardised else points

        layers, sites = range(run.spec.n_layers), [site for site in _SITES if site in run.recorded]
        clouds = {site: [cloud_statistics(points_of(site, i), scale) for i in layers] for site in sites}
        measured: dict[str, Any] = tabulated([*clouds.values()]) | _heads(run, scale, points_of)
        return ValueManifoldReport(
            **measured | _untrained(measured, initialised),
            **_intervals(run, clouds, entropy, points_of),
            **_shown(run, clouds, entropy, points_of),
            identified=scale.identified,
            is_own_entropy=not run.has_posterior,
            standardised=self.standardised,
            sites=tuple(site.name for site in sites),
            shown_sites=tuple(site.name for site in sites if site in _SHOWN),
            intervals={}, nulls={}, n=n,
        )  # fmt: skip

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
                r.curve_share[0, 1] > 0.95 > 0.1 > r.curve_share[0, 0]
                and r.entropy_r2[0, 1] > 0.9 > 0.2 > r.entropy_r2[0, 0]
                and r.partial_spearman[0, 1] > 0.9 > 0.2 > r.partial_spearman[0, 0]
            ),
        )
        yield Control(
            label="values: only scored positions count",
            run=planted_run(trials, {RESID_POST: torch.from_numpy(noise[None]), V: torch.from_numpy(values)}),
            holds=lambda r: r.sites == ("v", "resid_post") and r.curve_share[0, 0] > 0.95 > 0.1 > r.curve_share[1, 0],
        )
        yield Control(
            label="a code for position is not identified",
            run=planted_run(in_step, {RESID_POST: torch.from_numpy(code[None])}),
            holds=lambda r: (
                not r.identified
                and np.isnan(r.partial_spearman).all()
                and np.allclose((r.spearman, r.curve_share), (r.spearman_null, r.curve_share_null))
            ),
        )


def _heads(run: Run, scale: EntropyScale, points_of: PointsOf) -> dict[str, Float[np.ndarray, "layer kv_head"]]:
    """PC1 of the value vectors of each head on its own; NaN where values were not recorded."""
    n_heads, n_layers = run.spec.n_kv_heads, run.spec.n_layers
    layers: Any = [(np.full(n_heads, np.nan),) * 2] * n_layers
    if V in run.recorded:
        layers = [head_statistics(points_of(V, i).unflatten(1, (n_heads, -1)), scale) for i in range(n_layers)]
    share, related = np.moveaxis(np.array(layers), 1, 0)
    return {"head_pc1_share": share, "head_spearman": related}


def _untrained(measured: Mapping[str, Any], initialised: Sequence[ValueManifoldReport]) -> dict[str, Any]:
    """Means over the fresh copies of the architecture; NaN where there are none."""
    fresh = [report.arrays() for report in initialised]
    names = {m: f"{m}_null" for m in (*SHAPES, "head_pc1_share", "head_spearman")}
    names |= {m: f"{m}_initialisation" for m in RELATIONS}
    return {name: mean_over_copies([arrays[m] for arrays in fresh], like=measured[m]) for m, name in names.items()}


def _intervals(
    run: Run,
    clouds: Mapping[Site, Sequence[CloudStatistics]],
    entropy: Float64[np.ndarray, "sequence position"],
    points_of: PointsOf,
) -> dict[str, Any]:
    """Intervals of shares everywhere; signed correlations and p-values everywhere, with intervals where shown."""
    n, n_layers = len(entropy), run.spec.n_layers
    level = run.trials.scored_positions()[:n].cpu().numpy()
    rng = np.random.default_rng(run.seed)
    orders = np.stack([rng.permutation(n) for _ in range(PERMUTATIONS)])
    few, each, even = jackknife_weights(n, most=GROUPS), jackknife_weights(n), np.full((1, n), 1 / n)
    names = [f"{metric}_{end}" for metric in _BOUNDED for end in ("lo", "hi", "signed", "signed_lo", "signed_hi", "p")]
    found: dict[str, Any] = {name: np.full((len(clouds), n_layers), np.nan) for name in (*names, "pc1_share_gaussian")}
    for (row, site), layer in product(enumerate(clouds), range(n_layers)):
        points = points_of(site, layer).unflatten(0, level.shape).cpu().numpy()
        axes, at = clouds[site][layer].axes.cpu().numpy(), (row, layer)
        found["pc1_share_gaussian"][at] = least = gaussian_first_share(n, points.shape[2])
        if clouds[site][layer].shape["pc1_share"] > _ABOVE_GAUSSIAN * least:
            for metric, shares in resampled_cloud(points, axes, few, None).items():
                found[f"{metric}_lo"][at], found[f"{metric}_hi"][at] = statistic_interval(
                    shares, seed=run.seed, scale="share"
                )
        first = (points @ axes[:, 0]).astype(np.float64)
        is_bounded = site in _SHOWN and layer == n_layers - 1
        permuted = order_under_permutation(first, entropy, level, orders)
        for metric, signed in resampled_order(first, entropy, level, each if is_bounded else even).items():
            found[f"{metric}_signed"][at] = signed[0]
            found[f"{metric}_p"][at] = permutation_p(np.asarray(signed[0]), permuted[metric])
            if is_bounded:
                lo, hi = map(float, statistic_interval(signed, seed=run.seed, scale="correlation"))
                found[f"{metric}_signed_lo"][at], found[f"{metric}_signed_hi"][at] = lo, hi
                if lo > 0 or hi < 0:
                    found[f"{metric}_lo"][at], found[f"{metric}_hi"][at] = sorted((abs(lo), abs(hi)))
    return {name: values for name, values in found.items() if name in ValueManifoldReport.axes()}


def _shown(
    run: Run,
    clouds: Mapping[Site, Sequence[CloudStatistics]],
    entropy: Float64[np.ndarray, "sequence position"],
    points_of: PointsOf,
) -> dict[str, Any]:
    """A sample of the last layer's points, and the curve through all of them."""
    flat = entropy.ravel()
    chosen = np.sort(np.random.default_rng(run.seed).permutation(len(flat))[:N_SHOWN])
    grid = np.linspace(flat.min(), flat.max(), N_STEPS)
    views = [view(points_of(s, -1), clouds[s][-1].axes, flat, grid) for s in clouds if s in _SHOWN]
    return {
        "shown_points": np.array([points[chosen] for points, _ in views]),
        "shown_curve": np.array([curve for _, curve in views]),
        "shown_entropy_bits": flat[chosen],
        "shown_position": run.trials.scored_positions().cpu().numpy().ravel()[chosen].astype(np.float64),
        "curve_entropy_bits": grid,
    }


def _planted(
    certainty: Float64[np.ndarray, "sequence position"], rng: np.random.Generator
) -> tuple[Trials, Float64[np.ndarray, "sequence position d"]]:
    """Five hypotheses, one favoured by `certainty`, over eleven tokens; a bent line in certainty, with little noise."""
    favoured = np.eye(5)[rng.integers(5, size=certainty.shape)]
    exact = (1 - certainty[..., None]) / 5 + certainty[..., None] * favoured
    curve = np.stack([3 * certainty, certainty**2, np.sin(3 * certainty)], axis=-1) @ rng.normal(size=(3, 7))
    return planted_trials(exact, rng.integers(7, size=(len(certainty), 11))), curve + 0.01 * rng.normal(
        size=curve.shape
    )
