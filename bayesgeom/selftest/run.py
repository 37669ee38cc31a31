"""Selftest: check every installed probe and the interventions against planted controls on this machine.

The interventions are checked on planted networks whose use of a quantity is known, with the verdict expected of each. A
naive test gets two of them wrong: a margin without a test of erasure calls the decoder direction of `uses_entropy` not
used, and an answer shift without movement calls the decoder direction of `ignores_belief` used.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

from bayesgeom.core.plugins import Contained, is_foreign
from bayesgeom.diagnosis.plan import AnyProbe, all_probes, broken_probes
from bayesgeom.generalization.response import EvidenceResponseReport
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.report import AFTER, BEFORE, VARIANCE, InterventionReport
from bayesgeom.interventions.run import intervene
from bayesgeom.selftest.planted import (
    LAYER,
    SITE,
    PlantedModel,
    ignores_belief,
    ignores_entropy,
    uses_belief,
    uses_entropy,
)
from bayesgeom.selftest.responses import planted_responses
from bayesgeom.subspaces.base import Fit, InterventionSite
from bayesgeom.subspaces.fits import covariance, decoder, leace, trained_swap

INTERVENTION = "intervention"
N = 48  # pairs
_STEPS = 12  # training steps of a trained swap: enough to steer the answer, in seconds
_DESIGN = Design(kind="swap", n_random=20, n_matched=20, n_control=16, n_untrained=0, n_fit=512)


@final
@dataclass(frozen=True, kw_only=True)
class ControlResult:
    """One control of one probe or of the interventions, and whether the result was correct."""

    probe: str
    control: str
    passed: bool


def selftest() -> list[ControlResult]:
    """Run every control of every installed probe, then those of the interventions and of the evidence response.

    A plug-in of another package that cannot be loaded, or fails, gets a failed verdict with the reason; the rest runs.

    Returns:
        One verdict per control.
    """
    verdicts = [ControlResult(probe=name, control=reason, passed=False) for name, reason in broken_probes().items()]
    for name, probe in all_probes().items():
        with Contained(is_foreign=is_foreign(type(probe))) as testing:
            verdicts.extend(_verdicts(name, probe))
        if testing.fault:
            failed = f"plug-in {name!r} failed: {testing.fault.rstrip('.')}."
            verdicts.append(ControlResult(probe=name, control=failed, passed=False))
    verdicts += [
        ControlResult(probe=INTERVENTION, control=control.label, passed=control.holds(control.report()))
        for control in intervention_controls()
    ]
    verdicts += [
        ControlResult(probe=EvidenceResponseReport.name, control=own.text(), passed=own.passed)
        for own in planted_responses()
    ]
    return verdicts


def _verdicts(name: str, probe: AnyProbe) -> Iterator[ControlResult]:
    for control in probe.controls():
        fresh = [probe.measure(run) for run in control.untrained]
        passed = bool(control.holds(probe.measure(control.run, fresh)))
        yield ControlResult(probe=name, control=control.label, passed=passed)


@final
@dataclass(frozen=True, kw_only=True)
class InterventionControl:
    """One subspace of one planted network, and the condition that its report must satisfy."""

    label: str
    build: Callable[[], PlantedModel]
    fit: Fit
    holds: Callable[[InterventionReport], bool]

    def report(self) -> InterventionReport:
        """Return the report on a swap at the site that holds the planted features."""
        return intervene(self.build(), None, self.fit, kind=_DESIGN, sites=InterventionSite(SITE, (LAYER,)), n=N)


def intervention_controls() -> Iterator[InterventionControl]:
    """Yield controls for used and ignored quantities with both erasers, then for decoders and trained subspaces."""
    for quantity, uses, ignores in (
        ("entropy", uses_entropy, ignores_entropy),
        ("belief", uses_belief, ignores_belief),
    ):
        for eraser in (covariance(quantity), leace(quantity)):
            yield InterventionControl(label=f"{eraser.label}: used", build=uses, fit=eraser, holds=_is_used)
            yield InterventionControl(
                label=f"{eraser.label}: a copy that is not read", build=ignores, fit=eraser, holds=_is_not_used
            )
        yield InterventionControl(
            label=f"decoder ({quantity}): misses what is used", build=uses, fit=decoder(quantity), holds=_is_missed
        )
    for fit in (decoder("belief"), trained_swap(2, "belief", steps=_STEPS)):
        yield InterventionControl(
            label=f"{fit.label}: steers what is not used", build=ignores_belief, fit=fit, holds=_is_not_called_used
        )


def _is_used(report: InterventionReport) -> bool:
    return report.verdict_by_layer[LAYER] == "used" and _is_erased(report)


def _is_not_used(report: InterventionReport) -> bool:
    return report.verdict_by_layer[LAYER] == "not used" and _is_erased(report)


def _is_missed(report: InterventionReport) -> bool:
    """Return whether the subspace has little variance, leaves the quantity decodable, and is undecided."""
    is_small = bool(report.share.value[VARIANCE, LAYER] < 0.02 and report.r2.value[AFTER, LAYER] > 0.9)
    return is_small and report.verdict_by_layer[LAYER] == "undecided"


def _is_not_called_used(report: InterventionReport) -> bool:
    return report.verdict_by_layer[LAYER] != "used"


def _is_erased(report: InterventionReport) -> bool:
    return bool(report.r2.value[BEFORE, LAYER] > 0.95 and report.r2.value[AFTER, LAYER] < 0.02)
