"""Attention entropy and attention–posterior consistency: how narrow attention is, and whether it follows the posterior.

Entropy of each attention row at scored positions, in bits and as a share of log2(visible positions). Visible is what
the model's own mask lets a query see, by layer: all earlier positions, a window or a chunk of them. Consistency is
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
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bayesgeom.core import PATTERN, Run, Trials, Verdict
from bayesgeom.core.text import count_text
from bayesgeom.measurements.base import (
    Control,
    Needs,
    PlantedMask,
    Probe,
    planted_masks,
    planted_run,
    planted_trials,
    with_untrained,
)
from bayesgeom.report.estimate import (
    AtMostOne,
    Baseline,
    Estimate,
    Kind,
    NonNegative,
    Share,
    Signed,
    Unit,
    Values,
    smooth_estimate,
    within,
)
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, extreme_of, headline_of
from bayesgeom.stats.bootstrap import jackknife_weights
from bayesgeom.stats.information import row_entropy_bits, row_sums
from bayesgeom.stats.intervals import UNBOUNDED, Bounds
from bayesgeom.stats.reduction import Mask, Reduction

HYPOTHESES = "hypotheses"


def _has_hypotheses(trials: Trials) -> bool:
    """Whether one token stands for each entry of the belief."""
    return len(trials.token_sets.get(HYPOTHESES, ())) == trials.belief.shape[2] > 0


def _sums(
    pattern: Float[Tensor, "batch head query_pos key_pos"], trials: Trials, rows: slice, mask: Mask | None
) -> Float[Tensor, "batch head column"]:
    """Return the mean entropy in bits, the sum of its shares of the maximum, and the mean weight of a sink.

    With hypotheses, columns follow for the mean consistency with another sequence, then that of every query.
    """
    pattern = pattern.float()
    entropy, total = row_entropy_bits(pattern), row_sums(pattern)
    positions = trials.scored_positions()[rows]
    most = (positions + 1 if mask is None else mask.sum(dim=-1)[positions]).float().log2()
    share = torch.where(most > 0, 1 / most, 0.0)[:, None]
    sink = torch.where(1 - total > _BFLOAT16, 1 - total, 0.0)
    columns = [entropy.mean(dim=-1, keepdim=True), (entropy * share).sum(dim=-1, keepdim=True)]
    columns.append(sink.mean(dim=-1, keepdim=True))
    if _has_hypotheses(trials):
        # Exchanging the belief instead of the attention moves far less data. No sequence is its own other.
        tokens, belief = _tokens_and_belief(trials)
        of_others = (values.roll(-1, dims=0)[rows] for values in (tokens, belief))
        pairs = (of_others, (tokens[rows], belief[rows]))
        shuffled, related = (_met(pattern, total, *pair) for pair in pairs)
        columns += [shuffled.mean(dim=1)[..., None], related.transpose(1, 2)]
    return torch.cat(columns, dim=-1)


def _tokens_and_belief(
    trials: Trials,
) -> tuple[Float[Tensor, "batch key_pos hypothesis"], Float[Tensor, "batch query_pos hypothesis"]]:
    hypotheses = trials.token_sets[HYPOTHESES]
    return (trials.tokens[..., None] == hypotheses).float(), trials.at_scored(trials.belief).float()


def _met(
    pattern: Float[Tensor, "batch head query_pos key_pos"],
    total: Float[Tensor, "batch head query_pos"],
    tokens: Float[Tensor, "batch key_pos hypothesis"],
    belief: Float[Tensor, "batch query_pos hypothesis"],
) -> Float[Tensor, "batch query_pos head"]:
    """Σ_h min(attention on the tokens of h, belief in h), with attention divided by its sum."""
    on_tokens = (pattern.flatten(1, 2) @ tokens).unflatten(1, pattern.shape[1:3])  # one product per sequence
    return torch.minimum(on_tokens / total[..., None], belief[:, None]).sum(dim=-1).transpose(1, 2).contiguous()


SUMS = Reduction(
    "entropy and consistency of attention",
    PATTERN,
    _sums,
    lambda spec, trials: spec.n_heads * (4 + trials.n_scored if _has_hypotheses(trials) else 3),
)


@final
@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Σ_h min(attention, belief) per row, its mean for exchanged and uniform attention, and its maximum.

    `varies`: whether the posterior of what a layer sees differs between sequences.
    """

    found: Float[np.ndarray, "batch layer query_pos head"]
    shuffled: Float[np.ndarray, "batch layer head"]
    uniform: Float[np.ndarray, " layer"]
    ceiling: Float[np.ndarray, " layer"]
    varies: Bool[np.ndarray, " layer"]

    @property
    def note(self) -> str:
        """Why consistency is not measured, undefined or not identified in any layer; "" where it is."""
        if np.isnan(self.ceiling).all():
            return str(Verdict.NOT_MEASURED)
        is_undefined = not self.ceiling.any()
        return str(Verdict.UNDEFINED) if is_undefined else "" if self.varies.any() else str(Verdict.NOT_IDENTIFIED)


