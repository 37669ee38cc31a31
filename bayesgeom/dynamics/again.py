"""Recompute what settles first and what falls again from the curves that a saved dynamics report stores."""

from dataclasses import replace
from pathlib import Path

from bayesgeom.core.errors import OutputFault
from bayesgeom.dynamics.report import DynamicsReport
from bayesgeom.dynamics.settling_report import SettlingReport
from bayesgeom.dynamics.summary import settling_report
from bayesgeom.results.diagnosis import Diagnosis


def decided_again(path: Path) -> Diagnosis:
    """Read a report of `bayesgeom dynamics` and recompute its report `settling` by the current rules.

    Args:
        path: Directory of the saved report.

    Returns:
        The diagnosis with a new report `settling`; everything else is unchanged.

    Raises:
        OutputFault: The directory holds no readable dynamics report.
    """
    diagnosis = Diagnosis.load(path)
    curves = diagnosis.reports.get(DynamicsReport.name)
    if not isinstance(curves, DynamicsReport):
        raise OutputFault(f"{path} holds no report of `bayesgeom dynamics`; it holds {', '.join(diagnosis)}.")
    return replace(diagnosis, reports={**diagnosis.reports, SettlingReport.name: settling_report(curves)})
