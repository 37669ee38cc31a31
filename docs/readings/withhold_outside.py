"""Withhold intervals in committed reports that reach a bound of their quantity's range, as the package now does.

Run once, from the root of the repository:

    python docs/readings/withhold_outside.py

Each report declares the range of its quantities, and withholds such intervals when it is made
(`bayesgeom.stats.bounds.reaches_bound`). This script writes the files as the reports are read. It also applies the rule
to the attention entropy in bits, which is at most that of uniform attention. No other number changes. Running the
script again does nothing.

The lower end of a ratio of two means is now that of the log of the ratio. The sequences are not stored, so that lower
ends below 0 are withheld here. Lower ends above 0 stay as they were measured: they lie lower than the present ones.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_intervals

from bayesgeom.results.diagnosis import report_kinds
from bayesgeom.results.estimate import Estimate, within
from bayesgeom.results.storage import quantities_of

PARTS = ("value", "low", "high")
BITS = ("entropy_bits", "entropy_bits_by_layer")  # of attention, with uniform attention as first baseline


def converted(
    probe: str, scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray], int]:
    """Return the parts of a report under the present rule, and the number of entries that changed."""
    told, held, changed = dict(scalars), dict(arrays), 0
    for name, quantity in quantities_of(report_kinds()[probe]).items():
        if name not in scalars or scalars[name]["low"] is None:
            continue
        value, low, high = (np.asarray(arrays.get(f"{name}.{part}", scalars[name][part]), float) for part in PARTS)
        least, most = quantity.range
        if probe == "attention_entropy" and name in BITS:
            most = float(np.max(arrays.get(f"{name}.0.value", scalars[name]["baselines"][0]["value"])))
        before = Estimate.of(value, (low, high), why_not=scalars[name]["why_not"])
        if (after := within(before, least, most)) is before:
            continue
        changed += int((after.is_withheld & ~before.is_withheld).sum())
        told[name] = {**scalars[name], "why_not": after.why_not}
        for part, end in zip(PARTS[1:], after.ends, strict=True):
            if f"{name}.{part}" in arrays:
                held[f"{name}.{part}"] = end
            else:
                told[name][part] = float(end)
    return told, held, changed


if __name__ == "__main__":
    convert_intervals(converted)
