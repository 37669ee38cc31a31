"""The report of the relabeling test: the same latent problems with their hypotheses renamed, sequence by sequence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import numpy as np
from jaxtyping import Float

from bayesgeom.results.report import Headline, Report
from bayesgeom.stats.bootstrap import mean_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Verdict = Literal["invariant", "invariant on average only", "not invariant", "undecided"]
SHARE, CEILING_SHARE, ROUNDING = 0.5, 0.01, 1e-3
RULE = (
    f"the bound is {SHARE:.0%} of the model's own KL, or {CEILING_SHARE:.0%} of the KL of a uniform prediction where "
    f"that is less. invariant: the 95 % interval of the mean difference in KL lies within ± the bound and holds 0 (to "
    f"a thousandth of the bound), and the interval of the mean size of the difference per sequence lies below the "
    f"bound; invariant on average only: the mean difference as before, the size above the bound; not invariant: the "
    f"mean difference lies beyond the bound; undecided: an interval is missing or reaches across the bound, or the "
    f"mean difference is significant and within the bound"
)


@final
@dataclass(frozen=True, kw_only=True)
class RelabellingReport(Report):
    """KL to the exact posterior before and after hypotheses are renamed, the posterior renamed with them.

    `kl_difference_bits` is after − before. Where names are exchangeable in the task it is 0 in expectation for every
    model, good or bad: a model that prefers some names gains as often as it loses. `kl_difference_size_bits` is the
    mean of |after − before| over sequences, and `prediction_change` the total variation between the answers before
    and the answers after, renamed back. The baseline (`nulls`) is a model whose answers do not change. The bound of the
    verdict is relative to the model's own KL (`RULE`), and `verdict_reason` states the numbers that decided.
    """

    name: ClassVar[str] = "relabelling"
    title: ClassVar[str] = "Relabeling: do the names of the hypotheses matter?"
    about: ClassVar[str] = (
        "The model sees every sequence twice, the second time with its hypotheses renamed at random wherever they "
        "occur: values, or hidden states with their header rows and columns. The exact answer is the same up to names. "
        "A point on the diagonal is a sequence on which the model is as wrong as before. The mean difference alone "
        "cannot show a preference for names, since losses on some sequences cancel gains on others. The baseline is a "
        f"model whose answers do not change. Rule of the verdict: {RULE}."
    )

    verdict: str
    verdict_reason: str = ""
    kl_before_bits: float
    kl_after_bits: float
    kl_difference_bits: float
    kl_difference_size_bits: float
    bound_bits: float
    prediction_change: float
    entropy_mae_difference_bits: float
    sequence_correlation: float  # of the KL before with that after
    kl_before_bits_by_sequence: Float[np.ndarray, " sequence"]
    kl_after_bits_by_sequence: Float[np.ndarray, " sequence"]
    kl_difference_bits_by_position: Float[np.ndarray, " position"]
    kl_difference_bits_by_position_lo: Float[np.ndarray, " position"]
    kl_difference_bits_by_position_hi: Float[np.ndarray, " position"]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        stuck = "answers do not change"
        return (
            self.scalar(
                "kl_difference_bits", f"{self.verdict}: KL after renaming − before", unit="bits", null_label=stuck
            ),
            self.scalar("kl_difference_size_bits", "mean |KL after renaming − before|", unit="bits", null_label=stuck),
            self.scalar("prediction_change", "total variation between answers before and after", null_label=stuck),
            self.scalar("entropy_mae_difference_bits", "entropy error after − before", unit="bits"),
        )

    def figure(self) -> "Figure":
        from bayesgeom.generalization.relabeling_drawing import relabelling_figure

        return relabelling_figure(
            self.title,
            before=self.kl_before_bits_by_sequence,
            after=self.kl_after_bits_by_sequence,
            difference=self.kl_difference_bits_by_position,
            band=(self.kl_difference_bits_by_position_lo, self.kl_difference_bits_by_position_hi),
            bound=self.bound_bits,
        )  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class Scored:
    """Errors of one pass, and answers with the names of the first pass."""

    kl_bits: Float[np.ndarray, "sequence position"]
    entropy_error_bits: Float[np.ndarray, "sequence position"]
    answers: Float[np.ndarray, "sequence position answer"]


def relabelling_report(
    before: Scored, after: Scored, stuck: Scored, *, uniform_kl_bits: float, seed: int
) -> RelabellingReport:
    """Compare two passes with each other, and with `stuck`: the answers of the first pass scored after renaming.

    Args:
        before: The first pass.
        after: The pass over the renamed sequences.
        stuck: The answers of the first pass, scored against the renamed posterior.
        uniform_kl_bits: KL of a uniform prediction on these sequences, in bits.
        seed: Seed of the bootstrap.
    """
    differences = {
        "kl_difference_bits": _by_sequence(after.kl_bits - before.kl_bits),
        "kl_difference_size_bits": np.abs(_by_sequence(after.kl_bits - before.kl_bits)),
        "prediction_change": _change(before, after),
        "entropy_mae_difference_bits": _by_sequence(after.entropy_error_bits - before.entropy_error_bits),
    }
    found = mean_interval(np.stack(list(differences.values()), axis=1), seed=seed)
    intervals = dict(zip(differences, zip(found.lo.tolist(), found.hi.tolist(), strict=True), strict=True))
    names = ("kl_difference_bits", "kl_difference_size_bits")
    missing = [why for i in range(len(names)) if (why := found.why_not((i,)))]
    kl_before = float(before.kl_bits.mean())
    bound = min(SHARE * kl_before, CEILING_SHARE * uniform_kl_bits)
    is_identical = not differences["kl_difference_size_bits"].any()
    difference, size = ((0.0, 0.0) if is_identical else intervals[name] for name in names)
    along = after.kl_bits - before.kl_bits
    low, high = mean_interval(along, seed=seed)
    one, other = _by_sequence(before.kl_bits), _by_sequence(after.kl_bits)
    gap = _by_sequence(stuck.kl_bits - before.kl_bits)
    return RelabellingReport(
        verdict=verdict(difference, size, bound),
        verdict_reason=_reason(difference, size, bound, kl_before, missing, is_identical=is_identical),
        kl_before_bits=kl_before,
        kl_after_bits=float(after.kl_bits.mean()),
        **{name: float(values.mean()) for name, values in differences.items()},
        bound_bits=bound,
        sequence_correlation=_correlation(one, other),
        kl_before_bits_by_sequence=one,
        kl_after_bits_by_sequence=other,
        kl_difference_bits_by_position=along.mean(axis=0),
        kl_difference_bits_by_position_lo=low,
        kl_difference_bits_by_position_hi=high,
        intervals=intervals,
        nulls={
            "kl_difference_bits": float(gap.mean()),
            "kl_difference_size_bits": float(np.abs(gap).mean()),
            "prediction_change": float(_change(before, stuck).mean()),
        },
        n=len(one),
    )


def verdict(mean: tuple[float, float], size: tuple[float, float], bound: float) -> Verdict:
    """Apply `RULE` to the intervals of the mean difference and of its mean size per sequence, in bits; NaN is open.

    Example:
        >>> verdict((-0.5, 0.5), (float("nan"), float("nan")), 1.0)
        'undecided'
    """
    lo, hi = mean
    if lo > bound or hi < -bound:
        return "not invariant"
    rounding = ROUNDING * bound
    is_equivalent = -bound <= lo <= rounding and -rounding <= hi <= bound
    if not is_equivalent or np.isnan(size).any() or size[0] <= bound < size[1]:
        return "undecided"
    return "invariant" if size[1] <= bound else "invariant on average only"


def _reason(
    difference: tuple[float, float],
    size: tuple[float, float],
    bound: float,
    kl_before: float,
    missing: Sequence[str],
    *,
    is_identical: bool,
) -> str:
    terms = f"bound ± {bound:.2g} bits, own KL {kl_before:.2g} bits"
    if is_identical:
        return f"the KL of every sequence is exactly the same after renaming; {terms}"
    if missing:
        return f"no interval: {missing[0]}; {terms}"
    return (
        f"mean difference [{difference[0]:.2g} … {difference[1]:.2g}], mean size per sequence "
        f"[{size[0]:.2g} … {size[1]:.2g}], {terms}"
    )


def _by_sequence(values: Float[np.ndarray, "sequence position"]) -> Float[np.ndarray, " sequence"]:
    mean: np.ndarray = values.mean(axis=1, dtype=np.float64)
    return mean


def _change(one: Scored, other: Scored) -> Float[np.ndarray, " sequence"]:
    change: np.ndarray = np.abs(one.answers - other.answers).sum(axis=2).mean(axis=1) / 2
    return change


def _correlation(one: Float[np.ndarray, " sequence"], other: Float[np.ndarray, " sequence"]) -> float:
    if min(one.std(), other.std()) == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])
