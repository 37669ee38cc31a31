"""Selftest: check every installed probe and the interventions against planted controls on this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from bayesgeom.core.plugins import Contained, is_foreign
from bayesgeom.diagnosis.plan import AnyProbe, all_probes, broken_probes
from bayesgeom.selftest.controls import intervention_controls

INTERVENTION = "intervention"


@final
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One control of one probe or of the interventions, and whether the result was correct."""

    probe: str
    control: str
    passed: bool


def selftest() -> list[Verdict]:
    """Run every control of every installed probe, then those of the interventions.

    A plug-in of another package that cannot be loaded, or fails, gets a failed verdict with the reason; the rest runs.

    Returns:
        One verdict per control.
    """
    verdicts = [Verdict(probe=name, control=reason, passed=False) for name, reason in broken_probes().items()]
    for name, probe in all_probes().items():
        with Contained(is_foreign=is_foreign(type(probe))) as testing:
            verdicts.extend(_verdicts(name, probe))
        if testing.fault:
            failed = f"plug-in {name!r} failed: {testing.fault.rstrip('.')}."
            verdicts.append(Verdict(probe=name, control=failed, passed=False))
    verdicts += [
        Verdict(probe=INTERVENTION, control=control.label, passed=control.holds(control.report()))
        for control in intervention_controls()
    ]
    return verdicts


def _verdicts(name: str, probe: AnyProbe) -> Iterator[Verdict]:
    for control in probe.controls():
        fresh = [probe.measure(run) for run in control.untrained]
        passed = bool(control.holds(probe.measure(control.run, fresh)))
        yield Verdict(probe=name, control=control.label, passed=passed)
