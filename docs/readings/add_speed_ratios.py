"""Add to the committed sticky-chain experiment how much faster EM-like is than each condition, seed by seed.

Run once, from the root of the repository:

    python docs/readings/add_speed_ratios.py

Until 25 November 2026 the report had the speed-up of every condition over the baseline, and no paired comparison of two
conditions. It follows from the losses at recorded steps, which the report stores. Running the script again does
nothing.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import Converted, convert_intervals

from bayesgeom.experiments.em.report import EMReport, em_speed_ratio
from bayesgeom.results.storage import estimate_parts

FIELD = "em_speed_ratio"


def with_ratio(name: str, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> Converted:
    """Return an experiment with the ratios; other reports as they are."""
    if name != EMReport.name or FIELD in scalars:
        return scalars, arrays, 0
    own, ends = estimate_parts(FIELD, em_speed_ratio(arrays["loss_bits_by_step"], arrays["recorded_steps"]))
    return {**scalars, FIELD: own}, {**arrays, **ends}, 1


if __name__ == "__main__":
    convert_intervals(with_ratio)
