"""Recompute the order in a saved dynamics report from the curves that it stores; no training is needed."""

from dataclasses import replace
from pathlib import Path

from bayesgeom.core.errors import OutputFault
from bayesgeom.dynamics.order import order_of
from bayesgeom.dynamics.report import DynamicsReport
from bayesgeom.dynamics.settling_report import SettlingReport
from bayesgeom.results.diagnosis import Diagnosis


def decided_again(path: Path) -> Diagnosis:
    """Read a report of `bayesgeom dynamics` and recompute when its curves settle, by the current rule.

    Args:
        path: Directory of the saved report.

    Returns:
        The diagnosis with new values for the fields of `dynamics.order`; everything else is unchanged.

    Raises:
        OutputFault: The directory holds no readable dynamics report.
    """
    diagnosis = Diagnosis.load(path)
    curves, settled = (diagnosis.reports.get(kind.name) for kind in (DynamicsReport, SettlingReport))
    if not isinstance(curves, DynamicsReport) or not isinstance(settled, SettlingReport):
        raise OutputFault(f"{path} holds no report of `bayesgeom dynamics`; it holds {', '.join(diagnosis)}.")
    fields = order_of([int(step) for step in curves.steps], curves.timed()).fields()
    again = {**diagnosis.reports, SettlingReport.name: replace(settled, **fields)}
    return replace(diagnosis, reports=again)
