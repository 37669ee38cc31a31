"""Query–key alignment: does attention go to the positions that are evidence, and more so with depth?

The task names evidence relations between a query and earlier positions. Per relation, layer and head: attention mass on
related positions above what uniform attention would put there; how much closer the query points to related keys; and
how often a related position outscores an unrelated one. Rows that see only one kind of position say nothing and are
left out.

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (Fig. 15, a heat map without a number); Hanley & McNeil 1982.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bayesgeom.activations import Run
from bayesgeom.geometry.correlation import spearman
from bayesgeom.geometry.ranking import visible_ranks
from bayesgeom.probes.base import Control, Needs, Probe, mean_over_copies, planted_run, planted_trials
from bayesgeom.report import Headline, Report
from bayesgeom.sites import K_ROT, PATTERN, Q_ROT
from bayesgeom.statistics import jackknife_weights, linearized_draws, percentile_interval, statistic_bounds
from bayesgeom.trials import Trials

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_SCORES, MIN_SEQUENCES = 4_000_000, 32  # scores ranked, and sequences kept where those are too many
MIN_FOR_ORDER = 256  # sequences for an interval of the order of layers, unless every resample agrees
_METRICS = ("mass_excess", "contrast", "auc")
_NULLS = {"mass_excess": 0.0, "contrast": 0.0, "auc": 0.5, "mass_excess_by_layer": 0.0, "layer_trend": 0.0}


@final
@dataclass(frozen=True, kw_only=True)
class QKAlignmentReport(Report):
    """Alignment of attention with each evidence relation; `_null` is uniform attention, or no difference.

    - `mass_excess`: share of attention on related positions minus `uniform_mass`, that under uniform attention.
    - `contrast`: mean cos(q, k) over related minus unrelated visible positions, row by row.
    - `auc`: chance that a related position has the greater q·k than an unrelated one, ties counting half.
    - `mass_excess_initialisation_most`: the strongest layer of any untrained copy, as the headline's layer is chosen.
    - `layer_trend`: Spearman of layer with the head-mean mass excess. `rows`: query positions behind the numbers.
    """

    name: ClassVar[str] = "qk_alignment"
    title: ClassVar[str] = "Query–key alignment: does attention go to the evidence?"
    about: ClassVar[str] = (
        "For each prediction the task knows which earlier positions are evidence, and in what sense: values already "
        "used up, the pair stored under the same key, the header cell of the symbol just seen. Shown is the share of "
        "attention that a head puts on those positions minus the share that uniform attention would: 0 is no "
        "preference, negative is avoidance. The contrast of cosines and the AUC say the same of the angle between "
        "query and key and of the order of scores. The papers claim that alignment sharpens with depth: the profile "
        "over layers and its rank correlation with depth test that. An untrained model shows what comes for free."
    )

    relations: tuple[str, ...]
    mass_excess: Float[np.ndarray, "relation layer head"]
    mass_excess_lo: Float[np.ndarray, "relation layer head"]
    mass_excess_hi: Float[np.ndarray, "relation layer head"]
    mass_excess_null: Float[np.ndarray, " relation"]
    contrast: Float[np.ndarray, "relation layer head"]
    contrast_lo: Float[np.ndarray, "relation layer head"]
    contrast_hi: Float[np.ndarray, "relation layer head"]
    contrast_null: Float[np.ndarray, " relation"]
    auc: Float[np.ndarray, "relation layer head"]
    auc_lo: Float[np.ndarray, "relation layer head"]
    auc_hi: Float[np.ndarray, "relation layer head"]
    auc_null: Float[np.ndarray, " relation"]
    mass_excess_by_layer: Float[np.ndarray, "relation layer"]
    mass_excess_by_layer_lo: Float[np.ndarray, "relation layer"]
    mass_excess_by_layer_hi: Float[np.ndarray, "relation layer"]
    mass_excess_by_layer_null: Float[np.ndarray, " relation"]
    layer_trend: Float[np.ndarray, " relation"]
    layer_trend_lo: Float[np.ndarray, " relation"]
    layer_trend_hi: Float[np.ndarray, " relation"]
    layer_trend_null: Float[np.ndarray, " relation"]
    uniform_mass: Float[np.ndarray, " relation"]
    mass_excess_initialisation: Float[np.ndarray, "relation layer head"]
    mass_excess_initialisation_most: Float[np.ndarray, " relation"]
    contrast_initialisation: Float[np.ndarray, "relation layer head"]
    auc_initialisation: Float[np.ndarray, "relation layer head"]
    rows: Int[np.ndarray, " relation"]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        """Per relation the layer that seeks or avoids it most, heads averaged; then the trend of the strongest one."""
        if not self.relations:
            return (Headline(metric="layer_trend", label="the task names no evidence relations", value=np.nan),)
        strength = np.nan_to_num(np.abs(self.mass_excess_by_layer))
        rows = []
        for i, layer in enumerate(strength.argmax(axis=1).tolist()):
            untrained, most = self.mass_excess_initialisation[i, layer].mean(), self.mass_excess_initialisation_most[i]
            beside = "uniform"
            if not np.isnan(untrained):
                beside = f"initialisation {untrained:.3g}, in a copy's own layer up to ±{most:.2g}; uniform"
            label = f"{_words(self.relations[i])}: attention above uniform, layer {layer}"
            rows.append(self.entry("mass_excess_by_layer", (i, layer), label, null_label=beside))
        leading, spread = int(strength.max(axis=1).argmax()), min(1.0, 1.96 / max(1, strength.shape[1] - 1) ** 0.5)
        label = f"{_words(self.relations[leading])}: Spearman of layer with that excess"
        beside = f"95 % of random orders within ±{spread:.2g}; none"
        return (*rows, self.entry("layer_trend", (leading,), label, null_label=beside))

    def figure(self) -> "Figure":
        from bayesgeom.charts.heads import add_heads, add_note, add_profile, with_null
        from bayesgeom.charts.theme import SERIES, label_axes, panels, with_room_for_legend

        labels = {"mass_excess": "attention above uniform", "auc": "AUC of q·k"}
        # One scale for all relations, and none so fine that rounding looks like structure.
        reach = float(np.nan_to_num(np.abs(self.mass_excess)).max(initial=0.1))
        limits = {"mass_excess": (-reach, reach), "auc": (0.0, 1.0)}
        titles = ["Attention above uniform, mean over heads", "cos(q, k), related − unrelated, mean over heads"]
        for relation in self.relations:
            titles += [with_null(f"{_words(relation)}: {labels[m]}", _NULLS[m], "null") for m in labels]
        figure = panels(self.title, tuple(titles))
        if not self.relations:
            add_note(figure, (1, 1), "the task names no evidence relations")
            add_note(figure, (1, 2), "")
            return figure
        zero = np.zeros(self.mass_excess.shape[1])
        for i, (relation, color) in enumerate(zip(self.relations, SERIES * len(self.relations), strict=False)):
            band = (self.mass_excess_by_layer_lo[i], self.mass_excess_by_layer_hi[i])
            nulls = {"uniform attention": zero, "initialisation": self.mass_excess_initialisation[i].mean(axis=1)}
            name, profile = _words(relation), self.mass_excess_by_layer[i]
            add_profile(figure, (1, 1), profile, name=name, band=band, nulls=nulls, color=color)
            nulls = {"no difference": zero, "initialisation": self.contrast_initialisation[i].mean(axis=1)}
            add_profile(figure, (1, 2), self.contrast[i].mean(axis=1), name=name, nulls=nulls, color=color)
            for column, (metric, label) in enumerate(labels.items(), start=1):
                panel, values = (i + 2, column), vars(self)[metric][i]
                add_heads(figure, panel, values, unit=label, null=_NULLS[metric], limits=limits[metric])
        label_axes(figure, (1, 1), "layer", "share of attention")
        label_axes(figure, (1, 2), "layer", "difference of cosines")
        return with_room_for_legend(figure)


@final
@dataclass(frozen=True)
class QKAlignment(Probe[QKAlignmentReport]):
    """Reads the first recorded sequences, as many as it takes for a few million scores."""

    name: ClassVar[str] = "qk_alignment"
    needs: ClassVar[Needs] = Needs(sites=(Q_ROT, K_ROT, PATTERN))

    def measure(self, run: Run, initialised: Sequence[QKAlignmentReport] = ()) -> QKAlignmentReport:
        relations = tuple(run.trials.relations)
        per_sequence = run.at(PATTERN)[:, :1].numel()
        n = min(run.n_recorded, max(MIN_SEQUENCES, MAX_SCORES // per_sequence))
        evidence = _evidence(run, relations, n)
        sums = np.stack([_layer_sums(run, layer, evidence) for layer in range(run.spec.n_layers)], axis=3)
        sums = sums - evidence.offsets[..., None, None]
        weights = jackknife_weights(n)
        rows = np.tensordot(weights, evidence.rows, axes=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.tensordot(weights, sums, axes=1) / rows[:, None, :, None, None]
            uniform_mass = evidence.offsets[:, 0].mean(axis=0) / rows[0]
        by_layer = means[:, 0].mean(axis=-1)
        arrays: dict[str, Any] = statistic_bounds("mass_excess_by_layer", by_layer, seed=run.seed)
        lo, hi = percentile_interval(_layer_trend(linearized_draws(by_layer, seed=run.seed)))
        # Layers that are nearly alike change places among few sequences, and no interval of their order covers.
        lo, hi = (np.where((lo == hi) | (n >= MIN_FOR_ORDER), end, np.nan) for end in (lo, hi))
        arrays |= {"layer_trend": _layer_trend(by_layer[:1])[0], "layer_trend_lo": lo, "layer_trend_hi": hi}
        copies = [copy for copy in initialised if copy.relations == relations]
        for i, metric in enumerate(_METRICS):
            arrays |= statistic_bounds(metric, means[:, i], seed=run.seed)
            found = [vars(copy)[metric] for copy in copies]
            arrays[f"{metric}_initialisation"] = mean_over_copies(found, like=means[0, i])
        strongest = [np.abs(copy.mass_excess_by_layer).max(axis=1) for copy in copies]
        arrays["mass_excess_initialisation_most"] = np.max(strongest or [np.full(len(relations), np.nan)], axis=0)
        return QKAlignmentReport(
            relations=relations,
            **arrays,
            **{f"{metric}_null": np.full(len(relations), level) for metric, level in _NULLS.items()},
            uniform_mass=uniform_mass,
            rows=evidence.rows.sum(axis=0).astype(np.int64),
            intervals={},
            nulls={},
            n=n,
        )

    def controls(self) -> Iterator[Control[QKAlignmentReport]]:
        trials = _planted_trials(n=11)
        aligned = _planted_run(trials, torch.stack([torch.zeros_like(e := _preference(trials)), e, -e]))
        yield Control(label="nowhere, to the evidence, away from it", run=aligned, holds=_tells_layers_apart)
        trials = _planted_trials(n=400)
        random = torch.randn(2, *_preference(trials).shape, generator=torch.Generator().manual_seed(0))
        yield Control(label="random queries", run=_planted_run(trials, random), holds=_is_at_chance)


@final
@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """What to multiply pattern, cosines and ranks with, so that a sum over keys and rows is the metric's numerator.

    `offsets` are taken from those sums; `rows` counts the query positions that see both kinds of position.
    """

    weights: Float[Tensor, "3 batch query_key relation"]
    offsets: Float[np.ndarray, "batch 3 relation"]
    rows: Float[np.ndarray, "batch relation"]
    visible: Bool[Tensor, "batch query_pos key_pos"]


def _evidence(run: Run, relations: Sequence[str], n: int) -> _Evidence:
    trials = run.trials.rows(slice(0, n))
    visible = torch.arange(trials.tokens.shape[1], device=trials.tokens.device) <= trials.scored_positions()[..., None]
    named = [trials.relations[name] for name in relations]
    related = torch.stack(named, dim=-1) if named else visible.new_zeros((*visible.shape, 0))
    related, unrelated = related & visible[..., None], ~related & visible[..., None]
    n_related, n_unrelated = (kind.sum(dim=2, keepdim=True).float() for kind in (related, unrelated))
    has_both = ((n_related > 0) & (n_unrelated > 0)).float()
    share = has_both / n_related.clamp_min(1)
    counterpart = has_both / n_unrelated.clamp_min(1)
    # The Mann–Whitney identity: AUC = (Σ ranks of related − n(n + 1)/2) / (n m).
    weights = (related * has_both, related * share - unrelated * counterpart, related * share * counterpart)
    uniform = has_both * n_related / (n_related + n_unrelated)
    offsets = (uniform, torch.zeros_like(uniform), (n_related + 1) / 2 * counterpart)
    return _Evidence(
        weights=torch.stack(weights).flatten(2, 3).cpu(),
        offsets=torch.stack([offset.sum(dim=(1, 2)) for offset in offsets], dim=1).double().cpu().numpy(),
        rows=has_both.sum(dim=(1, 2)).double().cpu().numpy(),
        visible=visible.cpu(),
    )


def _layer_sums(run: Run, layer: int, evidence: _Evidence) -> Float[np.ndarray, "batch 3 relation head"]:
    """Weighted sums of pattern, cosines and ranks over the rows of each sequence."""
    n = len(evidence.visible)
    q, k, pattern = (run.at(site)[layer, :n].float().cpu() for site in (Q_ROT, K_ROT, PATTERN))
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
    lengths = torch.einsum("bqh,bkh->bhqk", q.norm(dim=-1), k.norm(dim=-1))
    found = (pattern, scores / lengths, visible_ranks(scores, evidence.visible[:, None]))
    sums = [values.flatten(2) @ weights for values, weights in zip(found, evidence.weights, strict=True)]
    return torch.stack(sums, dim=1).movedim(2, 3).double().numpy()


def _layer_trend(by_layer: Float[np.ndarray, "draw relation layer"]) -> Float[np.ndarray, "draw relation"]:
    """Spearman of layer with value; differences below 1e-6 are rounding and count as ties."""
    values = np.moveaxis(by_layer.round(6), 2, 0)
    layers = np.broadcast_to(np.arange(len(values), dtype=float)[:, None, None], values.shape)
    return spearman(layers, values)


def _words(relation: str) -> str:
    return relation.replace("_", " ")


def _planted_trials(n: int) -> Trials:
    """Seven positions, the last three scored; the first is always evidence, the second never."""
    rng = np.random.default_rng(0)
    related = rng.random((n, 3, 7)) < 0.4
    related[..., 0], related[..., 1] = True, False
    relations = {"evidence": related, "everything": np.ones_like(related)}
    return planted_trials(np.full((n, 3, 2), 0.5), rng.integers(5, size=(n, 7)), relations=relations)


def _preference(trials: Trials) -> Float[Tensor, "batch query_pos key_pos"]:
    """1 at evidence, −1 elsewhere."""
    return trials.relations["evidence"].float() * 2 - 1


def _planted_run(trials: Trials, scores: Float[Tensor, "layer batch query_pos key_pos"]) -> Run:
    """One head whose q·k is ten times `scores`: keys are a basis of positions, and no query is zero."""
    n_pos = scores.shape[-1]
    visible = torch.arange(n_pos) <= trials.scored_positions()[..., None]
    q = torch.nn.functional.pad(10 * scores * visible, (0, 1), value=1.0)[:, :, :, None, :]
    k = torch.eye(n_pos, n_pos + 1)[None, None, :, None, :].expand(*scores.shape[:2], -1, -1, -1)
    pattern = (10 * scores).masked_fill(~visible, -torch.inf).softmax(-1)[:, :, None]
    return planted_run(trials, {Q_ROT: q, K_ROT: k, PATTERN: pattern})


def _tells_layers_apart(report: QKAlignmentReport) -> bool:
    uniform = report.uniform_mass[0]
    mass, auc, contrast = report.mass_excess[0, :, 0], report.auc[0, :, 0], report.contrast[0, :, 0]
    return bool(
        np.allclose(mass, [0, 1 - uniform, -uniform], atol=1e-4)
        and np.allclose(auc, [0.5, 1, 0], atol=1e-4)
        and abs(contrast[0]) < 1e-5 < contrast[1]
        and np.isclose(report.layer_trend[0], -0.5)
        and np.isnan(report.mass_excess[1]).all()
    )


def _is_at_chance(report: QKAlignmentReport) -> bool:
    found = (report.mass_excess[0], report.contrast[0], report.auc[0] - 0.5)
    return bool(np.abs(found).max() < 0.05)
