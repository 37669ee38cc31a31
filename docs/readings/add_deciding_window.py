"""Add the window observer that decides to the baselines of the KL in committed calibration reports.

Run once, from the root of the repository:

    python docs/readings/add_deciding_window.py

Until 22 November 2026 the baselines of a KL held window observers of up to four symbols. The KL of wider ones is stored
as `window_kl_bits`. The one that decides (`bayesgeom.stats.memory.deciding_window`) is now a baseline, too, so that
"beats" is said only of a model that beats it. Running the script again does nothing.
"""

import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from bayesgeom.core.files import directory_aside
from bayesgeom.probes.calibration import CalibrationReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.estimate import Baseline
from bayesgeom.results.folder import METRICS, write_parts
from bayesgeom.results.storage import JSON, read
from bayesgeom.stats.memory import WIDEST_BASELINE, deciding_window, window_name


def converted(report: CalibrationReport) -> CalibrationReport:
    """Return the report with the deciding observer among the baselines of its KL, after the narrower ones."""
    held, own = report.window_kl_bits.value, report.kl_bits
    width = deciding_window(held, float(report.effective_memory_symbols)) if report.windows else 0
    start = int(held[:, width].argmin()) if report.windows else 0
    name = window_name(width, report.window_starts[start]).replace("_", " ") if report.windows else ""
    if width <= WIDEST_BASELINE or any(each.name == name for each in own.baselines):
        return report
    last = max(at for at, each in enumerate(own.baselines) if each.name.startswith("window"))
    added = Baseline.of("baseline", name, held[start, width])
    return replace(
        report, kl_bits=replace(own, baselines=(*own.baselines[: last + 1], added, *own.baselines[last + 1 :]))
    )


def main() -> None:
    """Convert every committed calibration report of a task with latent dynamics, and print its new baseline."""
    for path in sorted((ROOT / "docs").glob(f"**/{JSON}")):
        folder, text = path.parent, path.read_text(encoding="utf-8")
        if '"calibration"' not in text or '"effective_memory_symbols"' not in text:
            continue
        found = Diagnosis.load(folder)
        own = found[CalibrationReport]
        if (new := converted(own)) is own:
            continue
        with directory_aside(folder) as aside:
            write_parts(aside, {**found, "calibration": new}, read(folder)[1])
        Diagnosis.load(folder).to_pandas().to_parquet(folder / METRICS)
        print(folder.relative_to(ROOT), new.kl_bits.baselines[-2:], new.kl_bits.clears("lower"))


if __name__ == "__main__":
    main()
