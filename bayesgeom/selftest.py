"""Selftest: every installed probe, and the interventions, against planted controls, on this machine."""

from dataclasses import dataclass
from typing import final

from bayesgeom.diagnose import all_probes
from bayesgeom.intervention_controls import intervention_controls

INTERVENTION = "intervention"


@final
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One control of one probe, or of the interventions, and whether it gave the known answer."""

    probe: str
    control: str
    held: bool


def selftest() -> list[Verdict]:
    """Run every control of every installed probe, then those of the interventions.

    Returns:
        One verdict per control.
    """
    verdicts = []
    for name, probe in all_probes().items():
        for control in probe.controls():
            fresh = [probe.measure(run) for run in control.initialised]
            held = bool(control.holds(probe.measure(control.run, fresh)))
            verdicts.append(Verdict(probe=name, control=control.label, held=held))
    verdicts += [
        Verdict(probe=INTERVENTION, control=control.label, held=control.holds(control.report()))
        for control in intervention_controls()
    ]
    return verdicts
