"""The criteria of claims A1 to A5, applied to one ablation report.

The claims file states each criterion and decides the claim over several checkpoints. This module applies the same rule
to one checkpoint. The thresholds below are those of the claims file, and a test compares
them. They were chosen when numbers of the shipped models were known, so they are a test only for models that are
measured for the first time. If a report lacks what a rule needs, there is no verdict; the reason says what to run.

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (layers, heads).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

import numpy as np
from jaxtyping import Bool, Float, Int

from bayesgeom.ablations.report import AblationReport
from bayesgeom.core.files import read_json
from bayesgeom.core.text import interval_text, number_text
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.storage import JSON

Verdict = Literal["supported", "contradicted", "not decided", "not tested"]
BLOCK_TIMES = 9.0  # A1: the increase of the entropy error, in unablated entropy errors; "more than tenfold"
UNIQUE_RATIO = 3.0  # A2: the largest effect of layer 0 over the second largest of the network
CATASTROPHIC_TIMES, LAYER_SHARE = 10.0, 0.5  # A2: in unablated KLs; in effects of all of layer 0's attention
UNIFORM_SHARE = 0.01  # A3: of the uniform predictor's KL
OVERLAP_SHARE = 0.5  # A5: of the largest effect of any head
MODE, LEAST_SEQUENCES = "mean", 512  # the criteria hold for mean ablation of at least 512 sequences
_Outcome = Literal["met", "failed", "open"]


@final
@dataclass(frozen=True, kw_only=True)
class Criterion:
    """One claim, the verdict for this report, and the numbers behind the verdict. The claims file states its rule."""

    id: str
    claim: str
    verdict: Verdict
    reason: str

    def __str__(self) -> str:
        return f"{self.id} {self.claim}: {self.verdict} ({self.reason})"


@final
@dataclass(frozen=True, kw_only=True)
class Effects:
    """KL increases (bits) of single ablations of one kind, in the order of `labels`."""

    labels: Sequence[str]
    layer: Int[np.ndarray, " row"]
    kl_increase_bits: Estimate

    @property
    def values(self) -> Float[np.ndarray, " row"]:
        """The KL increases without their intervals."""
        return self.kl_increase_bits.value

    @property
    def low(self) -> Float[np.ndarray, " row"]:
        """Lower ends of the intervals; NaN where there is none."""
        return self.kl_increase_bits.ends[0]

    @property
    def high(self) -> Float[np.ndarray, " row"]:
        """Upper ends of the intervals; NaN where there is none."""
        return self.kl_increase_bits.ends[1]

    def where(self, chosen: Bool[np.ndarray, " row"]) -> "Effects":
        """Return the rows where `chosen` is true."""
        at = np.flatnonzero(chosen)
        labels = [self.labels[int(i)] for i in at]
        return Effects(labels=labels, layer=self.layer[at], kl_increase_bits=self.kl_increase_bits[at])

    def largest(self, chosen: Bool[np.ndarray, " row"]) -> tuple[int, Estimate]:
        """Return the chosen row with the largest KL increase, with an interval that allows for the choice."""
        rows = np.flatnonzero(chosen)
        (at,), own = self.kl_increase_bits[rows].extreme("largest")
        return int(rows[at]), own

    def above(self, row: int, limit: float) -> _Outcome:
        """Compare the interval of a row with a threshold: "met" above it, "failed" below it, else "open"."""
        return _above(self.kl_increase_bits[row], limit)

    def cell(self, row: int, own: Estimate | None = None) -> str:
        """Return label, KL increase and interval of one row; `own` if it was chosen by its size."""
        low, high = (self.kl_increase_bits[row] if own is None else own).ends
        ends = interval_text(float(low), float(high)) if np.isfinite(low) else "no interval"
        return f"{self.labels[row]} ({number_text(float(self.values[row]))} bits [{ends}])"


def blocks_matter(labels: Sequence[str], increase: Estimate, *, own_error_bits: float) -> Criterion:
    """Apply criterion A1: every block's increase of the entropy error against a multiple of the unablated error."""
    limit = BLOCK_TIMES * own_error_bits
    verdict: Verdict
    if not labels:
        verdict, reason = "not tested", "no blocks were ablated one by one; run with --battery all or layers"
    else:
        chosen, remark = _judged(increase)
        rows = np.flatnonzero(chosen)
        (at,), own = increase[rows].extreme("smallest")
        times, low, high = np.array([own.value, *own.ends]) / own_error_bits
        ends = f"[{low:.1f} … {high:.1f}]" if np.isfinite(low) else "[no interval]"
        verdict = _verdict([_above(own, limit), *_open(increase)])
        n_below = int((increase.ends[1] < limit).sum())
        reason = (
            f"the smallest increase{remark} is that of {labels[int(rows[at])]}, {times:.1f} times the unablated error "
            f"{ends}, and {n_below} of {len(labels)} blocks lie below {BLOCK_TIMES:g} times{_missing(increase)}"
        )
    return Criterion(
        id="A1",
        claim="removing any one layer raises the entropy error more than tenfold",
        verdict=verdict,
        reason=reason,
    )


