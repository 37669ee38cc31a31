"""Drop the consistency of the most consistent head from reports on attention entropy: it is an entry of `consistency`.

Run once, from the root of the repository:

    python docs/readings/drop_greatest.py

The field `consistency_greatest` repeated the largest entry of `consistency`, with that entry's own interval. An entry
that was chosen as the largest is estimated too high, so such an interval does not cover: `bayesgeom/stats/extremes.py`.
Reports choose the entry when they are printed, with an interval that allows for the choice. No number is lost: the
script fails if the field's value is not that of the largest entry. Running the script again does nothing.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import Converted, convert_intervals

NAME, FIELD, SOURCE = "attention_entropy", "consistency_greatest", "consistency"


def without_greatest(name: str, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> Converted:
    """Return a report on attention entropy without the field; other reports as they are."""
    if name.partition("/")[0] != NAME or FIELD not in scalars:
        return scalars, arrays, 0
    own = scalars[FIELD]["value"]
    greatest = float(own["float"]) if isinstance(own, dict) else own
    if not np.array_equal(greatest, arrays[f"{SOURCE}.value"].max(), equal_nan=True):
        raise SystemExit(f"{name}.{FIELD} is {greatest}, which is not the largest entry of {SOURCE}")
    return {key: own for key, own in scalars.items() if key != FIELD}, arrays, 1


if __name__ == "__main__":
    convert_intervals(without_greatest)
