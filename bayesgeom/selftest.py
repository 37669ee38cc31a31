"""Selftest: every installed probe against its own planted controls, on this machine."""

from dataclasses import dataclass
from typing import final

from bayesgeom.diagnose import all_probes


@final
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One control of one probe, and whether the probe gave the known answer."""

    probe: str
    control: str
    held: bool


def selftest() -> list[Verdict]:
    """A verdict for every control of every installed probe."""
    verdicts = []
    for name, probe in all_probes().items():
        for control in probe.controls():
            fresh = [probe.measure(run) for run in control.initialised]
            held = bool(control.holds(probe.measure(control.run, fresh)))
            verdicts.append(Verdict(probe=name, control=control.label, held=held))
    return verdicts
