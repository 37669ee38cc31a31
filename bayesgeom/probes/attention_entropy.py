"""Attention entropy and attention–posterior consistency: how narrow attention is, and whether it follows the posterior.

Entropy of each attention row at scored positions, in bits and as a share of log2(visible positions). Consistency is
1 − total variation between the attention on each hypothesis' token and the exact posterior over hypotheses:

    Σ_h min(attention on token h, belief in h). Attention on other tokens matches no hypothesis.

Its baselines are uniform attention and attention of another sequence at the same position. If the posterior over the
visible positions is the same in every sequence, the two coincide and consistency is not identified.

References:
    Agarwal, Dalal & Misra, Paper III (85–90 % entropy reduction in wind tunnels, definition not given there).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float

from bayesgeom.core.run import PATTERN, Run, Trials
from bayesgeom.probes._consistency import HYPOTHESES, NOT_IDENTIFIED, SUMS, agreement_of
from bayesgeom.probes.base import Control, Needs, Probe, planted_run, planted_trials
from bayesgeom.results.estimate import AtMostOne, Baseline, Estimate, NonNegative, Share, Signed, Unit, within
from bayesgeom.results.estimators import of_untrained, smooth_estimate
from bayesgeom.results.findings import numbers
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.stats.bootstrap import jackknife_weights
from bayesgeom.stats.extremes import remark_of
from bayesgeom.stats.intervals import UNBOUNDED, Bounds

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_WEIGHTS, MIN_SEQUENCES = 4_000_000, 32  # most attention weights read; least sequences read
_SPREAD = "middle of sequences"  # of the quantile bands
UNIFORM, OTHER = "uniform attention", "another sequence's attention"
_QUANTILES = {"5 %": 0.05, "25 %": 0.25, "50 %": 0.5, "75 %": 0.75, "95 %": 0.95}


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionEntropyReport(Report):
    """Width of attention, and its agreement with the posterior.

    `reduction` is 1 − last/first layer's entropy, averaged over heads. `consistency_over_other` is consistency minus
    that of another sequence's attention at the same position, with a paired interval. `most_possible_consistency` is
    the maximum possible with the visible tokens. `note` gives the reason if consistency is undefined or not identified
    (`identified`).
    """

    name: ClassVar[str] = "attention_entropy"
    title: ClassVar[str] = "Attention entropy: does attention narrow, and does it follow the posterior?"
    limit: ClassVar[str] = "at most four million attention weights are read"
    about: ClassVar[str] = (
        "Entropy measures over how many positions a head spreads its attention: as a share of the maximum, 1 is "
        "uniform and 0 is a single position. The papers report that it falls by 85–90 % from first to last layer. "
        "Consistency compares attention on the hypotheses with the exact posterior: 1 means equal shares, 0 means "
        "attention only where the posterior is 0. A model that eliminates hypotheses may attend to the excluded ones, "
        "and then lies below uniform attention. The baselines are uniform attention, attention of another sequence at "
        "the same position (the effect of position alone), and untrained networks."
    )

    entropy_bits: Annotated[Estimate, NonNegative("layer head", unit="bits", better="lower", label="attention entropy")]
    entropy_share: Annotated[Estimate, Share("layer head", better="lower", label="entropy as a share of the maximum")]
    entropy_bits_by_layer: Annotated[
        Estimate, NonNegative("layer", unit="bits", better="lower", label="attention entropy")
    ]
    reduction: Annotated[Estimate, AtMostOne(better="higher", label="entropy reduction, first to last layer")]
    consistency: Annotated[Estimate, Share("layer head", better="higher", label="attention–posterior consistency")]
    consistency_last_layer: Annotated[
        Estimate, Share(better="higher", label="attention–posterior consistency, last layer")
    ]
    consistency_over_other: Annotated[
        Estimate,
        Signed("layer head", better="higher", label="consistency minus that of another sequence's attention"),
    ]
    consistency_over_other_last_layer: Annotated[
        Estimate, Signed(better="higher", label="the same minus that of another sequence's attention")
    ]
    consistency_quantiles: Annotated[Float[np.ndarray, "quantile layer head"], Unit("1")]
    quantiles: tuple[str, ...]
    most_possible_consistency: float
    identified: bool
    note: str
    n: int

    def headlines(self) -> Sequence[Headline]:
        reduction = headline_of(self, "reduction")
        if np.isnan(self.most_possible_consistency):
            return (reduction, *self._widths())
        if self.note:
            label = f"attention–posterior consistency ({self.note})"
            undefined = headline_of(self, "consistency_over_other_last_layer", label=label)
            return (reduction, undefined, *self._widths())
        label = f"attention–posterior consistency, last layer (at most {self.most_possible_consistency:.3g})"
        last = headline_of(self, "consistency_last_layer", label=label)
        over = replace(
            headline_of(self, "consistency_over_other_last_layer"),
            short_label="attention–posterior consistency minus that of another sequence's attention, last layer",
        )
        (layer, head), own = self.consistency.extreme("largest")
        greatest = f"consistency of the most consistent head: L{layer}H{head}"
        greatest += remark_of(float(own.ends[0]), self.consistency.value.size)
        return (
            reduction,
            last,
            over,
            headline_of(self, "consistency", (layer, head), greatest, own=own),
            *self._widths(),
        )

    def _widths(self) -> tuple[Headline, ...]:
        """Return the entropy of the last layer, and that of the narrowest head as a share of the maximum."""
        last = len(self.entropy_bits_by_layer.value) - 1
        lines = (headline_of(self, "entropy_bits_by_layer", (last,), f"attention entropy, layer {last}, the last"),)
        if np.isnan(self.entropy_share.value).all():
            return lines
        (layer, head), own = self.entropy_share.extreme("smallest")
        label = f"entropy as a share of the maximum, narrowest head: L{layer}H{head}"
        label += remark_of(float(own.ends[0]), self.entropy_share.value.size)
        return (*lines, headline_of(self, "entropy_share", (layer, head), label, own=own))

    def plot(self) -> "Figure":
        from bayesgeom.charts.heads import add_heads, add_profile, with_baseline
        from bayesgeom.results.captions import with_captions
        from bayesgeom.results.theme import label_axes, panels, with_room_for_legend

        level = float(self.consistency.baseline(UNIFORM).value.max())
        titles = ["Entropy, mean over heads", with_baseline("Entropy as a share of the possible", 1.0, "uniform")]
        if not self.note:
            titles += [
                with_baseline("Consistency with the posterior", level, "uniform"),
                "Its median, middle 50 and 90 %",
            ]
        figure = panels(f"{self.title}<br><sub>{self.note}</sub>" if self.note else self.title, tuple(titles))
        by_layer = self.entropy_bits_by_layer
        baselines = {own.name: own.value.mean(axis=1) for own in self.entropy_bits.baselines}
        add_profile(figure, (1, 1), by_layer.value, name="entropy", band=by_layer.ends, baselines=baselines)
        figure.update_yaxes(rangemode="tozero", row=1, col=1)
        label_axes(figure, (1, 1), "layer", "attention entropy (bits)")
        add_heads(
            figure, (1, 2), self.entropy_share.value, unit="share of log2(visible)", baseline=1.0, limits=(0.0, 1.0)
        )
        if self.note:
            return with_room_for_legend(figure)
        add_heads(figure, (2, 1), self.consistency.value, unit="1 − total variation", baseline=level, limits=(0.0, 1.0))
        least, low, middle, high, most = self.consistency_quantiles.mean(axis=2)
        baselines = {own.name: own.value.mean(axis=1) for own in self.consistency.baselines}
        add_profile(figure, (2, 2), middle, name="consistency", band=(low, high), baselines=baselines)
        add_profile(figure, (2, 2), middle, name="consistency", band=(least, most))
        figure.update_traces(name=_SPREAD, selector={"fill": "toself", "name": "consistency, 95 % interval"})
        figure.update_yaxes(range=[0, 1], row=2, col=2)
        label_axes(figure, (2, 2), "layer", "consistency (1 is equal shares)")
        last = numbers(headline_of(self, "consistency_last_layer", label="consistency, last layer"))
        return with_captions(with_room_for_legend(figure), ("", "", "", last))


@final
@dataclass(frozen=True)
class AttentionEntropy(Probe[AttentionEntropyReport]):
    """Measure attention entropy and consistency on the first recorded sequences, up to a few million weights."""

    name: ClassVar[str] = "attention_entropy"
    needs: ClassVar[Needs] = Needs(sites=(PATTERN,), streamed=(SUMS,))

    def measure(self, run: Run, untrained: Sequence[AttentionEntropyReport] = ()) -> AttentionEntropyReport:
        n = run.n_recorded
        if PATTERN in run.recorded:  # else the sums were computed during the pass, whatever their number
            n = min(n, max(MIN_SEQUENCES, MAX_WEIGHTS // run.at(PATTERN)[:, :1].numel()))
        trials, weights = run.trials.rows(slice(0, n)), jackknife_weights(n)
        sums = torch.stack([SUMS.at(run, layer, n) for layer in range(run.spec.n_layers)], dim=1).double().cpu().numpy()
        bits, shares = sums[..., 0], sums[..., 1]
        visible = trials.visible()
        has_choice = (visible.sum(dim=-1) > 1).sum(dim=-1).double().cpu().numpy()
        agreement = agreement_of(sums[..., 2:], trials, visible)
        entropy, consistency = (_drawn(weights, own, np.ones(n)) for own in (bits, agreement.found.mean(axis=2)))
        over = _drawn(weights, agreement.found.mean(axis=2) - agreement.shuffled, np.ones(n))
        over = np.full_like(over, np.nan) if agreement.note else over

        def estimate(
            draws: Float[np.ndarray, "draw *rest"], *baselines: Baseline, bounds: Bounds = UNBOUNDED
        ) -> Estimate:
            return smooth_estimate(draws, seed=run.seed, n=n, baselines=baselines, bounds=bounds)

        share = partial(estimate, bounds=(0.0, 1.0))

        of = _scalars(entropy.mean(axis=2), consistency)
        uniform = Baseline.of("chance", UNIFORM, agreement.uniform)
        other = agreement.shuffled.mean(axis=0)
        widest = Baseline.of("chance", UNIFORM, most := float(visible.sum(dim=-1).double().log2().mean()))
        no_more = Baseline.of("permutation", OTHER, np.nan if agreement.note else 0.0)
        fresh_layers = of_untrained([own.entropy_bits_by_layer.value for own in untrained])
        return AttentionEntropyReport(
            entropy_bits=within(
                estimate(entropy, widest, *of_untrained([c.entropy_bits.value for c in untrained])), 0, most
            ),
            entropy_share=share(
                _drawn(weights, shares, has_choice),
                Baseline.of("chance", UNIFORM, 1.0),
                *of_untrained([copy.entropy_share.value for copy in untrained]),
            ),
            entropy_bits_by_layer=within(estimate(entropy.mean(axis=2), widest, *fresh_layers), 0, most),
            reduction=estimate(
                of["reduction"],
                Baseline.of("chance", "uniform in every layer", 0.0),
                *of_untrained([float(copy.reduction) for copy in untrained]),
            ),
            consistency=share(
                consistency,
                uniform,
                Baseline.of("permutation", OTHER, other),
                *of_untrained([copy.consistency.value for copy in untrained]),
            ),
            consistency_last_layer=share(
                of["consistency_last_layer"], uniform, Baseline.of("permutation", OTHER, other[-1].mean())
            ),
            consistency_over_other=estimate(over, Baseline.of("permutation", OTHER, 0.0), bounds=(-1.0, 1.0)),
            consistency_over_other_last_layer=estimate(over[:, -1].mean(axis=1), no_more, bounds=(-1.0, 1.0)),
            consistency_quantiles=np.quantile(agreement.found, list(_QUANTILES.values()), axis=(0, 2)),
            quantiles=tuple(_QUANTILES),
            most_possible_consistency=agreement.ceiling,
            identified=agreement.is_identified,
            note=agreement.note,
            n=n,
        )

    def controls(self) -> Iterator[Control[AttentionEntropyReport]]:
        trials = _planted_trials()
        n_pos, belief = trials.tokens.shape[1], trials.at_scored(trials.belief)
        visible = trials.visible()
        itself = torch.nn.functional.one_hot(trials.scored_positions(), n_pos)
        posterior = torch.nn.functional.pad(belief, (0, n_pos - belief.shape[2]))
        layers = torch.stack([visible / visible.sum(dim=-1, keepdim=True), posterior, itself]).float()
        run = planted_run(trials, {PATTERN: layers[:, :, None]})
        yield Control(label="uniform, then the posterior, then one position", run=run, holds=_tells_layers_apart)
        same = layers[:2, :1].expand(-1, len(trials), -1, -1)
        run = planted_run(trials, {PATTERN: same[:, :, None]})
        yield Control(label="attention that is the same in every sequence", run=run, holds=_ignores_sequences)
        alike = _planted_trials(is_constant=True)
        rows = posterior[:1].expand(len(alike), -1, -1).float()
        run = planted_run(alike, {PATTERN: rows[None, :, None]})
        yield Control(label="a posterior that is a function of position", run=run, holds=_is_not_identified)


def _drawn(
    weights: Float[np.ndarray, "draw sequence"],
    sums: Float[np.ndarray, "sequence layer head"],
    counts: Float[np.ndarray, " sequence"],
) -> Float[np.ndarray, "draw layer head"]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.tensordot(weights, sums, axes=1) / (weights @ counts)[:, None, None])


def _scalars(
    by_layer: Float[np.ndarray, "draw layer"], consistency: Float[np.ndarray, "draw layer head"]
) -> dict[str, Float[np.ndarray, " draw"]]:
    """Return draws of the scalars; the reduction of a single layer, or from zero entropy, is NaN."""
    first, last = by_layer[:, 0], by_layer[:, -1]
    has_reduction = (first > 0) & (by_layer.shape[1] > 1)
    return {
        "reduction": np.where(has_reduction, 1 - last / np.where(has_reduction, first, 1), np.nan),
        "consistency_last_layer": consistency[:, -1].mean(axis=1),
    }


def _planted_trials(*, is_constant: bool = False) -> Trials:
    """Plant five hypothesis tokens in a row, then three scored positions with other tokens."""
    rng = np.random.default_rng(0)
    exact = rng.dirichlet(np.ones(5), size=(11, 3))
    tokens = np.concatenate([np.tile(np.arange(5), (11, 1)), rng.integers(5, 7, size=(11, 3))], axis=1)
    return planted_trials(
        exact[:1].repeat(11, axis=0) if is_constant else exact, tokens, token_sets={HYPOTHESES: range(5)}
    )


def _is_not_identified(report: AttentionEntropyReport) -> bool:
    """Check that attention equal to the posterior is not identified if all sequences have the same attention."""
    return bool(
        not report.identified
        and report.note == NOT_IDENTIFIED
        and np.isclose(float(report.consistency_last_layer), 1, atol=1e-5)
        and np.isnan(float(report.consistency_over_other_last_layer))
    )


def _tells_layers_apart(report: AttentionEntropyReport) -> bool:
    return bool(
        np.allclose(report.entropy_share.value[[0, 2], 0], [1, 0], atol=1e-5)
        and abs(float(report.reduction) - 1) < 1e-6
        and np.allclose(
            report.consistency.value[:, 0], [report.consistency.baseline(UNIFORM).value[0, 0], 1, 0], atol=1e-5
        )
        and np.allclose(report.consistency_quantiles[:, 1, 0], 1, atol=1e-5)
        and report.consistency.baseline(OTHER).value[1, 0] < 0.9
        and report.identified
    )


def _ignores_sequences(report: AttentionEntropyReport) -> bool:
    return bool(np.allclose(report.consistency.value, report.consistency.baseline(OTHER).value, atol=1e-6))
