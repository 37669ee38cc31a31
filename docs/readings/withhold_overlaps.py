"""Withhold the intervals of overlaps with the span of hypothesis embeddings, which do not cover.

Run once, from the root of the repository:

    python docs/readings/withhold_overlaps.py

The overlap of a fitted subspace had a jackknife interval over the 32 sequences of its fit. On planted data such
intervals cover too seldom (`bayesgeom/subspaces/overlap.py`). Values stay as they are. Running the script again does
nothing.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import Converted, convert_intervals

from bayesgeom.subspaces.overlap import WHY_NOT

FIELD = "share"


def without_interval(name: str, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> Converted:
    """Return an intervention without the interval of its shares; other reports as they are."""
    low = arrays.get(f"{FIELD}.low")
    if name.partition("/")[0] != "intervention" or low is None or not np.isfinite(low).any():
        return scalars, arrays, 0
    ends = {f"{FIELD}.{end}": np.full_like(low, np.nan) for end in ("low", "high")}
    return {**scalars, FIELD: {**scalars[FIELD], "why_not": WHY_NOT}}, {**arrays, **ends}, int(np.isfinite(low).sum())


if __name__ == "__main__":
    convert_intervals(without_interval)
