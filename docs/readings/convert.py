"""Convert committed reports to the present file format: schema 2, with a hash over JSON and arrays.

    python docs/readings/convert.py FOLDER [FOLDER ...]

Numbers stay as they are. Verdicts of swaps follow the present rule: nothing is called used where no control subspace
has as much variance, or where untrained networks reach as much of the ceiling. Arrays that an earlier version did not
measure become NaN. A report that this version still cannot load is listed, and the exit status is 1.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import file_aside, write_arrays
from bayesgeom.interventions.verdicts import RULE, UNDECIDED, USED, sentence
from bayesgeom.results.diagnosis import Diagnosis, report_kinds
from bayesgeom.results.storage import ARRAYS, HASH, JSON, SCHEMA, hashed
from bayesgeom.subspaces.matching import TOLERANCE, WHOLE

INTERVENTION = "intervention"


def converted(folder: Path) -> bool:
    """Whether the report in a folder was of an older schema; it is written anew."""
    held = json.loads((folder / JSON).read_text(encoding="utf-8"))
    if held["schema"] == SCHEMA:
        return False
    held["schema"] = SCHEMA
    arrays = load_file(folder / ARRAYS)
    if held["reports"].get(INTERVENTION, {}).get("kind") == "swap":
        held["reports"][INTERVENTION] |= judged_again(held["reports"][INTERVENTION], arrays)
    arrays |= {name: array for key in held["reports"] for name, array in unmeasured(key, arrays).items()}
    write_arrays(arrays, folder / ARRAYS)
    with file_aside(folder / JSON) as aside:
        whole = {**held, HASH: hashed(held, arrays)}
        aside.write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return True


def judged_again(scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Verdicts, reasons and the sentence, where a layer called used fails one of the two conditions."""

    def own(name: str) -> np.ndarray:
        return arrays[f"{INTERVENTION}/{name}"]

    verdicts, reasons = list(scalars["verdict_by_layer"]), list(scalars["reason_by_layer"])
    for layer in (at for at, verdict in enumerate(verdicts) if verdict == USED):
        found = []
        if own("movement_untrained")[layer] >= own("movement_lo")[layer, 0] / own("movement_ceiling")[layer, 0]:
            found.append("untrained networks reach as much of the ceiling")
        has_enough = own("matched_share")[layer] >= (1 - TOLERANCE) * own("variance_share")[layer]
        if scalars["matched_by"][layer] == WHOLE and not has_enough:
            found.append("no control subspace has the same share of variance")
        if found:
            verdicts[layer], reasons[layer] = UNDECIDED, f"not shown used: {found[0]}"
    by_layer = {at: verdict for at, verdict in enumerate(verdicts) if verdict}
    return {
        "verdict_by_layer": verdicts,
        "reason_by_layer": reasons,
        "verdict": sentence(scalars["subspace"], by_layer),
        "verdict_rule": RULE,
    }


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
