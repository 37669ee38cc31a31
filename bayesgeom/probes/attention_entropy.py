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
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float

from bayesgeom.core.run import PATTERN, Run, Trials
from bayesgeom.core.verdict import Verdict
from bayesgeom.probes._consistency import HYPOTHESES, SUMS, agreement_of
from bayesgeom.probes.base import Control, Needs, Probe, planted_run, planted_trials
from bayesgeom.report.estimate import (
    AtMostOne,
    Baseline,
    Estimate,
    NonNegative,
    Share,
    Signed,
    Unit,
    of_untrained,
    smooth_estimate,
    within,
)
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, extreme_of, headline_of
from bayesgeom.stats.bootstrap import jackknife_weights
from bayesgeom.stats.intervals import UNBOUNDED, Bounds

MAX_WEIGHTS, MIN_SEQUENCES = 4_000_000, 32  # most attention weights read; least sequences read
_SPREAD = "middle of sequences"  # of the quantile bands
UNIFORM, OTHER = "uniform attention", "another sequence's attention"
_QUANTILES = {"5 %": 0.05, "25 %": 0.25, "50 %": 0.5, "75 %": 0.75, "95 %": 0.95}


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionEntropyReport(Report):
    """Entropy measures over how many positions a head spreads its attention.

    As a share of the maximum, 1 is uniform and 0 is a single position. The papers report that it falls by 85–90 % from
    first to last layer. Consistency compares attention on the hypotheses with the exact posterior: 1 means equal
    shares, 0 means attention only where the posterior is 0. A model that eliminates hypotheses may attend to the
    excluded ones, and then lies below uniform attention. The baselines are uniform attention, attention of another
    sequence at the same position (the effect of position alone), and untrained networks.

    Fields: width of attention, and its agreement with the posterior.

    `reduction` is 1 − last/first layer's entropy, averaged over heads. `consistency_over_other` is consistency minus
    that of another sequence's attention at the same position, with a paired interval. `most_possible_consistency` is
    the maximum possible with the visible tokens. `note` gives the reason if consistency is undefined or not identified
    (`identified`).
    """

    name: ClassVar[str] = "attention_entropy"
    title: ClassVar[str] = "Attention entropy and consistency"
    limit: ClassVar[str] = "at most 4,000,000 attention weights"

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
        lines, last = [headline_of(self, "reduction")], len(self.entropy_bits_by_layer.value) - 1
        if self.note:
            verdict = self.note if not np.isnan(self.most_possible_consistency) else str(Verdict.NOT_MEASURED)
            label = "consistency minus another sequence's"
            lines.append(headline_of(self, "consistency_over_other_last_layer", label=label, verdict=verdict))
        else:
            label = f"consistency, last layer (at most {self.most_possible_consistency:.3g})"
            lines.append(headline_of(self, "consistency_last_layer", label=label))
            lines.append(headline_of(self, "consistency_over_other_last_layer"))
            lines.append(extreme_of(self, "consistency", "largest", "consistency, most consistent head: {}"))
        width = f"attention entropy, layer {last}, the last"
        lines.append(headline_of(self, "entropy_bits_by_layer", (last,), width))
        if not np.isnan(self.entropy_share.value).all():
            narrowest = "entropy share, narrowest head: {}"
            lines.append(extreme_of(self, "entropy_share", "smallest", narrowest))
        return lines

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.heads import add_heads, add_profile, with_baseline
        from bayesgeom.report.theme import label_axes

        bits = Panel.blank("Entropy, mean over heads")
        shares = Panel.blank(with_baseline("Entropy as a share of the possible", 1.0, "uniform"))
        by_layer = self.entropy_bits_by_layer
        baselines = {own.name: own.value.mean(axis=1) for own in self.entropy_bits.baselines}
        add_profile(bits.figure, by_layer.value, name="entropy", band=by_layer.ends, baselines=baselines)
        bits.figure.update_yaxes(rangemode="tozero")
        label_axes(bits.figure, "layer", "attention entropy (bits)")
        add_heads(
            shares.figure, self.entropy_share.value, unit="share of log2(visible)", baseline=1.0, limits=(0.0, 1.0)
        )
        if self.note:
            return bits, shares
        level = float(self.consistency.baseline(UNIFORM).value.max())
        heads = Panel.blank(with_baseline("Consistency with the posterior", level, "uniform"))
        spread = Panel.blank("Its median, middle 50 and 90 %")
        add_heads(heads.figure, self.consistency.value, unit="1 − total variation", baseline=level, limits=(0.0, 1.0))
        least, low, middle, high, most = self.consistency_quantiles.mean(axis=2)
        baselines = {own.name: own.value.mean(axis=1) for own in self.consistency.baselines}
        add_profile(spread.figure, middle, name="consistency", band=(low, high), baselines=baselines)
        add_profile(spread.figure, middle, name="consistency", band=(least, most))
        spread.figure.update_traces(name=_SPREAD, selector={"fill": "toself", "name": "consistency, 95 % interval"})
        spread.figure.update_yaxes(range=[0, 1])
        label_axes(spread.figure, "layer", "consistency (1 is equal shares)")
        return bits, shares, heads, spread


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
        and report.note == Verdict.NOT_IDENTIFIED
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
