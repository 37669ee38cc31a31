"""Extend intervals in committed reports that do not contain their own estimate, as the package then did.

Run once, from the root of the repository:

    python docs/readings/extend_to_estimate.py

The interval of a share of variance or of a mean |cosine| is corrected for bias. If the bias is larger than the
uncertainty, the corrected interval excludes the estimate, and is extended to it. Such intervals have no known coverage:
`withhold_biased.py` removes them. Values stay as they are. Running the script again does nothing.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_intervals

PARTS = ("value", "low", "high")


def extended(
    scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray], int]:
    """Return the parts of a report with ends moved to estimates that lie outside, and the number of these."""
    told, held, changed = dict(scalars), dict(arrays), 0
    for name, own in scalars.items():
        if not isinstance(own, Mapping) or "why_not" not in own or own["low"] is None:
            continue
        value, low, high = (np.asarray(arrays.get(f"{name}.{part}", own[part]), dtype=float) for part in PARTS)
        outside = (value < low) | (value > high)
        if not outside.any():
            continue
        told[name] = dict(own)
        for part, end in (
            ("low", np.where(outside, np.minimum(low, value), low)),
            ("high", np.where(outside, np.maximum(high, value), high)),
        ):
            if f"{name}.{part}" in arrays:
                held[f"{name}.{part}"] = end
            else:
                told[name][part] = float(end)
        changed += int(outside.sum())
    return told, held, changed


if __name__ == "__main__":
    convert_intervals(lambda _, scalars, arrays: extended(scalars, arrays))
