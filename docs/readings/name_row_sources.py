"""Name the reading of each copied row of committed comparisons.

Run from the root of the repository:

    python docs/readings/name_row_sources.py

`bayesgeom compare --rows-of` copies rows of trainings whose weights do not ship from a saved comparison, which names
their source only if it copied them, too. The reading of such a training has the same weights and the same KL; this
script names it, also for a row that was measured when its weights still shipped. Rows without such a reading keep their
source. Running the script again changes nothing.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_folders, replace_parts

from bayesgeom.comparison.report import ComparisonReport
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.probes.calibration import CalibrationReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.storage import read


def reading_of(report: ComparisonReport, name: str) -> Path | None:
    """Return the reading of the same weights with the same KL, relative to the root; None if there is none."""
    index = report.checkpoints.index(name)
    for path in sorted(ROOT.glob(f"docs/readings/seeds-*/{name}/report.json")):
        found, row = Diagnosis.load(path.parent), report.kl_bits[index]
        kl = found[CalibrationReport].kl_bits
        has_weights = found.provenance["model"]["weights_hash"] == report.weights_hashes[index]
        if has_weights and np.allclose([kl.value, *kl.ends], [row.value, *row.ends], rtol=1e-6):
            return path.parent.relative_to(ROOT)
    return None


def with_sources(folder: Path) -> bool:
    """Name the sources in a folder's provenance; return whether anything changed."""
    parts, extra = read(folder)
    before = extra["provenance"].get("rows_of", {})
    if ComparisonReport.name not in parts or not before:
        return False
    if "report" in before:  # until 25 November 2026: one source for all rows
        before = dict.fromkeys(before["checkpoints"], before["report"])
    report = Diagnosis.load(folder)[ComparisonReport]
    sources = {name: (reading_of(report, name) or Path(source)).as_posix() for name, source in before.items()}
    without_weights = [name for name in report.checkpoints if name not in {*sources, *checkpoints()}]
    sources |= {name: found.as_posix() for name in without_weights if (found := reading_of(report, name))}
    if sources == extra["provenance"]["rows_of"]:
        return False
    replace_parts(folder, parts, {**extra, "provenance": {**extra["provenance"], "rows_of": sources}})
    return True


if __name__ == "__main__":
    convert_folders(with_sources)
    if with_sources(ROOT / "docs" / "comparison"):
        print("docs/comparison")
