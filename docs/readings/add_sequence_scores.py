"""Add the field on single sequences to committed calibration reports, without rows, and renew the hashes.

Run once, from the root of the repository:

    python docs/readings/add_sequence_scores.py

`sequence_scores` (means of each sequence, by which `bayesgeom.diff` pairs two diagnoses) gets no rows: older readings
did not store them, and only a new measurement could. No number changes. A report that has the field is left as it is,
so running the script again does nothing.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

import numpy as np
from safetensors.numpy import load_file

from bayesgeom.core.files import write_arrays
from bayesgeom.probes.calibration import SCORES
from bayesgeom.results.storage import ARRAYS, HASH, JSON, hashed

NAME, FIELD = "calibration", "calibration/sequence_scores"
NONE = np.zeros((0, len(SCORES)), dtype=np.float32)


def convert(path: Path) -> bool:
    """Add the field to one report; returns whether anything changed."""
    text = path.read_text(encoding="utf-8")
    stored = json.loads(text)
    if stored["schema"] < 3 or NAME not in stored["reports"] or FIELD in (arrays := load_file(path.parent / ARRAYS)):
        return False
    stated = stored.pop(HASH)
    assert stated == hashed(stored, arrays), path
    arrays[FIELD] = NONE
    write_arrays(arrays, path.parent / ARRAYS)
    path.write_text(json.dumps({**stored, HASH: hashed(stored, arrays)}, indent=1) + "\n", encoding="utf-8")
    return True


def main() -> None:
    """Convert every committed report and say which ones changed."""
    for path in sorted((ROOT / "docs").glob(f"**/{JSON}")):
        if convert(path):
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
