"""Decide again what settles first and what falls again in committed reports on training dynamics.

Run once, from the root of the repository:

    python docs/readings/restate_falls.py

Until 25 November 2026 a fall had an interval over the sequences of one training, or over trainings that were each
measured between steps chosen on all others. On planted curves such intervals cover too seldom
(`bayesgeom.dynamics.settling.fall`). The report `settling` follows from the curves that the report `dynamics` stores,
so it is computed again from them. Running the script again does nothing.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_folders, replace_parts

from bayesgeom.core.reading import encoded
from bayesgeom.dynamics.again import decided_again
from bayesgeom.dynamics.report import DynamicsReport
from bayesgeom.dynamics.settling_report import SettlingReport
from bayesgeom.results.storage import parts_of, read


def restate(folder: Path) -> bool:
    """Replace the report `settling` of one folder if it differs; return whether it did."""
    parts, extra = read(folder)
    if not {DynamicsReport.name, SettlingReport.name} <= set(parts):
        return False
    (old, old_arrays), (new, arrays) = parts[SettlingReport.name], parts_of(decided_again(folder)[SettlingReport.name])
    if encoded(old) == new and all(np.array_equal(old_arrays[name], arrays[name], equal_nan=True) for name in arrays):
        return False
    replace_parts(folder, {**parts, SettlingReport.name: (new, arrays)}, extra)
    return True


if __name__ == "__main__":
    convert_folders(restate)
