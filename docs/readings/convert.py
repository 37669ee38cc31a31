"""Convert committed reports to the present file format: schema 2, with a hash over JSON and arrays.

    python docs/readings/convert.py FOLDER [FOLDER ...]

Numbers stay as they are. Arrays that an earlier version did not measure become NaN. A report that this version still
cannot load is listed, and the exit status is 1.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import file_aside, write_arrays
from bayesgeom.results.diagnosis import Diagnosis, report_kinds
from bayesgeom.results.storage import ARRAYS, HASH, JSON, SCHEMA, hashed


def converted(folder: Path) -> bool:
    """Whether the report in a folder was of an older schema; it is written anew."""
    held = json.loads((folder / JSON).read_text(encoding="utf-8"))
    if held["schema"] == SCHEMA:
        return False
    held["schema"] = SCHEMA
    arrays = load_file(folder / ARRAYS)
    arrays |= {name: array for key in held["reports"] for name, array in unmeasured(key, arrays).items()}
    write_arrays(arrays, folder / ARRAYS)
    with file_aside(folder / JSON) as aside:
        whole = {**held, HASH: hashed(held, arrays)}
        aside.write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return True


def unmeasured(key: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """NaN for each array of floats that this version's report has and the file has not, where its axes are known."""
    axes, sizes = report_kinds()[key].axes(), dict[str, int]()
    own = {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith(f"{key}/")}
    for name, array in own.items():
        sizes |= dict(zip(axes.get(name, ()), array.shape, strict=False))
    missing = {name: of for name, of in axes.items() if name not in own and set(of) <= sizes.keys()}
    return {f"{key}/{name}": np.full([sizes[axis] for axis in of], np.nan) for name, of in missing.items()}


def main() -> int:
    """Convert every report below the folders."""
    faults = []
    for path in sorted(own for folder in sys.argv[1:] for own in Path(folder).rglob(JSON)):
        was_old = converted(path.parent)
        try:
            Diagnosis.load(path.parent)
        except OutputFault as error:
            faults.append(str(error))
        print(f"{'converted' if was_old else 'unchanged'}: {path.parent}")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