def one_head_is_unique(
    heads: Effects, *, own_kl_bits: float, layer_attention_bits: float, is_layer_ablated: bool
) -> Criterion:
    """Apply criterion A2: one head of layer 0 is unique in the network, and its removal is catastrophic.

    Args:
        heads: Single heads of all layers.
        own_kl_bits: KL without ablation.
        layer_attention_bits: KL increase when all of layer 0's attention is ablated.
        is_layer_ablated: Whether all of layer 0's attention was ablated; otherwise the verdict is never "supported".
    """
    verdict: Verdict
    if not (heads.layer == 0).any() or len(heads.labels) < 2:
        verdict, reason = "not tested", _NO_HEADS
    else:
        top, own = heads.largest(heads.layer == 0)
        second, others = heads.largest(np.arange(len(heads.labels)) != top)
        outcomes = {
            f"{UNIQUE_RATIO:g} times the second largest": _stands_out(heads, top, second, own),
            f"{CATASTROPHIC_TIMES:g} times the unablated KL": _above(own, CATASTROPHIC_TIMES * own_kl_bits),
        }
        if is_layer_ablated:
            whole = f"the effect of layer 0's attention ({number_text(layer_attention_bits)} bits)"
            outcomes[f"{LAYER_SHARE:g} times {whole}"] = _above(own, LAYER_SHARE * layer_attention_bits)
        verdict = _verdict(list(outcomes.values()))
        listed = ", ".join(f"{_LIES[outcome]} {name}" for name, outcome in outcomes.items())
        named = f"the largest effect in layer 0 is that of {heads.cell(top, own)}"
        reason = f"{named}, and among the other heads that of {heads.cell(second, others)}; the first lies {listed}"
        if not is_layer_ablated and verdict != "contradicted":
            verdict = "not tested"
            reason += "; the rule also needs layer 0's attention ablated as a whole: run with --battery all"
    return Criterion(
        id="A2",
        claim="one head of layer 0 is the unique hypothesis-frame head and its removal is catastrophic",
        verdict=verdict,
        reason=reason,
    )


def late_heads_are_redundant(heads: Effects, *, n_layers: int, uniform_kl_bits: float) -> Criterion:
    """Apply criterion A3: every head of the last layer against a share of the uniform predictor's KL."""
    late = heads.where(heads.layer == n_layers - 1)
    limit = UNIFORM_SHARE * uniform_kl_bits
    verdict: Verdict
    if not late.labels:
        verdict, reason = "not tested", _NO_HEADS
    elif not np.isfinite(limit):
        verdict, reason = (
            "not tested",
            "the report does not hold the uniform predictor's KL; run bayesgeom ablate again",
        )
    else:
        effects = late.kl_increase_bits
        chosen, remark = _judged(effects)
        top, own = late.largest(chosen)
        verdict = _verdict([_OTHER_SIDE[_above(own, limit)], *_open(effects)])
        reason = (
            f"the largest effect in the last layer{remark} is that of {late.cell(top, own)}, and "
            f"{int((late.low > limit).sum())} of {len(late.labels)} heads lie above {number_text(limit)} bits"
            f"{_missing(effects)}"
        )
    return Criterion(
        id="A3",
        claim="late heads are redundant",
        verdict=verdict,
        reason=reason,
    )


