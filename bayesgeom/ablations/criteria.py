"""Criteria of the published ablation claims, applied to the numbers of one ablation report.

The claims are A1, A2, A3 and A5 of the project's list. The thresholds below were chosen when the committed numbers of
the shipped models were already known, so on those models the verdicts are descriptions and no tests; they are tests on
a model that is measured for the first time. A verdict holds for one checkpoint: it says nothing about other trainings.
The claims file asks more of A2 and A5, over several checkpoints: `bayesgeom reproduce` decides the claims, this module
describes one report. An effect without an interval supports nothing, and an ablation that changes no logit has
exactly no effect.

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (layers, heads); the ratio of 2 is the threshold that the
authors' J-lens note sets for a dominating head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Bool, Float, Int

Verdict = Literal["supported", "contradicted", "not decided", "not tested"]
UNIQUE_RATIO, CATASTROPHIC_RATIO, BLOCK_RATIO, NEGLIGIBLE_SHARE = 2.0, 10.0, 10.0, 0.5


@final
@dataclass(frozen=True, kw_only=True)
class Criterion:
    """One claim, the rule that decides it, what the rule says here, and the numbers behind it."""

    id: str
    claim: str
    rule: str
    verdict: Verdict
    reason: str

    def __str__(self) -> str:
        return f"{self.id} {self.claim}: {self.verdict} ({self.reason})"


@final
@dataclass(frozen=True, kw_only=True)
class Effects:
    """KL increases of some single ablations, with their intervals, and KL ratios, in the order of `labels`."""

    labels: Sequence[str]
    layer: Int[np.ndarray, " row"]
    kl_increase_bits: Float[np.ndarray, " row"]
    lo: Float[np.ndarray, " row"]
    hi: Float[np.ndarray, " row"]
    kl_ratio_lo: Float[np.ndarray, " row"]
    kl_ratio_hi: Float[np.ndarray, " row"]

    @property
    def known(self) -> Bool[np.ndarray, " row"]:
        """Where the KL increase has an interval."""
        known: Bool[np.ndarray, " row"] = np.isfinite(self.lo) & np.isfinite(self.hi)
        return known

    def where(self, chosen: Bool[np.ndarray, " row"]) -> "Effects":
        """The rows where `chosen` is true."""
        at = np.flatnonzero(chosen)
        return Effects(
            labels=[self.labels[int(i)] for i in at], layer=self.layer[at], kl_increase_bits=self.kl_increase_bits[at],
            lo=self.lo[at], hi=self.hi[at], kl_ratio_lo=self.kl_ratio_lo[at], kl_ratio_hi=self.kl_ratio_hi[at],
        )  # fmt: skip

    def ranked(self) -> list[int]:
        """Row numbers, largest KL increase first."""
        return [int(row) for row in np.argsort(-self.kl_increase_bits, kind="stable")]

    def cell(self, row: int) -> str:
        """Label, KL increase and interval of one row."""
        return f"{self.labels[row]} {self.kl_increase_bits[row]:.4f} bits [{self.lo[row]:.4f} … {self.hi[row]:.4f}]"


def blocks_matter(
    labels: Sequence[str], ratio: Float[np.ndarray, " block"], lo: Float[np.ndarray, " block"],
    hi: Float[np.ndarray, " block"],
) -> Criterion:  # fmt: skip
    """A1: removing any one layer multiplies the entropy error by more than 10. `ratio` is with over without removal."""
    known = np.isfinite(lo) & np.isfinite(hi)
    if not len(ratio):
        verdict, reason = _untested("blocks")
    elif not known.all() and not (hi < BLOCK_RATIO).any():
        verdict, reason = _without_interval(labels, known)
    else:
        least = int(ratio.argmin())
        verdict = _decided(bool((lo > BLOCK_RATIO).all()), bool((hi < BLOCK_RATIO).any()))
        n_below = int((hi < BLOCK_RATIO).sum())
        reason = (
            f"least: {labels[least]}, {ratio[least]:.1f} times [{lo[least]:.1f} … {hi[least]:.1f}]; "
            f"{n_below} of {len(ratio)} blocks below {BLOCK_RATIO:g}"
        )
    return Criterion(
        id="A1", claim="removing any one block multiplies the entropy error more than tenfold",
        rule=f"supported: every block's interval lies above {BLOCK_RATIO:g}; contradicted: one lies below",
        verdict=verdict, reason=reason,
    )  # fmt: skip


def one_head_is_unique(heads: Effects) -> Criterion:
    """A2: one head of layer 0 stands out of all heads, and its removal is catastrophic.

    Bounds of the ratio are those of two separate intervals, so they are wider than a paired interval would be.
    """
    if len(heads.labels) < 2:
        verdict, reason = _untested("heads")
    elif not heads.known.all():
        verdict, reason = _without_interval(heads.labels, heads.known)
    else:
        top, second = heads.ranked()[:2]
        others = np.arange(len(heads.labels)) != top
        first_layer = np.flatnonzero(heads.layer == 0)
        best_of_first = int(first_layer[heads.kl_increase_bits[first_layer].argmax()]) if len(first_layer) else top
        least, most = _ratio_bounds(heads, top, others)
        stands_out = bool(heads.lo[top] > heads.hi[others].max() and least >= UNIQUE_RATIO)
        is_catastrophic = bool(heads.kl_ratio_lo[top] >= CATASTROPHIC_RATIO)
        excluded = bool(
            heads.lo.max() > heads.hi[best_of_first]
            or (top == best_of_first and (most < UNIQUE_RATIO or heads.kl_ratio_hi[top] < CATASTROPHIC_RATIO))
        )
        verdict = _decided(bool(heads.layer[top] == 0 and stands_out and is_catastrophic), excluded)
        runner_up = heads.kl_increase_bits[second]
        times = f"{heads.kl_increase_bits[top] / runner_up:.2f} times" if runner_up > 0 else "above"
        reason = (
            f"{heads.cell(top)}, {times} the second, {heads.cell(second)}; without it KL is between "
            f"{heads.kl_ratio_lo[top]:.0f} and {heads.kl_ratio_hi[top]:.0f} times the model's own"
        )
        if top != best_of_first:
            reason += f"; largest of layer 0: {heads.cell(best_of_first)}"
    rule = (
        f"supported: the head with the largest KL increase is in layer 0, its interval lies above all other heads' and "
        f"at least {UNIQUE_RATIO:g} times above, and the KL without it is at least {CATASTROPHIC_RATIO:g} times the "
        f"model's own; contradicted: a head of another layer lies above all of layer 0, or one of the factors is "
        f"excluded"
    )
    return Criterion(
        id="A2", claim="one head of layer 0 is the unique hypothesis-frame head", rule=rule, verdict=verdict,
        reason=reason,
    )  # fmt: skip


def late_heads_are_negligible(heads: Effects, *, n_layers: int, own_kl_bits: float) -> Criterion:
    """A3: no single head of the later half of the layers matters, measured by the model's own KL."""
    late = heads.where(heads.layer >= (n_layers + 1) // 2)
    bound = NEGLIGIBLE_SHARE * own_kl_bits
    if not late.labels:
        verdict, reason = _untested("late heads")
    elif not late.known.all() and not (late.lo > bound).any():
        verdict, reason = _without_interval(late.labels, late.known)
    else:
        verdict = _decided(bool((late.hi <= bound).all()), bool((late.lo > bound).any()))
        largest = heads.kl_increase_bits.max()
        top = late.ranked()[0]
        reason = (
            f"{int((late.lo > bound).sum())} of {len(late.labels)} late heads above {bound:.2g} bits; largest "
            f"{late.cell(top)}, {late.kl_increase_bits[top] / largest:.0%} of the largest of all heads"
        )
    rule = (
        f"late: the last {n_layers // 2} of {n_layers} layers; supported: every late head's interval ends below "
        f"{NEGLIGIBLE_SHARE:g} of the model's own KL; contradicted: one begins above"
    )
    return Criterion(
        id="A3", claim="single late heads are redundant", rule=rule, verdict=verdict, reason=reason
    )  # fmt: skip


def key_overlap_finds_it(heads: Effects, picks: Sequence[str], *, own_kl_bits: float) -> Criterion:
    """A5: in layer 0, the head with the least key overlap is the head whose removal costs most.

    `picks` begin with a head's label, one for every token set and place where its keys were read. Where no head of
    layer 0 matters, there is none to find.
    """
    first = heads.where(heads.layer == 0)
    named = [pick.split(" ", maxsplit=1)[0] for pick in picks if pick.startswith("L0H")]
    verdict: Verdict
    if any(pick.startswith("L0K") for pick in picks):
        verdict, reason = "not tested", "heads share their keys, so key overlap chooses no single head"
    elif len(first.labels) < 2 or not named:
        verdict, reason = _untested("heads of layer 0, or key overlap")
    elif not first.known.all():
        verdict, reason = _without_interval(first.labels, first.known)
    else:
        top = first.ranked()[0]
        others = np.arange(len(first.labels)) != top
        same = [label == first.labels[top] for label in named]
        is_clear = bool(first.lo[top] > max(first.hi[others].max(), NEGLIGIBLE_SHARE * own_kl_bits))
        verdict = _decided(is_clear and all(same), is_clear and not any(same))
        chosen = ", ".join(
            f"{label} (rank {first.ranked().index(first.labels.index(label)) + 1} of {len(first.labels)})"
            for label in dict.fromkeys(named)
            if label in first.labels
        )
        reason = (
            f"ablation: {first.cell(top)}; least key overlap in {sum(same)} of {len(same)} readings of the keys; "
            f"their choices by KL increase: {chosen}; chance 1 in {len(first.labels)}"
        )
    rule = (
        f"supported: every reading of the keys chooses the head of layer 0 whose interval lies above the others' and "
        f"above {NEGLIGIBLE_SHARE:g} of the model's own KL; contradicted: none does; not decided: some do, or there is "
        f"no such head"
    )
    return Criterion(
        id="A5", claim="key overlap identifies the frame head", rule=rule, verdict=verdict, reason=reason
    )  # fmt: skip


def _decided(is_supported: bool, is_contradicted: bool) -> Verdict:
    return "supported" if is_supported else "contradicted" if is_contradicted else "not decided"


def _untested(what: str) -> tuple[Verdict, str]:
    return "not tested", f"{what}: not ablated one by one"


def _without_interval(labels: Sequence[str], known: Bool[np.ndarray, " row"]) -> tuple[Verdict, str]:
    without = [label for label, is_known in zip(labels, known, strict=True) if not is_known]
    return "not decided", f"no interval for {len(without)} of {len(labels)}, the first {without[0]}"


def _ratio_bounds(heads: Effects, top: int, others: Bool[np.ndarray, " row"]) -> tuple[float, float]:
    """The least and the most that the ratio of the largest to the second-largest KL increase can be."""
    strongest = heads.hi[others].max()
    weakest = heads.lo[others].max()
    least = heads.lo[top] / strongest if strongest > 0 else np.inf
    most = heads.hi[top] / weakest if weakest > 0 else np.inf
    return float(least), float(most)
