"""The committed reports."""

from collections.abc import Iterator

import numpy as np
import pytest

from bayesgeom.results.diagnosis import load_report
from bayesgeom.results.report import Report
from bayesgeom.results.storage import JSON, quantities_of
from tests.pages import READINGS

FOLDERS = sorted(path.parent for path in READINGS.glob(f"**/{JSON}"))


def reports() -> Iterator[tuple[str, Report]]:
    for folder in FOLDERS:
        found = load_report(folder)
        yield from ((f"{folder.name}: {type(own).__name__}", own) for own in found.reports.values())


@pytest.mark.exhaustive
def test_intervals_contain_their_estimates() -> None:
    n_intervals, outside = 0, []
    for where, report in reports():
        for metric in quantities_of(type(report)):
            own, (low, high) = report.estimate(metric).value, report.estimate(metric).ends
            n_intervals += int((~np.isnan(low)).sum())
            if ((own < low) | (own > high)).any():
                outside.append(f"{where}.{metric}")
    assert outside == []
    assert n_intervals > 30_000