def feed_forward_does_more(feed_forward: Effects, attention: Effects) -> Criterion:
    """Apply criterion A4: the largest effect of a feed-forward layer against that of an attention sublayer."""
    verdict: Verdict
    if not feed_forward.labels or not attention.labels:
        verdict, reason = "not tested", "no feed-forward and attention layers were ablated; run with --battery all"
    else:
        (top, own), (other, others) = (of.largest(np.full(len(of.labels), True)) for of in (feed_forward, attention))
        verdict = _verdict([_above(own, float(attention.values[other]))])
        reason = (
            f"the largest effect of a feed-forward layer is that of {feed_forward.cell(top, own)}, and of an attention "
            f"sublayer that of {attention.cell(other, others)}"
        )
    return Criterion(
        id="A4",
        claim="the feed-forward layers perform the Bayesian update",
        verdict=verdict,
        reason=reason,
    )


def key_overlap_finds_it(heads: Effects, picks: Sequence[str]) -> Criterion:
    """Apply criterion A5: the effect of the layer-0 head with the least key overlap, as a share of the largest effect.

    Args:
        heads: Single heads of all layers.
        picks: Labels of the head with the least overlap, one per token set and site where the keys were read. Token
            sets can choose different heads; there is a verdict only if it is the same for all.
    """
    first = np.flatnonzero(heads.layer == 0)
    rows = [heads.labels.index(name) for name in picks if name in heads.labels]
    verdict: Verdict
    if not len(first) or len(heads.labels) < 2:
        verdict, reason = "not tested", _NO_HEADS
    else:
        top, own = heads.largest(np.full(len(heads.labels), True))
        limit = OVERLAP_SHARE * float(heads.values[top])
        reason = f"the largest effect is that of {heads.cell(top, own)}"
        outcomes = {"met" if row == top else _not_met(heads.above(row, limit)) for row in rows}
        if all(heads.above(int(row), limit) == "failed" for row in first):
            verdict = "contradicted"
            reason += f"; no head of layer 0 reaches {OVERLAP_SHARE:g} times that, whichever has the least key overlap"
        elif not rows or len(rows) < len(picks):
            verdict, reason = "not tested", _why_no_pick(picks)
        else:
            verdict = _UNANIMOUS.get(frozenset(outcomes), "not decided")
            chosen = ", ".join(heads.cell(row) for row in dict.fromkeys(rows))
            reason += f"; key overlap chooses {chosen}, and the largest for {rows.count(top)} of {len(rows)} token sets"
    return Criterion(
        id="A5",
        claim="the head with the least key overlap is the head whose removal costs most",
        verdict=verdict,
        reason=reason,
    )


def saved_ablation(folder: Path) -> AblationReport:
    """Return a saved ablation report, with the heads that key overlap chooses also where schema 3 stores them as text.

    Args:
        folder: Directory of the report.

    Returns:
        The report.

    Raises:
        OutputFault: The directory holds no readable report.
        InvalidArgument: It holds no ablation report.
    """
    report = Diagnosis.load(folder)[AblationReport]
    text = read_json(folder / JSON, is_ours=True)["reports"][report.name].get("key_overlap_pick", "")
    found = re.findall(r"(\S+) \((.+?), mean \|cos\| ([\d.]+)\)", text)
    if report.picks or not found:
        return report
    heads, views, cosines = zip(*found, strict=True)
    return replace(report, picks=heads, pick_views=views, pick_cosine=np.array(cosines, dtype=np.float64))


def criteria_of(report: AblationReport) -> tuple[Criterion, ...]:
    """Apply the criteria of claims A1 to A5 to the report on one checkpoint.

    The rules are those of the claims file, so they need mean ablation of at least 512 sequences; for any other report
    there is no verdict and the reason says what to run.
    """
    heads, attention = _effects(report, "head"), _effects(report, "attention")
    blocks = np.array([kind == "block" for kind in report.kinds])
    named = [label for label, is_block in zip(report.ablations, blocks, strict=True) if is_block]
    increases = zip(report.kl_increase_bits.value, report.kinds, report.layer, strict=True)
    first = [bits for bits, kind, layer in increases if kind == "attention" and layer == 0]
    found = (
        blocks_matter(
            named,
            _exactly(report, report.entropy_mae_increase_bits)[blocks],
            own_error_bits=float(report.unablated_entropy_mae_bits),
        ),
        one_head_is_unique(
            heads,
            own_kl_bits=float(report.unablated_kl_bits),
            layer_attention_bits=float(first[0]) if first else math.nan,
            is_layer_ablated=bool(first),
        ),
        late_heads_are_redundant(heads, n_layers=report.n_layers, uniform_kl_bits=report.uniform_kl_bits),
        feed_forward_does_more(_effects(report, "mlp"), attention),
        key_overlap_finds_it(heads, list(report.picks)),
    )
    reason = _other_measurement(report)
    return tuple(replace(own, verdict="not tested", reason=reason) for own in found) if reason else found


