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
sys.path[:0] = [str(ROOT)]

from bayesgeom.core.files import atomic_directory
from bayesgeom.results.diagnosis import load_report
from bayesgeom.results.folder import METRICS
from bayesgeom.results.storage import JSON, read, write

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


def main() -> None:
    """Convert every report below `docs` that has such an interval, and print the number of entries."""
    for path in sorted((ROOT / "docs").glob(f"**/{JSON}")):
        folder = path.parent
        parts, extra = read(folder)
        found = {key: extended(*own) for key, own in parts.items()}
        if not (changed := sum(count for *_, count in found.values())):
            continue
        with atomic_directory(folder) as temporary:
            write(temporary, {key: (told, held) for key, (told, held, _) in found.items()}, extra)
        load_report(folder).to_pandas().to_parquet(folder / METRICS)
        print(folder.relative_to(ROOT), changed)


if __name__ == "__main__":
    main()
