"""Query–key alignment: does attention go to the positions that are evidence, and more so with depth?

The task names evidence relations between a query and earlier positions. Per relation, layer and head: attention mass on
related positions minus that of uniform attention; difference of cos(q, k) between related and unrelated positions; and
AUC of q·k. The baseline is the same relation taken from another sequence at the same position: what a head that only
knows positions would score. A relation that is the same mask in every sequence is not identified as evidence-following.

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (Fig. 15, a heat map without a number); Hanley & McNeil 1982.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bayesgeom.core.run import Run
from bayesgeom.core.sites import K_ROT, PATTERN, Q_ROT
from bayesgeom.core.trials import Trials
from bayesgeom.probes.base import Control, Needs, Probe, mean_over_copies, planted_run, planted_trials
from bayesgeom.results.report import Headline, Report
from bayesgeom.stats.bootstrap import jackknife_weights, linearized_draws, percentile_interval, statistic_bounds
from bayesgeom.stats.correlation import spearman
from bayesgeom.stats.ranking import rounding_of_products, visible_ranks

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

ROUNDING = 1e-6  # of a share of attention: a layer this close to the baseline is at it, with an interval or without
MAX_SCORES, MIN_SEQUENCES = 4_000_000, 32  # scores ranked, and sequences kept where those are too many
SHIFTS = (1, 2, 3)  # the other sequences: so many places further in the batch, around its end
POSITIONAL = "the same positions in every sequence"
MIN_FOR_ORDER = 256  # sequences for an interval of the order of layers, unless every resample agrees
_METRICS = ("mass_excess", "contrast", "auc")
_NULLS = {"mass_excess": 0.0, "contrast": 0.0, "auc": 0.5, "mass_excess_by_layer": 0.0, "layer_trend": 0.0}


@final
@dataclass(frozen=True, kw_only=True)
class QKAlignmentReport(Report):
    """Alignment of attention with each evidence relation, by layer and head.

    - `mass_excess`: share of attention on related positions minus `uniform_mass`, that under uniform attention.
    - `contrast`: mean cos(q, k) over related minus unrelated visible positions, row by row.
    - `auc`: chance that a related position has the greater q·k than an unrelated one. Ties count half;
      scores that differ by no more than rounding are ties.
    - `…_over_other`: each of these minus its value for the same relation of another sequence at the same position, with
      a paired interval. It is 0 for attention that depends on positions alone.
    - `identified`: 1 where the relation differs between sequences, else 0. `mask_difference`: share of the visible
      positions at which the relation of another sequence differs, over rows that count. `verdicts`: see `_verdict`.
    - `…_initialisation`: mean over untrained networks; `mass_over_other_initialisation_most`: their strongest layer.
    - `layer_trend`: Spearman of layer with the head-mean `mass_over_other_by_layer`; NaN where it is not identified.
    - `rows`: query positions behind the numbers; a row counts where it sees related and unrelated positions.
    """

    name: ClassVar[str] = "qk_alignment"
    title: ClassVar[str] = "Query–key alignment: does attention go to the evidence?"
    about: ClassVar[str] = (
        "For each prediction the task names the earlier positions that are evidence: the pair stored under the same "
        "key, the header cells of the current symbol. The number is the share of attention that a head puts on those "
        "positions, minus the share that it puts on the positions that are evidence for another sequence at the same "
        "place. It is 0 for a head that only looks at certain positions, for instance at itself. Where the related "
        "positions are the same in every sequence, attention to evidence and attention to positions cannot be told "
        "apart, and the relation is reported as not identified. The contrast of cosines and the AUC say the same of "
        "the angle between query and key and of the order of scores. The papers claim that alignment sharpens with "
        "depth: the profile over layers and its rank correlation with depth test that. Untrained networks are shown "
        "for comparison."
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
    mass_over_other: Float[np.ndarray, "relation layer head"]
    mass_over_other_lo: Float[np.ndarray, "relation layer head"]
    mass_over_other_hi: Float[np.ndarray, "relation layer head"]
    contrast_over_other: Float[np.ndarray, "relation layer head"]
    contrast_over_other_lo: Float[np.ndarray, "relation layer head"]
    contrast_over_other_hi: Float[np.ndarray, "relation layer head"]
    auc_over_other: Float[np.ndarray, "relation layer head"]
    auc_over_other_lo: Float[np.ndarray, "relation layer head"]
    auc_over_other_hi: Float[np.ndarray, "relation layer head"]
    mass_over_other_by_layer: Float[np.ndarray, "relation layer"]
    mass_over_other_by_layer_lo: Float[np.ndarray, "relation layer"]
    mass_over_other_by_layer_hi: Float[np.ndarray, "relation layer"]
    mass_over_other_by_layer_null: Float[np.ndarray, " relation"]
    identified: Float[np.ndarray, " relation"]
    mask_difference: Float[np.ndarray, " relation"]
    verdicts: tuple[str, ...]
    uniform_mass: Float[np.ndarray, " relation"]
    mass_excess_initialisation: Float[np.ndarray, "relation layer head"]
    mass_over_other_initialisation: Float[np.ndarray, "relation layer head"]
    mass_over_other_initialisation_most: Float[np.ndarray, " relation"]
    contrast_initialisation: Float[np.ndarray, "relation layer head"]
    auc_initialisation: Float[np.ndarray, "relation layer head"]
    rows: Int[np.ndarray, " relation"]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        """Per identified relation the strongest layer, heads averaged; the strongest relation's trend; the rest."""
        if not self.relations:
            return (Headline(metric="layer_trend", label="the task names no evidence relations", value=np.nan),)
        strength = np.nan_to_num(np.abs(self.mass_over_other_by_layer))
        rows, unknown = list[Headline](), list[Headline]()
        for i, layer in enumerate(strength.argmax(axis=1).tolist()):
            if not self.identified[i]:
                label = f"{_words(self.relations[i])}: {self.verdicts[i]}"
                unknown.append(Headline(metric="layer_trend", label=label, value=np.nan))
                continue
            untrained = self.mass_over_other_initialisation[i, layer].mean()
            beside = "another sequence's relation"
            if not np.isnan(untrained):
                most = self.mass_over_other_initialisation_most[i]
                beside = f"untrained {untrained:.2g}, their strongest layer ±{most:.2g}; {beside}"
            label = f"{_words(self.relations[i])}: {self.verdicts[i]}, attention above baseline, layer {layer}"
            rows.append(self.entry("mass_over_other_by_layer", (i, layer), label, null_label=beside))
        if not rows:
            return unknown
        leading, spread = int(strength.max(axis=1).argmax()), min(1.0, 1.96 / max(1, strength.shape[1] - 1) ** 0.5)
        label = f"{_words(self.relations[leading])}: Spearman of layer with attention above baseline"
        beside = f"95 % of random orders within ±{spread:.2g}; none"
        return (*rows, self.entry("layer_trend", (leading,), label, null_label=beside), *unknown)

    def figure(self) -> "Figure":
        from bayesgeom.charts.heads import add_heads, add_note, add_profile, with_null
        from bayesgeom.results.theme import SERIES, label_axes, panels, with_room_for_legend

        labels = {"mass_over_other": "attention above another sequence's relation", "auc": "AUC of q·k"}
        levels = {"mass_over_other": 0.0, "auc": 0.5}
        # One scale for all relations, and none so fine that rounding looks like structure.
        reach = float(np.nan_to_num(np.abs(self.mass_over_other)).max(initial=0.1))
        limits = {"mass_over_other": (-reach, reach), "auc": (0.0, 1.0)}
        titles = ["Attention above baseline, mean over heads", "cos(q, k) above baseline, mean over heads"]
        for relation, known in zip(self.relations, self.identified, strict=True):
            note = "" if known else " (not identified)"
            titles += [with_null(f"{_words(relation)}{note}: {labels[m]}", levels[m], "baseline") for m in labels]
        figure = panels(self.title, tuple(titles))
        if not self.relations:
            add_note(figure, (1, 1), "the task names no evidence relations")
            add_note(figure, (1, 2), "")
            return figure
        zero = np.zeros(self.mass_excess.shape[1])
        for i, (relation, color) in enumerate(zip(self.relations, SERIES * len(self.relations), strict=False)):
            band = (self.mass_over_other_by_layer_lo[i], self.mass_over_other_by_layer_hi[i])
            nulls = {
                "another sequence's relation": zero,
                "untrained": self.mass_over_other_initialisation[i].mean(axis=1),
            }
            name, profile = _words(relation), self.mass_over_other_by_layer[i]
            add_profile(figure, (1, 1), profile, name=name, band=band, nulls=nulls, color=color)
            nulls = {"another sequence's relation": zero}
            contrast = self.contrast_over_other[i].mean(axis=1)
            add_profile(figure, (1, 2), contrast, name=name, nulls=nulls, color=color)
            for column, (metric, label) in enumerate(labels.items(), start=1):
                panel, values = (i + 2, column), vars(self)[metric][i]
                add_heads(figure, panel, values, unit=label, null=levels[metric], limits=limits[metric])
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
        weights = jackknife_weights(n)
        masks = _masks(run, relations, n)
        own, compared = _evidence(masks, masks.has_both), _compared(masks)
        sums = np.stack([_layer_sums(run, layer, (own, compared)) for layer in range(run.spec.n_layers)], axis=4)
        means, over = (_means(found, evidence, weights) for found, evidence in zip(sums, (own, compared), strict=True))
        by_layer, over_by_layer = means[:, 0].mean(axis=-1), over[:, 0].mean(axis=-1)
        arrays: dict[str, Any] = statistic_bounds("mass_excess_by_layer", by_layer, seed=run.seed)
        arrays |= statistic_bounds("mass_over_other_by_layer", over_by_layer, seed=run.seed)
        trend = _layer_trend(over_by_layer[:1])[0]
        ends = percentile_interval(_layer_trend(linearized_draws(over_by_layer, seed=run.seed)))
        # Layers that are nearly alike change places among few sequences, and an interval of their order is then wide.
        is_known = (ends[0] == ends[1]) | (n >= MIN_FOR_ORDER)
        bounds = [np.where(is_known, end, np.nan) for end in ends]
        known = ("layer_trend", "layer_trend_lo", "layer_trend_hi"), (trend, *bounds)
        arrays |= {name: np.where(masks.is_constant, np.nan, value) for name, value in zip(*known, strict=True)}
        copies = [copy for copy in initialised if copy.relations == relations]
        for i, (metric, short) in enumerate(zip(_METRICS, ("mass", "contrast", "auc"), strict=True)):
            arrays |= statistic_bounds(metric, means[:, i], seed=run.seed)
            arrays |= statistic_bounds(f"{short}_over_other", over[:, i], seed=run.seed)
            found = [vars(copy)[metric] for copy in copies]
            arrays[f"{metric}_initialisation"] = mean_over_copies(found, like=means[0, i])
        found = [copy.mass_over_other for copy in copies]
        arrays["mass_over_other_initialisation"] = mean_over_copies(found, like=over[0, 0])
        strongest = [np.abs(copy.mass_over_other_by_layer).max(axis=1) for copy in copies]
        most = np.max(strongest or [np.full(len(relations), np.nan)], axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            uniform_mass = own.offsets[:, 0].sum(axis=0) / own.rows.sum(axis=0)
        identified = np.where(masks.is_constant, 0.0, 1.0)
        return QKAlignmentReport(
            relations=relations,
            **arrays,
            **{f"{metric}_null": np.full(len(relations), level) for metric, level in _NULLS.items()},
            mass_over_other_by_layer_null=np.zeros(len(relations)),
            mass_over_other_initialisation_most=most,
            identified=identified,
            mask_difference=masks.difference,
            verdicts=tuple(_verdict(i, own.rows.sum(axis=0), identified, arrays, most) for i in range(len(relations))),
            uniform_mass=uniform_mass,
            rows=own.rows.sum(axis=0).astype(np.int64),
            intervals={},
            nulls={},
            n=n,
        )

    def controls(self) -> Iterator[Control[QKAlignmentReport]]:
        trials = _planted_trials(n=11)
        aligned = _planted_run(trials, torch.stack([torch.zeros_like(e := _preference(trials)), e, -e]))
        yield Control(label="nowhere, to the evidence, away from it", run=aligned, holds=_tells_layers_apart)
        yield Control(
            label="a head that attends to itself follows no evidence", run=_attends_to_itself(), holds=_is_positional
        )
        trials = _planted_trials(n=400)
        random = torch.randn(2, *_preference(trials).shape, generator=torch.Generator().manual_seed(0))
        yield Control(label="random queries", run=_planted_run(trials, random), holds=_is_at_chance)


@final
@dataclass(frozen=True, kw_only=True)
class _Masks:
    """Which visible positions are related, by sequence, query, key and relation."""

    related: Bool[Tensor, "batch query_pos key_pos relation"]
    visible: Bool[Tensor, "batch query_pos key_pos"]

    def of_another(self, shift: int) -> "_Masks":
        """The relation of the sequence `shift` places before, at the same query, where it is visible here."""
        return _Masks(related=self.related.roll(shift, dims=0) & self.visible[..., None], visible=self.visible)

    @property
    def has_both(self) -> Bool[Tensor, "batch query_pos relation"]:
        """Rows that see related and unrelated positions."""
        unrelated = ~self.related & self.visible[..., None]
        return self.related.any(dim=2) & unrelated.any(dim=2)

    @property
    def is_constant(self) -> Bool[np.ndarray, " relation"]:
        """Whether all sequences have the same related positions at the same query."""
        same: np.ndarray = (self.related == self.related[:1]).flatten(0, 2).all(dim=0).cpu().numpy()
        return same

    @property
    def difference(self) -> Float[np.ndarray, " relation"]:
        """Share of the visible positions at which the relation of the sequence before differs."""
        differs = (self.related != self.of_another(1).related).flatten(0, 2).sum(dim=0).double()
        share: np.ndarray = (differs / self.visible.sum()).cpu().numpy()
        return share


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


def _masks(run: Run, relations: Sequence[str], n: int) -> _Masks:
    trials = run.trials.rows(slice(0, n))
    visible = torch.arange(trials.tokens.shape[1], device=trials.tokens.device) <= trials.scored_positions()[..., None]
    named = [trials.relations[name] for name in relations]
    related = torch.stack(named, dim=-1) if named else visible.new_zeros((*visible.shape, 0))
    return _Masks(related=(related & visible[..., None]).cpu(), visible=visible.cpu())


def _evidence(masks: _Masks, counted: Bool[Tensor, "batch query_pos relation"]) -> _Evidence:
    related, visible = masks.related, masks.visible
    n_related, n_visible = related.sum(dim=2, keepdim=True).float(), visible.sum(dim=2)[..., None, None].float()
    has_both = counted[:, :, None].float()
    share, counterpart = has_both / n_related.clamp_min(1), has_both / (n_visible - n_related).clamp_min(1)
    unrelated = ~related & visible[..., None]
    # The Mann–Whitney identity: AUC = (Σ ranks of related − n(n + 1)/2) / (n m).
    weights = (related * has_both, related * share - unrelated * counterpart, related * share * counterpart)
    offsets = (has_both * n_related / n_visible, torch.zeros_like(has_both), (n_related + 1) / 2 * counterpart)
    return _Evidence(
        weights=torch.stack(weights).flatten(2, 3),
        offsets=torch.stack([offset.sum(dim=(1, 2)) for offset in offsets], dim=1).double().numpy(),
        rows=counted.sum(dim=1).double().numpy(),
        visible=visible,
    )


def _compared(masks: _Masks) -> _Evidence:
    """The relation minus that of another sequence, over rows that count for both; summed over several others.

    The metrics are linear in the weights and offsets, so their difference is the metric of the difference.
    """
    zero = _evidence(masks, torch.zeros_like(masks.has_both))
    weights, offsets, rows = zero.weights, zero.offsets, zero.rows
    for shift in (shift for shift in SHIFTS if shift < len(masks.visible)):
        other = masks.of_another(shift)
        counted = masks.has_both & other.has_both
        mine, theirs = _evidence(masks, counted), _evidence(other, counted)
        weights, offsets = weights + mine.weights - theirs.weights, offsets + mine.offsets - theirs.offsets
        rows = rows + mine.rows
    return _Evidence(weights=weights, offsets=offsets, rows=rows, visible=masks.visible)


def _layer_sums(
    run: Run, layer: int, evidences: Sequence[_Evidence]
) -> Float[np.ndarray, "evidence batch 3 relation head"]:
    """Weighted sums of pattern, cosines and ranks over the rows of each sequence."""
    visible = evidences[0].visible
    q, k, pattern = (run.at(site)[layer, : len(visible)].float().cpu() for site in (Q_ROT, K_ROT, PATTERN))
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
    lengths = torch.einsum("bqh,bkh->bhqk", q.norm(dim=-1), k.norm(dim=-1))
    rounding = rounding_of_products(lengths, visible[:, None], d=q.shape[-1], dtype=run.at(Q_ROT).dtype)
    found = (pattern, scores / lengths, visible_ranks(scores, visible[:, None], rounding))
    sums = [
        torch.stack([values.flatten(2) @ weights for values, weights in zip(found, of.weights, strict=True)], dim=1)
        for of in evidences
    ]
    return torch.stack(sums).movedim(3, 4).double().numpy()


def _means(
    sums: Float[np.ndarray, "batch 3 relation layer head"],
    evidence: _Evidence,
    weights: Float[np.ndarray, "draw batch"],
) -> Float[np.ndarray, "draw 3 relation layer head"]:
    """The metrics in each resample: numerators and numbers of rows are resampled together."""
    with np.errstate(invalid="ignore", divide="ignore"):
        numerator = np.tensordot(weights, sums - evidence.offsets[..., None, None], axes=1)
        return np.asarray(numerator / np.tensordot(weights, evidence.rows, axes=1)[:, None, :, None, None])


def _verdict(
    i: int,
    rows: Float[np.ndarray, " relation"],
    identified: Float[np.ndarray, " relation"],
    arrays: dict[str, Any],
    untrained: Float[np.ndarray, " relation"],
) -> str:
    """Compare the layer farthest from the baseline with it, and with the strongest layer of untrained networks.

    "above" and "below": its interval excludes 0 and everything between ± the untrained networks' strongest layer.
    """
    if rows[i] == 0:
        return "not measured: no query sees both related and unrelated positions"
    profile, lo, hi = (arrays[f"mass_over_other_by_layer{end}"][i] for end in ("", "_lo", "_hi"))
    if not identified[i]:
        return f"not identified as evidence-following: {POSITIONAL}"
    if np.isnan(profile).all():
        return "not measured: too few sequences to compare with another"
    layer, level = int(np.nan_to_num(np.abs(profile)).argmax()), float(np.nan_to_num(untrained[i]))
    if np.isnan(lo[layer]) and abs(profile[layer]) > ROUNDING:
        return f"undecided: no interval in layer {layer}, as the sample is too small or too uneven"
    return "above" if lo[layer] > level else "below" if hi[layer] < -level else "at baseline"


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


def _attends_to_itself() -> Run:
    """Two relations that avoid the query's own position: one fixed by position, one that differs by sequence."""
    rng = np.random.default_rng(1)
    n, tokens = 61, np.tile(np.arange(7), (61, 1))
    differing = rng.random((n, 3, 7)) < 0.5
    fixed = np.broadcast_to(np.arange(7) % 2 == 0, differing.shape).copy()
    for q in range(3):
        differing[:, q, 4 + q] = fixed[:, q, 4 + q] = False
    trials = planted_trials(np.full((n, 3, 2), 0.5), tokens, relations={"fixed": fixed, "differing": differing})
    itself = torch.nn.functional.one_hot(trials.scored_positions(), 7).float()
    return _planted_run(trials, itself[None])


def _is_positional(report: QKAlignmentReport) -> bool:
    """Uniform attention alone is beaten by far in both; against another sequence's relation nothing is left."""
    return bool(
        (report.mass_excess[:, 0, 0] < -0.3).all()
        and report.identified.tolist() == [0.0, 1.0]
        and not report.mass_over_other[0].any()
        and abs(report.mass_over_other[1, 0, 0]) < 0.02
        and report.verdicts == (f"not identified as evidence-following: {POSITIONAL}", "at baseline")
    )


def _tells_layers_apart(report: QKAlignmentReport) -> bool:
    uniform = report.uniform_mass[0]
    mass, auc, contrast = report.mass_excess[0, :, 0], report.auc[0, :, 0], report.contrast[0, :, 0]
    return bool(
        np.allclose(mass, [0, 1 - uniform, -uniform], atol=1e-4)
        and np.allclose(auc, [0.5, 1, 0], atol=1e-4)
        and abs(contrast[0]) < 1e-5 < contrast[1]
        and np.isclose(report.layer_trend[0], -0.5)
        and report.verdicts[0] in ("above", "below")
        and np.isnan(report.mass_excess[1]).all()
    )


def _is_at_chance(report: QKAlignmentReport) -> bool:
    found = (report.mass_excess[0], report.contrast[0], report.auc[0] - 0.5)
    over = (report.mass_over_other[0], report.contrast_over_other[0], report.auc_over_other[0])
    return bool(np.abs(found).max() < 0.05 and np.abs(over).max() < 0.05)
