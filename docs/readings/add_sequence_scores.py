"""Convert committed calibration reports: single sequences, without rows, are added; a text that others give is dropped.

Run once, from the root of the repository:

    python docs/readings/add_sequence_scores.py

`sequence_scores` (means of each sequence, by which `bayesgeom.diff` pairs two diagnoses) gets no rows: older readings
did not store them, and only a new measurement could. `transport` became a property: the script stops if it does not
give the stored text. No number changes. Running the script again does nothing.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

import numpy as np
from safetensors.numpy import load_file

from bayesgeom.core.files import write_arrays
from bayesgeom.probes.calibration import SCORES, CalibrationReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.storage import ARRAYS, HASH, JSON, hashed

NAME, FIELD, TEXT = "calibration", "calibration/sequence_scores", "transport"
NONE = np.zeros((0, len(SCORES)), dtype=np.float32)


def convert(path: Path) -> bool:
    """Convert one report; returns whether anything changed."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    if stored["schema"] < 3 or NAME not in stored["reports"]:
        return False
    arrays, own = load_file(path.parent / ARRAYS), stored["reports"][NAME]
    if FIELD in arrays and TEXT not in own:
        return False
    stated = stored.pop(HASH)
    assert stated == hashed(stored, arrays), path
    arrays.setdefault(FIELD, NONE)
    text = own.pop(TEXT)
    write_arrays(arrays, path.parent / ARRAYS)
    path.write_text(json.dumps({**stored, HASH: hashed(stored, arrays)}, indent=1) + "\n", encoding="utf-8")
    (report,) = (own for own in Diagnosis.load(path.parent).values() if isinstance(own, CalibrationReport))
    assert report.transport == text, f"{path}: {report.transport!r} is not the stored {text!r}"
    return True


def main() -> None:
    """Convert every committed report and say which ones changed."""
    for path in sorted((ROOT / "docs").glob(f"**/{JSON}")):
        if convert(path):
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
