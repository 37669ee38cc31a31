"""Withhold intervals in committed reports that end at their own estimate, as the package now does.

Run once, from the root of the repository:

    python docs/readings/withhold_biased.py

Intervals from the jackknife are corrected for bias. Where the correction was larger than the uncertainty, the interval
excluded the estimate and was extended to it, so that it ended there. Such an interval has no known coverage, and there
is none now (`bayesgeom.stats.intervals.jackknife_interval`).

`FIELDS` names the fields whose intervals come from the jackknife. In these, an end that equals the estimate can have no
other cause. Other fields are left alone: an effective memory of 17 [17, 18] is a whole number with bounds of its own.
"Equals" allows for rounding: of the last digits of a double, and of single precision in mean keys of activations.

A key overlap that no sequence changes is exact: the ends differ by less than the probe's rounding, and both are set to
the estimate, as the probe does. Values stay as they are. Running the script again does nothing.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_intervals

from bayesgeom.interventions.joint_report import UNEDITED
from bayesgeom.interventions.joint_summary import WHY_NO_CORRELATION
from bayesgeom.probes.key_overlap import ROUNDING
from bayesgeom.probes.key_report import WHY_NOT
from bayesgeom.probes.pass_thresholds import ABOVE_GAUSSIAN, MEASURES, WHY_FLAT, WHY_LAYERS, WHY_WEIGHTS
from bayesgeom.results.estimators import FEW_OR_BIASED, FLAT_OR_BIASED
from bayesgeom.stats.intervals import WHY_BIASED

NO_INTERVAL = "cannot decide: no interval"  # as the package said until 25 November 2026
PARTS = ("value", "low", "high")
DOUBLE = 1e-12  # of the width of the interval
SINGLE = 2 * float(np.finfo(np.float32).eps)  # an overlap is at most 1
KEYS = "key_overlap"
FIELDS = {  # by probe and field: the reason that the package now gives
    **{(KEYS, f"{mean}{own}overlap"): WHY_NOT for mean in ("", "mean_") for own in ("", "centered_")},
    ("belief_readout", "rand_index"): FEW_OR_BIASED,
    ("domain_separation", "pc12_share"): FLAT_OR_BIASED,
    ("dynamics", "key_overlap"): WHY_BIASED,
    ("intervention", "share"): FEW_OR_BIASED,
    ("joint_intervention", "axis_correlation"): WHY_NO_CORRELATION,
    ("pass_thresholds", "measured"): "",  # by measure: see `reasons`
    ("settling", "fall"): WHY_BIASED,
    ("value_manifold", "pc1_share"): FLAT_OR_BIASED,
    ("value_manifold", "pc12_share"): FLAT_OR_BIASED,
}
Ends = tuple[np.ndarray, np.ndarray]


def without_biased(value: np.ndarray, low: np.ndarray, high: np.ndarray, *, is_single: bool) -> Ends:
    """Return both ends, NaN where one of them is the estimate, and the estimate where it is exact."""
    with np.errstate(invalid="ignore"):
        rounding = SINGLE if is_single else DOUBLE * (high - low)
        is_exact = (low == high) | ((high - low < ROUNDING) if is_single else False)
        ends_there = np.minimum(value - low, high - value) <= rounding
    low, high = (np.where(is_exact, value, np.where(ends_there, np.nan, end)) for end in (low, high))
    return low, high


def converted(
    probe: str, scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray], int]:
    """Return the parts of a report under the present rule, and the number of entries that changed."""
    told, held, changed = dict(scalars), dict(arrays), 0
    for name in (name for of, name in FIELDS if of == probe and name in scalars and scalars[name]["low"] is not None):
        own = told[name] = {**scalars[name], "baselines": [dict(level) for level in scalars[name]["baselines"]]}
        # The ends of a baseline are its range, except those of the unedited model, which are an interval.
        intact = [(level, f"{name}.{i}") for i, level in enumerate(own["baselines"]) if level["name"] == UNEDITED]
        for level, key in [(own, name), *intact]:
            value, low, high = (np.asarray(arrays.get(f"{key}.{part}", level[part]), dtype=float) for part in PARTS)
            ends = without_biased(value, low, high, is_single=probe == KEYS)
            is_new = ~(np.isclose(ends, (low, high), rtol=0, atol=0, equal_nan=True).all(axis=0))
            if not is_new.any():
                continue
            changed += int(is_new.sum())
            for part, end in zip(PARTS[1:], ends, strict=True):
                if f"{key}.{part}" in arrays:
                    held[f"{key}.{part}"] = end
                else:
                    level[part] = float(end)
            own["why_not"] = FIELDS[probe, name] or reasons(held)
            if probe == "settling":
                told["fall_verdicts"] = [
                    NO_INTERVAL if is_open else said
                    for said, is_open in zip(scalars["fall_verdicts"], is_new, strict=True)
                ]
    return told, held, changed


def reasons(held: Mapping[str, np.ndarray]) -> str:
    """Return why measures of `pass_thresholds` have no interval.

    The verdicts stay: the estimates lie below the threshold, and their bias is upward.
    """
    value, low = held["measured.value"], held["measured.low"]
    expected = held["measured.0.value"]
    found = dict.fromkeys(MEASURES, WHY_BIASED)
    found |= {MEASURES[i]: WHY_FLAT for i in (0, 1) if expected[i] * ABOVE_GAUSSIAN >= value[i]}
    found |= {MEASURES[2]: WHY_WEIGHTS, MEASURES[3]: WHY_LAYERS}
    is_withheld = np.isfinite(value) & np.isnan(low)
    return "; ".join(f"{own}: {found[own]}" for own, is_one in zip(MEASURES, is_withheld, strict=True) if is_one)


if __name__ == "__main__":
    convert_intervals(converted)