def agreement_of(sums: Float[np.ndarray, "batch layer head column"], run: Run) -> Agreement:
    """Read the consistency from the columns of `SUMS` that follow the entropy; NaN without hypotheses."""
    trials, n_layers = run.trials, sums.shape[1]
    if not _has_hypotheses(trials):
        nothing, unknown = np.full((*sums.shape[:2], trials.n_scored, sums.shape[2]), np.nan), np.full(n_layers, np.nan)
        is_none = np.zeros(n_layers, dtype=bool)
        return Agreement(found=nothing, shuffled=nothing[:, :, 0], uniform=unknown, ceiling=unknown, varies=is_none)
    is_token, belief = _tokens_and_belief(trials)
    of_token = belief @ is_token.mT  # the posterior of the token at each position
    uniform, ceiling, varies = np.zeros(n_layers), np.zeros(n_layers), np.zeros(n_layers, dtype=bool)
    for layer in range(n_layers):
        visible = run.visible(layer)
        seen = visible.float() @ is_token
        wanted = torch.where(visible, of_token, 0)
        varies[layer] = bool((wanted != wanted[:1]).any())
        ceiling[layer] = float((belief * (seen > 0)).sum(dim=-1).mean())
        uniform[layer] = float(torch.minimum(seen / visible.sum(dim=-1, keepdim=True), belief).sum(dim=-1).mean())
    return Agreement(
        found=np.moveaxis(sums[..., 1:], 3, 2), shuffled=sums[..., 0], uniform=uniform, ceiling=ceiling, varies=varies
    )


