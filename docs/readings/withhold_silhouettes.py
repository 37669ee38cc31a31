"""Withhold intervals of silhouettes in committed reports that took the distances to other points as fixed.

Run once, from the root of the repository:

    python docs/readings/withhold_silhouettes.py

Until 24 November 2026 only the mean of the points' scores was resampled. A sequence also changes the scores of other
points, so that these intervals held the true silhouette in 72 to 78 % of planted data sets. The package now leaves the
points of a sequence out of the distances, too (`bayesgeom.stats.clusters.left_out_silhouettes`). The activations are
not stored, so that the intervals in `SAVED` are withheld. Each is recognized by its smallest lower end: a report that
is measured again keeps its intervals. Values stay as they are. Running the script again does nothing.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import replace_parts

from bayesgeom.results.storage import read

FIELD = "silhouette"
WHY = (
    "the saved interval took distances to other points as fixed, and such intervals hold 72 to 78 % of true silhouettes"
)
SAVED = {  # by folder and report: the smallest lower end
    ("claims/belief-readout-mess3-small", "belief_readout"): 0.16309659655708975,
    ("clusters/hmm-lstm", "belief_readout"): 0.17915987261552185,
    ("clusters/hmm-mamba", "belief_readout"): 0.15046256060295565,
    ("clusters/hmm-mlp", "belief_readout"): 0.26246182523500866,
    ("clusters/hmm-s5", "belief_readout"): 0.09597997476307543,
    ("smollm2-evidence", "belief_readout"): 0.15362416375204516,
    ("smollm2-prompts", "domain_separation"): -0.03240934767058993,
}


def main() -> None:
    """Convert the reports, and print those that changed with the number of intervals withheld."""
    for (name, kind), least in SAVED.items():
        folder = ROOT / "docs" / "readings" / name
        parts, extra = read(folder)
        scalars, arrays = dict(parts[kind][0]), dict(parts[kind][1])
        low = arrays[f"{FIELD}.low"]
        if not np.isfinite(low).any() or float(np.nanmin(low)) != least:
            continue
        scalars[FIELD] = {**scalars[FIELD], "why_not": WHY}
        for part in ("low", "high"):
            arrays[f"{FIELD}.{part}"] = np.full_like(low, np.nan)
        replace_parts(folder, {**parts, kind: (scalars, arrays)}, extra)
        print(name, int(np.isfinite(low).sum()))


if __name__ == "__main__":
    main()
