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
from jaxtyping import Bool, Float
from torch import Tensor

from bayesgeom.core.run import PATTERN, Run, Trials
from bayesgeom.core.verdict import Verdict
from bayesgeom.probes.base import Control, Needs, Probe, planted_run, planted_trials, with_untrained
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
from bayesgeom.stats.information import entropy_bits
from bayesgeom.stats.intervals import UNBOUNDED, Bounds
from bayesgeom.stats.reduction import Reduction

HYPOTHESES = "hypotheses"


def _has_hypotheses(trials: Trials) -> bool:
    """Whether one token stands for each entry of the belief."""
    return len(trials.token_sets.get(HYPOTHESES, ())) == trials.belief.shape[2] > 0


def _sums(
    pattern: Float[Tensor, "batch head query_pos key_pos"], trials: Trials, rows: slice
) -> Float[Tensor, "batch head column"]:
    """Return the mean entropy in bits and the sum of its shares of the maximum.

    With hypotheses, columns follow for the mean consistency with another sequence, then that of every query.
    """
    entropy, most = entropy_bits(pattern.float()), trials.rows(rows).visible().sum(dim=-1).float().log2()
    share = torch.where(most > 0, 1 / most, 0.0)[:, None]
    columns = [entropy.mean(dim=-1, keepdim=True), (entropy * share).sum(dim=-1, keepdim=True)]
    if _has_hypotheses(trials):
        # Exchanging the belief instead of the attention moves far less data. No sequence is its own other.
        tokens, belief = _tokens_and_belief(trials, pattern.dtype)
        of_others = (own.roll(-1, dims=0)[rows] for own in (tokens, belief))
        shuffled, found = (_met(pattern, *own) for own in (of_others, (tokens[rows], belief[rows])))
        columns += [shuffled.mean(dim=1)[..., None], found.transpose(1, 2)]
    return torch.cat(columns, dim=-1)


def _tokens_and_belief(
    trials: Trials, dtype: torch.dtype
) -> tuple[Float[Tensor, "batch key_pos hypothesis"], Float[Tensor, "batch query_pos hypothesis"]]:
    hypotheses = trials.token_sets[HYPOTHESES]
    return (trials.tokens[..., None] == hypotheses).to(dtype), trials.at_scored(trials.belief).to(dtype)


def _met(
    pattern: Float[Tensor, "batch head query_pos key_pos"],
    tokens: Float[Tensor, "batch key_pos hypothesis"],
    belief: Float[Tensor, "batch query_pos hypothesis"],
) -> Float[Tensor, "batch query_pos head"]:
    """Σ_h min(attention on the tokens of h, belief in h)."""
    on_tokens = (pattern.flatten(1, 2) @ tokens).unflatten(1, pattern.shape[1:3])  # one product per sequence
    return torch.minimum(on_tokens, belief[:, None]).sum(dim=-1).transpose(1, 2).contiguous()


SUMS = Reduction(
    "entropy and consistency of attention",
    PATTERN,
    _sums,
    lambda spec, trials: spec.n_heads * (3 + trials.n_scored if _has_hypotheses(trials) else 2),
)


@final
@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Σ_h min(attention, belief) per row; its mean for exchanged and uniform attention, and its maximum."""

    found: Float[np.ndarray, "batch layer query_pos head"]
    shuffled: Float[np.ndarray, "batch layer head"]
    uniform: float
    ceiling: float
    is_identified: bool
    note: str


def agreement_of(
    sums: Float[np.ndarray, "batch layer head column"], trials: Trials, visible: Bool[Tensor, "batch query_pos key_pos"]
) -> Agreement:
    """Read the consistency from the columns of `SUMS` that follow the entropy."""
    if not _has_hypotheses(trials):
        nothing = np.full((*sums.shape[:2], trials.n_scored, sums.shape[2]), np.nan)
        return Agreement(
            found=nothing,
            shuffled=nothing[:, :, 0],
            uniform=np.nan,
            ceiling=np.nan,
            is_identified=False,
            note=str(Verdict.NOT_MEASURED),
        )
    is_token, belief = _tokens_and_belief(trials, torch.float32)
    seen = visible.float() @ is_token
    wanted = torch.where(visible, belief @ is_token.mT, 0)  # the posterior of the token at each visible position
    varies = bool((wanted != wanted[:1]).any())
    ceiling = float((belief * (seen > 0)).sum(dim=-1).mean())
    return Agreement(
        found=np.moveaxis(sums[..., 1:], 3, 2),
        shuffled=sums[..., 0],
        uniform=float(torch.minimum(seen / visible.sum(dim=-1, keepdim=True), belief).sum(dim=-1).mean()),
        ceiling=ceiling,
        is_identified=varies,
        note=str(Verdict.UNDEFINED) if ceiling == 0 else "" if varies else str(Verdict.NOT_IDENTIFIED),
    )


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
        visible = trials.visible()
        most = float(visible.sum(dim=-1).double().log2().mean())
        agreement = agreement_of(sums[..., 2:], trials, visible)
        other = agreement.shuffled.mean(axis=0)
        entropy = np.tensordot(weights, sums[..., 0], axes=1)
        consistency = np.tensordot(weights, agreement.found.mean(axis=2), axes=1)
        over = np.tensordot(weights, agreement.found.mean(axis=2) - agreement.shuffled, axes=1)
        over = np.full_like(over, np.nan) if agreement.note else over
        has_choice = weights @ (visible.sum(dim=-1) > 1).sum(dim=-1).double().cpu().numpy()
        by_layer = entropy.mean(axis=2)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.tensordot(weights, sums[..., 1], axes=1) / has_choice[:, None, None]
            falls = np.where(
                (by_layer[:, 0] > 0) & (by_layer.shape[1] > 1), 1 - by_layer[:, -1] / by_layer[:, 0], np.nan
            )

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
            entropy_bits=within(estimate(entropy, ("chance", UNIFORM, most)), 0, most),
            entropy_share=share(shares, ("chance", UNIFORM, 1.0)),
            entropy_bits_by_layer=within(estimate(by_layer, ("chance", UNIFORM, most)), 0, most),
            reduction=estimate(falls, ("chance", "uniform in every layer", 0.0)),
            consistency=share(consistency, ("chance", UNIFORM, agreement.uniform), ("permutation", OTHER, other)),
            consistency_last_layer=share(
                consistency[:, -1].mean(axis=1),
                ("chance", UNIFORM, agreement.uniform),
                ("permutation", OTHER, other[-1].mean()),
            ),
            consistency_over_other=difference(over, ("permutation", OTHER, 0.0)),
            consistency_over_other_last_layer=difference(
                over[:, -1].mean(axis=1), ("permutation", OTHER, np.nan if agreement.note else 0.0)
            ),
            consistency_quantiles=np.quantile(agreement.found, list(_QUANTILES.values()), axis=(0, 2)),
            quantiles=tuple(_QUANTILES),
            most_possible_consistency=agreement.ceiling,
            identified=agreement.is_identified,
            note=agreement.note,
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