_BFLOAT16 = 2.0**-7  # a sum of weights in bfloat16 lacks no more than half of this by rounding
MAX_WEIGHTS, MIN_SEQUENCES = 4_000_000, 32  # most attention weights read; least sequences read
UNIFORM, OTHER = "uniform attention", "another sequence's attention"
_QUANTILES = {"5 %": 0.05, "25 %": 0.25, "50 %": 0.5, "75 %": 0.75, "95 %": 0.95}


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionEntropyReport(Report):
    """Entropy measures over how many positions a head spreads its attention.

    As a share of the maximum, 1 is uniform and 0 is a single position. Consistency compares attention on the hypotheses
    with the exact posterior: 1 means equal shares, 0 means attention only where the posterior is 0. A model that
    eliminates hypotheses may attend to the excluded ones, and then lies below uniform attention. The baselines are
    uniform attention, attention of another sequence at the same position (the effect of position alone), and untrained
    networks.

    Fields: width of attention, and its agreement with the posterior.

    Each row of attention is divided by its sum. `sink_mass` is what a sink, a score without a key, takes of the rows
    before; 0 without one. Shares are of log2(positions that the layer's mask lets the query see), over queries that see
    at least two. `reduction` is 1 − last/first layer's entropy, averaged over heads; of the shares if layers see
    different positions. `consistency_over_other` is consistency minus
    that of another sequence's attention at the same position, with a paired interval. `most_possible_consistency` is
    the maximum possible with the visible tokens. `note` gives the reason if consistency is undefined or not identified
    (`identified`).
    """

    name: ClassVar[str] = "attention_entropy"
    title: ClassVar[str] = "Attention: does it narrow, and toward the posterior?"
    limit: ClassVar[str] = "at most 4,000,000 attention weights"

    entropy_bits: Annotated[Estimate, NonNegative("layer head", unit="bits", better="lower", label="attention entropy")]
    entropy_share: Annotated[Estimate, Share("layer head", better="lower", label="entropy as a share of the maximum")]
    entropy_bits_by_layer: Annotated[
        Estimate, NonNegative("layer", unit="bits", better="lower", label="attention entropy")
    ]
    reduction: Annotated[Estimate, AtMostOne(better="higher", label="entropy reduction, first to last layer")]
    sink_mass: Annotated[Estimate, Share("layer head", label="attention on a sink")]
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
            label = "consistency minus another sequence's"
            lines.append(headline_of(self, "consistency_over_other_last_layer", label=label, verdict=self.note))
        else:
            label = f"consistency, last layer (at most {self.most_possible_consistency:.3g})"
            lines.append(headline_of(self, "consistency_last_layer", label=label))
            lines.append(headline_of(self, "consistency_over_other_last_layer"))
            lines.append(extreme_of(self, "consistency", "largest", "consistency, most consistent head: {}"))
        width = f"attention entropy, layer {last}, the last"
        lines.append(headline_of(self, "entropy_bits_by_layer", (last,), width))
        if np.nan_to_num(self.sink_mass.value).any():
            lines.append(extreme_of(self, "sink_mass", "largest", "attention on a sink, largest: {}"))
        if not np.isnan(self.entropy_share.value).all():
            narrowest = "entropy share, narrowest head: {}"
            lines.append(extreme_of(self, "entropy_share", "smallest", narrowest))
        return lines

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.charts.lines import add_band, add_baseline, add_estimate, add_line, brief, with_baseline
        from bayesgeom.report.theme import label_axes

        bits_by_layer = self.entropy_bits_by_layer
        first, last = float(bits_by_layer.value[0]), float(bits_by_layer.value[-1])
        word, layers = "narrows" if last < first else "widens", range(len(bits_by_layer.value))
        over = count_text(len(layers), "layer")
        bits = Panel.blank(f"Attention {word} from {brief(first)} to {brief(last)} bits over {over}")
        baselines = {each.name: each.value.mean(axis=1) for each in self.entropy_bits.baselines}
        add_estimate(bits.figure, layers, bits_by_layer, name="mean over heads", baselines=baselines)
        bits.figure.update_yaxes(rangemode="tozero")
        label_axes(bits.figure, "layer", "attention entropy (bits)")
        share = "Entropy of each head, as a share of the possible"
        shares = Panel.blank(with_baseline(share, 1.0, "uniform"), is_folded=True)
        add_heat(shares.figure, self.entropy_share.value, unit="share of log2(visible)", baseline=1.0)
        if self.note:
            return bits, shares
        level = float(self.consistency.baseline(UNIFORM).value.max())
        heads = Panel.blank(with_baseline("Consistency of each head with the posterior", level, "uniform"))
        add_heat(heads.figure, self.consistency.value, unit="1 − total variation", baseline=level)
        spread = Panel.blank("Consistency, median with middle 50 and 90 % of sequences", is_folded=True)
        least, low, middle, high, most = self.consistency_quantiles.mean(axis=2)
        for each in self.consistency.baselines:
            add_baseline(spread.figure, layers, each.value.mean(axis=1), name=f"baseline: {each.name}")
        for name, band in (("middle 90 %", (least, most)), ("middle 50 %", (low, high))):
            add_band(spread.figure, layers, *band, name=name)
        add_line(spread.figure, layers, middle, name="median")
        spread.figure.update_yaxes(range=[0, 1.02])
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
        run, weights = replace(run, trials=run.trials.rows(slice(0, n))), jackknife_weights(n)
        layers = range(run.spec.n_layers)
        sums = torch.stack([SUMS.at(run, layer, n) for layer in layers], dim=1).double().cpu().numpy()
        n_visible = [run.visible(layer).sum(dim=-1).double() for layer in layers]
        most = np.array([float(counts.log2().mean()) for counts in n_visible])
        has_choice = np.stack([(counts > 1).sum(dim=-1).double().cpu().numpy() for counts in n_visible], axis=1)
        agreement = agreement_of(sums[..., 3:], run)
        note, other, uniform = agreement.note, agreement.shuffled.mean(axis=0), agreement.uniform[:, None]
        entropy, total_share, sink = (np.tensordot(weights, sums[..., column], axes=1) for column in range(3))
        consistency = np.tensordot(weights, agreement.found.mean(axis=2), axes=1)
        over = np.tensordot(weights, agreement.found.mean(axis=2) - agreement.shuffled, axes=1)
        over[:, ~agreement.varies | (agreement.ceiling == 0)] = np.nan
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = total_share / (weights @ has_choice)[:, :, None]
        sees_alike = all(torch.equal(counts, n_visible[0]) for counts in n_visible)
        falls = _fall(entropy.mean(axis=2) if sees_alike else shares.mean(axis=2))

        def estimate(
            draws: Float[np.ndarray, "draw *rest"],
            *levels: tuple[Kind, str, Values | float],
            bounds: Bounds = UNBOUNDED,
        ) -> Estimate:
            baselines = [Baseline.of(*level) for level in levels]
            return smooth_estimate(draws, seed=run.seed, n=n, baselines=baselines, bounds=bounds)

        share = partial(estimate, bounds=(0.0, 1.0))
        difference = partial(estimate, bounds=(-1.0, 1.0))
        report = AttentionEntropyReport(
            entropy_bits=within(estimate(entropy, ("chance", UNIFORM, most[:, None])), 0, most[:, None]),
            entropy_share=share(shares, ("chance", UNIFORM, 1.0)),
            entropy_bits_by_layer=within(estimate(entropy.mean(axis=2), ("chance", UNIFORM, most)), 0, most),
            reduction=estimate(falls, ("chance", "uniform in every layer", 0.0)),
            sink_mass=share(sink),
            consistency=share(consistency, ("chance", UNIFORM, uniform), ("permutation", OTHER, other)),
            consistency_last_layer=share(
                consistency[:, -1].mean(axis=1),
                ("chance", UNIFORM, uniform[-1, 0]),
                ("permutation", OTHER, other[-1].mean()),
            ),
            consistency_over_other=difference(over, ("permutation", OTHER, 0.0)),
            consistency_over_other_last_layer=difference(
                over[:, -1].mean(axis=1), ("permutation", OTHER, np.nan if note else 0.0)
            ),
            consistency_quantiles=np.quantile(agreement.found, list(_QUANTILES.values()), axis=(0, 2)),
            quantiles=tuple(_QUANTILES),
            most_possible_consistency=float(agreement.ceiling[-1]),
            identified=bool(agreement.varies.any()),
            note=note,
            n=n,
        )
        named = ("entropy_bits", "entropy_share", "entropy_bits_by_layer", "reduction", "consistency")
        return with_untrained(report, untrained, *named)

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
        yield Control(
            label="attention that is the same in every sequence",
            run=run,
            holds=lambda r: np.allclose(r.consistency.value, r.consistency.baseline(OTHER).value, atol=1e-6),
        )
        alike = _planted_trials(is_constant=True)
        rows = posterior[:1].expand(len(alike), -1, -1).float()
        run = planted_run(alike, {PATTERN: rows[None, :, None]})
        yield Control(label="a posterior that is a function of position", run=run, holds=_is_not_identified)
        for planted in planted_masks():
            label = f"uniform attention: {planted.label}"
            yield Control(label=label, run=planted.run, holds=partial(_is_uniform, planted))


