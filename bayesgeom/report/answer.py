"""Stand-in until the branch `answer` is merged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from bayesgeom.core import Verdict
from bayesgeom.report.estimate import Estimate


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """Stand-in."""

    verdict: Verdict
    gap_closed: Estimate
    kl_bits: Estimate
    baseline: str
    baseline_kl_bits: float
    uniform_kl_bits: float
    explains: bool


def answer_of(diagnosis: Mapping[str, Any]) -> Answer | None:
    """Return the stand-in."""
    report = diagnosis.get("calibration")
    if report is None:
        return None
    kl = report.kl_bits
    name = kl.hardest_baseline("lower")
    uniform = float(kl.baseline("uniform").value)
    gap = 1 - float(kl) / uniform
    return Answer(
        verdict=Verdict.YES if gap > 0 else Verdict.NO,
        gap_closed=Estimate.of(gap),
        kl_bits=kl,
        baseline=name.name,
        baseline_kl_bits=float(name.value),
        uniform_kl_bits=uniform,
        explains=gap > 0,
    )
