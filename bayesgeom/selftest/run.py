"""Selftest: check every installed probe and the interventions against planted controls on this machine.

The interventions are checked on planted networks whose answer is known, with the verdict expected of each. A
naive test gets two of them wrong: a margin without a test of erasure calls the decoder direction of `uses_entropy`
inert, and an answer shift without movement calls the decoder direction of `ignores_belief` causal. Three of the
networks are tested at three sizes of the noise in their codes, because a verdict that depends on how accurate a network
is would be none: `planted_tables` holds their numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

from bayesgeom.core import Verdict, number_text, phase
from bayesgeom.core.plugins import Contained, is_foreign
from bayesgeom.diagnosis.plan import AnyMeasurement, all_measurements, broken_probes
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.interventions.run import intervene
from bayesgeom.interventions.verdicts import Survival
from bayesgeom.measurements.audit import AuditReport
from bayesgeom.measurements.base import Subject, planted_masks
from bayesgeom.measurements.evidence_response import EvidenceResponseReport
from bayesgeom.selftest.audits import COLUMNS, PlantedAudit, planted_audits
from bayesgeom.selftest.planted import (
    LAYER,
    SITE,
    PlantedModel,
    ignores_belief,
    ignores_entropy,
    looks_up,
    uses_belief,
    uses_entropy,
)
from bayesgeom.selftest.responses import AGES, PlantedResponse, planted_responses
from bayesgeom.subspaces.base import Fit, InterventionSite
from bayesgeom.subspaces.fits import covariance, decoder, leace, trained_swap

INTERVENTION = "intervention"
N = 48  # pairs
_STEPS = 12  # training steps of a trained swap: enough to steer the answer, in seconds
_ROUNDING = 1e-4  # of uniform attention
NOISES = (0.2, 0.02, 0.002)
KINDS: Sequence[tuple[str, Callable[..., PlantedModel], tuple[str, str]]] = (
    ("computes from it", uses_entropy, (Verdict.CAUSAL, Survival.SURVIVES)),
    ("holds a copy", ignores_entropy, (Verdict.INERT, "")),
    ("looks up a code", looks_up, (Verdict.CAUSAL, Survival.CATEGORY)),
)
_DESIGN = Design(kind="swap", n_random=20, n_matched=20, n_control=16, n_untrained=3, n_fit=512)


@final
@dataclass(frozen=True, kw_only=True)
class ControlResult:
    """One control of one probe or of the interventions, and whether the result was correct."""

    probe: str
    control: str
    passed: bool


@final
@dataclass(frozen=True, kw_only=True)
class PlantedTable:
    """Numbers of planted networks whose answer is known, one row each, and whether all of them are right."""

    probe: str
    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    passed: bool


def selftest() -> list[ControlResult]:
    """Run every control of every installed probe, then those of the interventions.

    A plug-in of another package that cannot be loaded, or fails, gets a failed verdict with the reason; the rest runs.

    Returns:
        One verdict per control.
    """
    verdicts = [ControlResult(probe=name, control=reason, passed=False) for name, reason in broken_probes().items()]
    for name, probe in all_measurements().items():
        with phase(f"controls of {name}"), Contained(is_foreign=is_foreign(type(probe))) as testing:
            verdicts.extend(_verdicts(name, probe))
        if testing.fault:
            failed = f"plug-in {name!r} failed: {testing.fault.rstrip('.')}."
            verdicts.append(ControlResult(probe=name, control=failed, passed=False))
    for planted in intervention_controls():
        with phase(f"control of interventions: {planted.label}"):
            passed = planted.holds(planted.report())
        verdicts.append(ControlResult(probe=INTERVENTION, control=planted.label, passed=passed))
    return verdicts


def _verdicts(name: str, probe: AnyMeasurement) -> Iterator[ControlResult]:
    for control in probe.controls():
        passed = bool(control.holds(control.report(probe)))
        yield ControlResult(probe=name, control=control.label, passed=passed)


@final
@dataclass(frozen=True, kw_only=True)
class InterventionControl:
    """One subspace of one planted network, `n` pairs, and the condition that its report must satisfy."""

    label: str
    build: Callable[[], PlantedModel]
    fit: Fit
    holds: Callable[[InterventionReport], bool]
    n: int = N

    def report(self) -> InterventionReport:
        """Return the report on a swap at the site that holds the planted features."""
        return intervene(self.build(), None, self.fit, kind=_DESIGN, sites=InterventionSite(SITE, (LAYER,)), n=self.n)


def intervention_controls() -> Iterator[InterventionControl]:
    """Yield controls for used and ignored quantities with both erasers, then for decoders and trained subspaces."""
    for quantity, uses, ignores in (
        ("entropy", uses_entropy, ignores_entropy),
        ("belief", uses_belief, ignores_belief),
    ):
        for eraser in (covariance(quantity), leace(quantity)):
            causal, inert = (partial(_has, verdict) for verdict in (Verdict.CAUSAL, Verdict.INERT))
            yield InterventionControl(label=f"{eraser.label}: causal", build=uses, fit=eraser, holds=causal)
            yield InterventionControl(
                label=f"{eraser.label}: a copy that is not read", build=ignores, fit=eraser, holds=inert
            )
        yield InterventionControl(
            label=f"decoder ({quantity}): misses what is read", build=uses, fit=decoder(quantity), holds=_is_missed
        )
    for fit in (decoder("belief"), trained_swap(2, "belief", steps=_STEPS)):
        yield InterventionControl(
            label=f"{fit.label}: steers what is not read", build=ignores_belief, fit=fit, holds=_is_not_called_causal
        )


def planted_tables() -> Iterator[PlantedTable]:
    """Yield the tables of planted networks that the selftest prints."""
    head = ("network", "noise", "model's KL", "movement", "ΔKL on removal", "of the whole", "verdict", "held fixed")
    rows, passed = list[tuple[str, ...]](), True
    for name, build, expected in KINDS:
        for noise in NOISES:
            network, fit = partial(build, noise=noise), covariance("entropy")
            control = InterventionControl(label=name, build=network, fit=fit, holds=_is_erased, n=2 * N)
            report = control.report()
            movement, removal = report.movement[LAYER, 0], report.removal_kl_increase_bits[LAYER, 0]
            numbers = number_text(noise), number_text(report.unedited_kl_bits[0]), movement.text(), removal.text()
            verdicts = report.verdict_by_layer[LAYER], report.survival_by_layer[LAYER]
            rows.append((name, *numbers, number_text(removal.ceiling), *verdicts))
            passed &= verdicts == expected and control.holds(report)
    yield PlantedTable(probe=INTERVENTION, title="Entropy in planted networks", head=head, rows=rows, passed=passed)
    yield _attention_table()
    older = [f"older than {age}" for age in AGES[1:]]
    columns = ("predictor", "all evidence", *older, *(f"{evidence}, relative" for evidence in older), "verdict")
    yield _table_of(EvidenceResponseReport.name, "Evidence response", columns, [*planted_responses()])
    yield _table_of(AuditReport.name, "Audit", ("predictor", *COLUMNS), [*planted_audits()])


def _table_of(
    probe: str, what: str, head: tuple[str, ...], planted: Sequence[PlantedResponse | PlantedAudit]
) -> PlantedTable:
    rows, passed = [own.row() for own in planted], all(own.passed for own in planted)
    return PlantedTable(probe=probe, title=f"{what} of planted predictors", head=head, rows=rows, passed=passed)


def _attention_table() -> PlantedTable:
    """Return entropy, share and weight of a sink of uniform attention under masks, measured and as they must be."""
    head = ("uniform attention", "entropy (bits)", "right", "share", "right", "weight of a sink", "right")
    rows, passed = list[tuple[str, ...]](), True
    probe = all_measurements()["attention_entropy"]
    for planted in planted_masks():
        report, right = probe.of(Subject(run=planted.run)), (planted.entropy_bits, 1.0, planted.sink_mass)
        measured = [float(report.estimate(name)[0, 0]) for name in ("entropy_bits", "entropy_share", "sink_mass")]
        rows.append((planted.label, *(number_text(x) for pair in zip(measured, right, strict=True) for x in pair)))
        passed &= all(abs(number - known) < _ROUNDING for number, known in zip(measured, right, strict=True))
    return PlantedTable(probe=probe.name, title="Uniform attention under masks", head=head, rows=rows, passed=passed)


def _has(verdict: Verdict, report: InterventionReport) -> bool:
    return report.verdict_by_layer[LAYER] == verdict and _is_erased(report)


def _is_missed(report: InterventionReport) -> bool:
    """Return whether the subspace has little variance, leaves the quantity decodable, and is undecided."""
    is_small = bool(report.variance_share.value[LAYER] < 0.02 and report.r2_after.value[LAYER] > 0.9)
    return is_small and report.verdict_by_layer[LAYER] == Verdict.UNDECIDED


def _is_not_called_causal(report: InterventionReport) -> bool:
    return report.verdict_by_layer[LAYER] != Verdict.CAUSAL


def _is_erased(report: InterventionReport) -> bool:
    return bool(report.r2_before.value[LAYER] > 0.95 and report.r2_after.value[LAYER] < 0.02)