def _is_uniform(planted: PlantedMask, report: AttentionEntropyReport) -> bool:
    """Check that a report has the known numbers, with a share of 1 that beats no baseline."""
    share, bits = report.entropy_share.value, planted.entropy_bits
    return bool(
        np.allclose(report.entropy_bits.value, bits, atol=1e-4)
        and np.allclose(report.entropy_bits.baseline(UNIFORM).value, bits, atol=1e-4)
        and np.allclose(share, 1, atol=1e-5)
        and (share <= 1).all()
        and np.allclose(report.sink_mass.value, planted.sink_mass, atol=1e-4)
        and "yes" not in report.entropy_bits.clears("lower")
    )


def _fall(by_layer: Float[np.ndarray, "draw layer"]) -> Float[np.ndarray, " draw"]:
    """Return 1 − last/first layer; NaN for a single layer, or if the first one is 0."""
    first, last = by_layer[:, 0], by_layer[:, -1]
    is_known = (first > 0) & (by_layer.shape[1] > 1)
    return np.asarray(np.where(is_known, 1 - last / np.where(is_known, first, 1), np.nan))


def _planted_trials(*, is_constant: bool = False) -> Trials:
    """Plant five hypothesis tokens in a row, then three scored positions with other tokens."""
    rng = np.random.default_rng(0)
    exact = rng.dirichlet(np.ones(5), size=(11, 3))
    tokens = np.concatenate([np.tile(np.arange(5), (11, 1)), rng.integers(5, 7, size=(11, 3))], axis=1)
    exact = exact[:1].repeat(11, axis=0) if is_constant else exact
    return planted_trials(exact, tokens, token_sets={HYPOTHESES: range(5)})


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
