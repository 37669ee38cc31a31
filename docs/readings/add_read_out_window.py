"""Add the belief of the last ten symbols to the baselines of `r2` in committed belief read-outs.

Run once, from the root of the repository:

    python docs/readings/add_read_out_window.py

Until 25 November 2026 these baselines ended at the observer of four symbols, and their levels had no intervals. Only
headlines and figures added the observer of ten symbols. All observers' R² and intervals are stored as `window_r2` and
`window_map_r2`, from which the baselines follow (`bayesgeom.probes.belief_report.window_levels`). The script fails if
a level that a report has differs from the one computed. Running it again does nothing.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_folders, replace_parts

from bayesgeom.probes.belief_report import BeliefReadoutReport, window_levels
from bayesgeom.results.diagnosis import load_report
from bayesgeom.results.storage import parts_of, read


def with_windows(report: BeliefReadoutReport) -> BeliefReadoutReport:
    """Return the report with all levels of `window_levels` among the baselines of `r2`, where it had some of them."""
    old, shape = report.r2.baselines, report.r2.value.shape
    levels = window_levels(report.window_r2, report.window_map_r2, report.windows)
    found = {own.name: own.broadcast(shape) for own in levels}
    if not found:
        return report
    for own in old:
        if own.name in found:
            np.testing.assert_array_equal(own.value, found[own.name].value, err_msg=own.name)
    first = min(at for at, own in enumerate(old) if own.name in found)
    others = [own for own in old if own.name not in found]
    return replace(report, r2=replace(report.r2, baselines=(*others[:first], *found.values(), *others[first:])))


def convert(folder: Path) -> bool:
    """Replace the belief read-out of one folder if its baselines differ; return whether they did."""
    parts, extra = read(folder)
    if (name := BeliefReadoutReport.name) not in parts:
        return False
    old = load_report(folder).reports[name]
    assert isinstance(old, BeliefReadoutReport)
    new = with_windows(old)
    (scalars, arrays), (_, before) = parts_of(new), parts[name]
    if arrays.keys() == before.keys():
        return False
    replace_parts(folder, {**parts, name: (scalars, arrays)}, extra)
    return True


if __name__ == "__main__":
    convert_folders(convert)
