"""Does the model care what hypotheses are called? The same latent problems under other names, sequence by sequence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import numpy as np
from jaxtyping import Float

from bayesgeom.report import Headline, Report
from bayesgeom.statistics import mean_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Verdict = Literal["invariant", "invariant on average only", "not invariant", "undecided"]
SHARE, LEAST_BITS = 0.1, 1e-3
RULE = (
    f"invariant: the 95 % intervals of the mean difference in KL, and of its mean size per sequence, lie within "
    f"±{SHARE:.0%} of the KL before, or ±{LEAST_BITS:g} bits where that is more; on average only: the first does, and "
    f"the second lies beyond; not invariant: the first lies beyond; undecided: an interval reaches across the bound"
)


@final
@dataclass(frozen=True, kw_only=True)
class RelabellingReport(Report):
    """KL to the exact posterior before and after hypotheses are renamed, the posterior renamed with them.

    `kl_difference_bits` is after − before. Where names are exchangeable in the task it is 0 in expectation for every
    model, good or bad: a model may prefer some names, and gains by it as often as it loses. So
    `kl_difference_size_bits`, the mean of |after − before| over sequences, is given beside it, and
    `prediction_change`, the total variation between the answers before and the answers after, renamed back. The nulls
    are those of a model whose answers stay as they were.
    """

    name: ClassVar[str] = "relabelling"
    title: ClassVar[str] = "Relabelling: does it matter what hypotheses are called?"
    about: ClassVar[str] = (
        "Every sequence is shown twice, the second time with its hypotheses renamed at random in all that speaks of "
        "them: values wherever they are shown, hidden states together with their rows and columns of the header. The "
        "exact answer is the same up to names. Points on the diagonal are sequences on which the model is as wrong as "
        "before; the mean alone cannot show a preference for names, since what is lost on one sequence is gained on "
        f"another. The null is a model that answers as if nothing had been renamed. The rule of the verdict is: {RULE}."
    )

    verdict: str
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
        stuck = "answers left as they were"
        return (
            self.scalar("kl_difference_bits", "KL after renaming − before", unit="bits", null_label=stuck),
            self.scalar("kl_difference_size_bits", "mean |KL after renaming − before|", unit="bits", null_label=stuck),
            self.scalar("prediction_change", "total variation of answers, before and after", null_label=stuck),
            self.scalar("entropy_mae_difference_bits", "entropy error after − before", unit="bits"),
        )

    def figure(self) -> "Figure":
        from bayesgeom.charts.relabelling import relabelling_figure

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


def relabelling_report(before: Scored, after: Scored, stuck: Scored, *, seed: int) -> RelabellingReport:
    """Set two passes, and one in which nothing was noticed, side by side."""
    differences = {
        "kl_difference_bits": _by_sequence(after.kl_bits - before.kl_bits),
        "kl_difference_size_bits": np.abs(_by_sequence(after.kl_bits - before.kl_bits)),
        "prediction_change": _change(before, after),
        "entropy_mae_difference_bits": _by_sequence(after.entropy_error_bits - before.entropy_error_bits),
    }
    lo, hi = mean_interval(np.stack(list(differences.values()), axis=1), seed=seed)
    intervals = dict(zip(differences, zip(lo.tolist(), hi.tolist(), strict=True), strict=True))
    kl_before = float(before.kl_bits.mean())
    bound = max(SHARE * kl_before, LEAST_BITS)
    along = after.kl_bits - before.kl_bits
    low, high = mean_interval(along, seed=seed)
    one, other = _by_sequence(before.kl_bits), _by_sequence(after.kl_bits)
    gap = _by_sequence(stuck.kl_bits - before.kl_bits)
    return RelabellingReport(
        verdict=verdict(intervals["kl_difference_bits"], intervals["kl_difference_size_bits"], bound),
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
    """The rule, applied to the intervals of the mean difference and of its mean size."""
    lo, hi = mean
    if lo > bound or hi < -bound:
        return "not invariant"
    if not (-bound <= lo and hi <= bound) or size[0] <= bound < size[1]:
        return "undecided"
    return "invariant" if size[1] <= bound else "invariant on average only"


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