def _other_measurement(report: AblationReport) -> str:
    """Return why the criteria of the claims file do not apply to this report; "" if they do."""
    if report.is_preview:
        return "attribution is a preview, not an ablation; run with --method exact"
    if report.mode != MODE:
        return f"the criterion needs {MODE} ablation, this is {report.mode} ablation; run with --mode {MODE}"
    if report.n < LEAST_SEQUENCES:
        return f"the criterion needs {LEAST_SEQUENCES} sequences, this has {report.n}; run with --n {LEAST_SEQUENCES}"
    return ""


def _effects(report: AblationReport, kind: str) -> Effects:
    everything = Effects(
        labels=report.ablations, layer=report.layer, kl_increase_bits=_exactly(report, report.kl_increase_bits)
    )
    return everything.where(np.array([own == kind for own in report.kinds]))


def _exactly(report: AblationReport, effect: Estimate) -> Estimate:
    """Return the effect with value and interval set to exactly 0 where the ablation changes no logit."""
    value, low, high = (np.where(report.inert, 0.0, own) for own in (effect.value, *effect.ends))
    return replace(effect, value=value, low=low, high=high)


_NO_HEADS = "no heads were ablated one by one, as --battery heads and all do where a model has heads"
_LIES: dict[_Outcome, str] = {"met": "above", "failed": "below", "open": "not clearly above or below"}
_OTHER_SIDE: dict[_Outcome, _Outcome] = {"met": "failed", "failed": "met", "open": "open"}
_UNANIMOUS: dict[frozenset[str], Verdict] = {frozenset({"met"}): "supported", frozenset({"failed"}): "contradicted"}


def _above(own: Estimate, limit: float) -> _Outcome:
    low, high = own.ends
    return "met" if low > limit else "failed" if high < limit else "open"  # NaN is open


def _judged(effects: Estimate) -> tuple[Bool[np.ndarray, " row"], str]:
    """Return which effects have an interval, or all if none has, and a remark if some are left out."""
    is_known = ~np.isnan(effects.ends[0])
    if is_known.all() or not is_known.any():
        return np.full_like(is_known, True), ""
    return is_known, " with an interval"


def _open(effects: Estimate) -> list[_Outcome]:
    """Return an open outcome for each effect without an interval: a rule on every effect is then not met."""
    return ["open"] * int(np.isnan(effects.ends[0]).sum())


def _verdict(outcomes: Sequence[_Outcome]) -> Verdict:
    if "failed" in outcomes:
        return "contradicted"
    return "not decided" if "open" in outcomes else "supported"


def _stands_out(heads: Effects, top: int, second: int, own: Estimate) -> _Outcome:
    """Return whether the top head is far enough above all others; a threshold that is an effect has no interval."""
    limit = UNIQUE_RATIO * float(heads.values[second])
    others = np.delete(heads.high, top)
    if np.isfinite(others).all() and own.ends[0] > others.max() and heads.values[top] >= limit:
        return "met"
    return "failed" if own.ends[1] < limit else "open"


def _not_met(outcome: _Outcome) -> _Outcome:
    return "open" if outcome == "met" else outcome


def _why_no_pick(picks: Sequence[str]) -> str:
    if any(name.startswith("L0K") for name in picks):
        return "heads share their keys, so key overlap chooses no single head"
    return "no head with the least key overlap is known; run bayesgeom diagnose with --probes key_overlap"


def _missing(effects: Estimate) -> str:
    n = len(_open(effects))
    return f"; {n} of {len(effects.value)} have no interval" if n else ""
