"""Planted predictors of a noisy slow chain, whose evidence response is known: the table of `bayesgeom selftest`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch

from bayesgeom.core import Verdict
from bayesgeom.measurements.evidence_response import (
    FORGETTING,
    MIXED,
    SHARP,
    WINDOW,
    EvidenceResponseReport,
    known_changes,
    response_report,
)
from bayesgeom.tasks.sticky_markov import StickyMarkov

AGES = (0, 5, 10)
N = 512  # sequences
_TASK = StickyMarkov(n_states=4, self_probability=0.95, noise=0.5, length=40)


@final
@dataclass(frozen=True, kw_only=True)
class PlantedResponse:
    """The measured response of one predictor, and what is known of it.

    Attributes:
        name: Name of the predictor.
        report: Its evidence response at `AGES`.
        expected: Least and greatest slope at each age.
        verdicts: Possible verdicts on evidence older than 10 symbols.
    """

    name: str
    report: EvidenceResponseReport
    expected: tuple[tuple[float, float], ...]
    verdicts: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Whether slopes and verdict are those that are known."""
        inside = [low <= each <= high for each, (low, high) in zip(self.report.slope.value, self.expected, strict=True)]
        return all(inside) and self.report.verdict_at(10) in self.verdicts

    def row(self) -> tuple[str, ...]:
        """Return name, slopes, relative slopes and the verdict on evidence older than 10 symbols."""
        slopes = [f"{slope:.2f}" for slope in (*self.report.slope.value, *self.report.relative_slope.value[1:])]
        return self.name, *slopes, str(self.report.verdict_at(10))


def planted_responses() -> Iterator[PlantedResponse]:
    """Yield the response of each planted predictor on the same sequences."""
    trials = _TASK.sample(N, seed=0)
    back = torch.arange(_TASK.n_evidence, 0, -1)
    replaced = [_TASK.replace_evidence(trials, back <= age, torch.Generator().manual_seed(1 + age)) for age in AGES]
    known = known_changes(trials, replaced)
    one, zero = (1 - 1e-9, 1 + 1e-9), (-1e-9, 1e-9)
    expected = {
        "exact": ((one, one, one), (Verdict.TRANSPORTS,)),
        MIXED: (((0.8 - 1e-9, 0.8 + 1e-9),) * 3, (Verdict.TRANSPORTS,)),
        SHARP: (((1.7, 2.1),) * 3, (Verdict.TRANSPORTS, Verdict.UNDECIDED)),
        WINDOW: (((0.95, 1.0), (0.85, 0.95), zero), (Verdict.NOT_SHOWN,)),
        FORGETTING: (((0.92, 0.97), (0.63, 0.73), (0.42, 0.52)), (Verdict.IN_PART, Verdict.UNDECIDED)),
    }
    for name, (slopes, verdicts) in expected.items():
        report = response_report([str(age) for age in AGES], known[name], known, is_single=False, seed=0)
        yield PlantedResponse(name=name, report=report, expected=slopes, verdicts=verdicts)
