"""The answer of a diagnosis: do the predictions agree with the exact posterior? A verdict and its numbers.

The share of the gap closed is 1 − KL / KL of the strongest context-free predictor, one that sees no evidence of the
sequence. The lower end of its 95 % interval decides. Where the predictions are no better than that predictor, numbers
on activations explain no inference: `is_gated` says which reports hold such numbers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from bayesgeom.core import Reason, Verdict
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.storage import value_of
from bayesgeom.report.tables import Reported

MATCHED, NEAR = 0.99, 0.9  # least share of the gap closed that is called a match, and close
NAMED_SHARE = 0.05  # of the gap that one temperature must close for the answer to name the confidence
_CALIBRATION, _RESPONSE = "calibration", "evidence_response"  # names of the reports that are read


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """Whether the predictions agree with the exact posterior predictive.

    Args:
        verdict: `MATCHES`, `CLOSE`, `PARTLY`, `NO_BETTER` or `WORSE`; `UNDECIDED` without an interval.
        gap_closed: 1 − KL / KL of the baseline, at most 1, with its interval over sequences.
        kl_bits: KL(exact ‖ model).
        baseline: Name of the strongest context-free predictor.
        baseline_kl_bits: Its KL.
        uniform_kl_bits: KL of the uniform distribution over the answers.
        confidence: 1/τ: above 1 overconfident, below 1 underconfident (`bayesgeom.stats.tempering`).
        is_confidence_named: Whether one temperature closes at least 5 % of the gap, so that the sentence names it.
        off_answer_prob: Mean probability of ids that are no answers.
        response: Slope of the model's change in the exact one when evidence older than each age is drawn again; None
            if it was not measured.
        ages: These ages, as far as the exact answer depends on evidence that old; 0 is all evidence.
    """

    verdict: Verdict
    gap_closed: Estimate
    kl_bits: Estimate
    baseline: str
    baseline_kl_bits: float
    uniform_kl_bits: float
    confidence: Estimate
    is_confidence_named: bool
    off_answer_prob: float
    response: Estimate | None = None
    ages: tuple[int, ...] = ()

    @property
    def explains(self) -> bool:
        """Whether numbers on activations can explain inference: the predictions are better than context-free ones."""
        return self.verdict not in (Verdict.NO_BETTER, Verdict.WORSE)


def answer_of(diagnosis: Mapping[str, Any]) -> Answer | None:
    """Return the answer of reports by name; None if the agreement with an exact posterior was not measured.

    Args:
        diagnosis: A diagnosis, or its reports by name.
    """
    if (report := diagnosis.get(_CALIBRATION)) is None:
        return None
    references = value_of(report, "references")
    if not references or math.isnan(float(report.gap_closed.value[0])):  # a file of another version has none
        return None
    levels = dict(zip(references, map(float, report.reference_kl_bits), strict=True))
    response, ages = _response(diagnosis.get(_RESPONSE))
    return Answer(
        verdict=verdict_of(report.gap_closed[0]),
        gap_closed=report.gap_closed[0],
        kl_bits=report.kl_bits,
        baseline=references[0],
        baseline_kl_bits=levels[references[0]],
        uniform_kl_bits=levels["uniform"],
        confidence=report.confidence,
        is_confidence_named=bool(report.tempering_gain_bits.value >= NAMED_SHARE * levels[references[0]]),
        off_answer_prob=float(report.off_answer_prob),
        response=response,
        ages=ages,
    )


def verdict_of(closed: Estimate) -> Verdict:
    """Return the verdict on a share of the gap closed: the lower end of its interval decides.

    Args:
        closed: The share, a scalar. If it is the same in all sequences, it has no interval and decides itself.
    """
    low, high = map(float, closed.ends)
    if closed.reason_at() == Reason.CONSTANT:
        low = high = float(closed)
    if math.isnan(low):
        return Verdict.UNDECIDED
    for least, verdict in ((MATCHED, Verdict.MATCHES), (NEAR, Verdict.CLOSE)):
        if low >= least:
            return verdict
    if low > 0:
        return Verdict.PARTLY
    return Verdict.WORSE if high < 0 else Verdict.NO_BETTER


def _response(report: Any) -> tuple[Estimate | None, tuple[int, ...]]:
    """Return the slopes of the ages at which the exact answer depends on older evidence."""
    if report is None or report.is_single:
        return None, ()
    known = np.array([verdict != Verdict.NOT_IDENTIFIED for verdict in report.verdicts])
    ages = tuple(int(age) for age, is_known in zip(report.ages, known, strict=True) if is_known)
    return (report.slope[known], ages) if ages else (None, ())


def is_gated(answer: Answer | None, report: Reported) -> bool:
    """Return whether a report holds numbers on activations that explain no inference, because there is none."""
    return answer is not None and not answer.explains and not report.is_behavioral
