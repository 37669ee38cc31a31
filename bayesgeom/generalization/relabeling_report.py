"""The report of the relabeling test: the same latent problems with their hypotheses renamed, sequence by sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.verdict import Verdict
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Share, Unit, mean_estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.intervals import UNBOUNDED, Bounds

STUCK = "answers do not change"
SHARE, CEILING_SHARE, ROUNDING = 0.5, 0.01, 1e-3


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class RelabelingReport(Report):
    """The model sees every sequence twice, the second time with its hypotheses renamed at random.

    Hypotheses are values, or hidden states with their header rows and columns. The exact answer is the same up to
    names. A point on the diagonal is a sequence with the same error both times. The mean difference alone cannot show a
    preference for names, because losses on some sequences cancel gains on others. The baseline is a model whose answers
    do not change.

    The bound is half of the model's own KL, or 1 % of the KL of a uniform prediction if that is less. Invariant: the 95
    % interval of the mean difference in KL is within ± the bound and contains 0 (up to a thousandth of the bound), and
    the interval of the mean size of the difference per sequence is below the bound. Invariant on average only: the
    same, but the size is above the bound. Not invariant: the mean difference is beyond the bound. Undecided: an
    interval is missing or includes the bound, or the mean difference is significant and within the bound.

    Fields: kL to the exact posterior before and after hypotheses are renamed, the posterior renamed with them.

    `kl_difference_bits` is after − before. If names are exchangeable in the task, it is 0 in expectation for every
    model: a model that prefers some names gains as often as it loses. `kl_difference_size_bits` is the mean of
    |after − before| over sequences, and `prediction_change` the total variation between the answers before and the
    answers after, renamed back. The baseline is a model whose answers do not change.
    """

    name: ClassVar[str] = "relabeling"
    title: ClassVar[str] = "Relabeling: do names matter?"
    verdict: str
    bound_bits: float
    kl_before_bits: Annotated[Estimate, NonNegative(unit="bits", better="lower", label="KL before renaming")]
    kl_after_bits: Annotated[Estimate, NonNegative(unit="bits", better="lower", label="KL after renaming")]
    kl_difference_bits: Annotated[Estimate, Quantity(unit="bits", better="lower", label="KL after renaming − before")]
    kl_difference_size_bits: Annotated[
        Estimate, NonNegative(unit="bits", better="lower", label="mean |KL after renaming − before|")
    ]
    prediction_change: Annotated[
        Estimate, Share(better="lower", label="total variation between answers before and after")
    ]
    entropy_mae_difference_bits: Annotated[
        Estimate, Quantity(unit="bits", better="lower", label="entropy error after − before")
    ]
    sequence_correlation: Annotated[
        Estimate, Quantity(better="higher", label="correlation of the KL before and after, over sequences")
    ]
    kl_before_bits_by_sequence: Annotated[Float[np.ndarray, " sequence"], Unit("bits")]
    kl_after_bits_by_sequence: Annotated[Float[np.ndarray, " sequence"], Unit("bits")]
    kl_difference_bits_by_position: Annotated[
        Estimate, Quantity("position", unit="bits", better="lower", label="KL after renaming − before")
    ]
    n: int

    def headlines(self) -> Sequence[Headline]:
        return (
            headline_of(self, "kl_difference_bits", verdict=self.verdict),
            headline_of(self, "kl_difference_size_bits"),
            headline_of(self, "prediction_change"),
            headline_of(self, "entropy_mae_difference_bits"),
            Headline.computed("bound_bits", "bound of the verdict", self.bound_bits, "bits"),
        )

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.generalization.relabeling_drawing import relabeling_panels

        before, after = self.kl_before_bits_by_sequence, self.kl_after_bits_by_sequence
        return relabeling_panels(before, after, self.kl_difference_bits_by_position, self.bound_bits)


@final
@dataclass(frozen=True, kw_only=True)
class Scored:
    """Errors of one pass, and answers with the names of the first pass."""

    kl_bits: Float[np.ndarray, "sequence position"]
    entropy_error_bits: Float[np.ndarray, "sequence position"]
    answers: Float[np.ndarray, "sequence position answer"]


def relabeling_report(
    before: Scored, after: Scored, stuck: Scored, *, uniform_kl_bits: float, seed: int
) -> RelabelingReport:
    """Return the comparison of two passes with each other and with a model whose answers do not change.

    Args:
        before: The first pass.
        after: The pass over the renamed sequences.
        stuck: The answers of the first pass, scored against the renamed posterior.
        uniform_kl_bits: KL of a uniform prediction on these sequences, in bits.
        seed: Seed of the bootstrap.
    """
    along, gap = after.kl_bits - before.kl_bits, _by_sequence(stuck.kl_bits - before.kl_bits)

    def estimate(
        per_sequence: Float[np.ndarray, " sequence"], stuck_at: float | None = None, bounds: Bounds = UNBOUNDED
    ) -> Estimate:
        level = () if stuck_at is None else (Baseline.of("baseline", STUCK, stuck_at),)
        return mean_estimate(per_sequence, seed=seed, baselines=level, bounds=bounds)

    mean = estimate(_by_sequence(along), float(gap.mean()))
    size = estimate(np.abs(_by_sequence(along)), float(np.abs(gap).mean()))
    kl_before, n = float(before.kl_bits.mean()), len(along)
    bound = min(SHARE * kl_before, CEILING_SHARE * uniform_kl_bits)
    is_identical = not _by_sequence(along).any()
    ends = [(0.0, 0.0) if is_identical else (float(own.ends[0]), float(own.ends[1])) for own in (mean, size)]
    one, other = _by_sequence(before.kl_bits), _by_sequence(after.kl_bits)
    return RelabelingReport(
        verdict=str(verdict(ends[0], ends[1], bound)),
        bound_bits=bound,
        kl_before_bits=Estimate.of(kl_before, n=n),
        kl_after_bits=Estimate.of(after.kl_bits.mean(), n=n),
        kl_difference_bits=mean,
        kl_difference_size_bits=size,
        prediction_change=estimate(_change(before, after), float(_change(before, stuck).mean()), (0.0, 1.0)),
        entropy_mae_difference_bits=estimate(_by_sequence(after.entropy_error_bits - before.entropy_error_bits)),
        sequence_correlation=Estimate.of(_correlation(one, other), n=n),
        kl_before_bits_by_sequence=one,
        kl_after_bits_by_sequence=other,
        kl_difference_bits_by_position=mean_estimate(along, seed=seed),
        n=n,
    )


def verdict(mean: tuple[float, float], size: tuple[float, float], bound: float) -> Verdict:
    """Apply the rule of the report to the intervals of the mean difference and of its mean size per sequence, in bits.

    Example:
        >>> verdict((-0.5, 0.5), (float("nan"), float("nan")), 1.0)
        <Verdict.UNDECIDED: 'undecided'>
    """
    lo, hi = mean
    if lo > bound or hi < -bound:
        return Verdict.NOT_INVARIANT
    rounding = ROUNDING * bound
    is_equivalent = -bound <= lo <= rounding and -rounding <= hi <= bound
    if not is_equivalent or np.isnan(size).any() or size[0] <= bound < size[1]:
        return Verdict.UNDECIDED
    return Verdict.INVARIANT if size[1] <= bound else Verdict.INVARIANT_ON_AVERAGE


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
