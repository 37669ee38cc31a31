"""Fold fields that accompany an estimate into it, as baselines or ceilings; no number changes.

Run once, from the root of the repository:

    python docs/readings/fold_companions.py

- The ceilings of interventions, erasures and trainings become baselines of kind `ceiling`: `ceiling_movement`,
  `ceiling_bits`, `ceiling_increase_bits`, `ceiling_kl_increase_bits` and `ceiling_answer_shift_bits`.
- `baseline_kl_bits` of an erasure becomes the estimate `unedited_kl_bits`.
- `spearman_p` of the value manifold becomes the estimate `p_value`.
- `chance_passes` and `untrained_passes` of the pass thresholds become baselines of `passed`.

The script ends with an error if a number of a report is lost. A report without these fields is left
as it is, so running the script again does nothing.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.old import numbers
from conversions.rewriting import convert_folders, replace_parts

from bayesgeom.core.reading import decoded
from bayesgeom.probes.pass_thresholds import passed_estimate
from bayesgeom.results import storage
from bayesgeom.results.estimate import WHOLE, Estimate

Scalars, Arrays = dict[str, Any], dict[str, np.ndarray]
CEILINGS = {  # of the estimates that they belong to
    "intervention": {"ceiling_movement": "movement", "ceiling_bits": "change_bits"},
    "joint_intervention": {"ceiling_increase_bits": "increase_bits"},
    "erasure_onwards": {"ceiling_kl_increase_bits": "kl_increase_bits"},
    "dynamics": {"ceiling_answer_shift_bits": "answer_shift_bits"},
}


def fold_ceiling(scalars: Scalars, arrays: Arrays, ceiling: str, own: str) -> None:
    """Make a ceiling the last baseline of its estimate."""
    old, levels = scalars.pop(ceiling), scalars[own]["baselines"]
    assert not old["baselines"] and old["low"] is None and old["high"] is None, f"{ceiling} is a plain estimate"
    level = {"kind": "ceiling", "name": WHOLE, "value": old["value"], "low": None, "high": None}
    scalars[own] = {**scalars[own], "baselines": (*levels, level)}
    if (values := arrays.pop(f"{ceiling}.value", None)) is not None:
        arrays[f"{own}.{len(levels)}.value"] = values


def put(scalars: Scalars, arrays: Arrays, name: str, estimate: Estimate) -> None:
    """Add an estimate to the fields of a report."""
    stored, own = storage.estimate_parts(name, estimate)
    scalars[name] = decoded(stored)
    arrays |= own


def fold(kind: str, scalars: Scalars, arrays: Arrays) -> None:
    """Fold all companions of one report, in place."""
    for ceiling, own in CEILINGS.get(kind, {}).items():
        if ceiling in scalars and own in scalars:
            fold_ceiling(scalars, arrays, ceiling, own)
    n = int(scalars.get("n", 0))
    if kind == "erasure_onwards" and "baseline_kl_bits" in scalars:
        put(scalars, arrays, "unedited_kl_bits", Estimate.of(scalars.pop("baseline_kl_bits"), n=n))
    if kind == "value_manifold" and "spearman_p" in arrays:
        put(scalars, arrays, "p_value", Estimate.of(arrays.pop("spearman_p"), n=n))
    if kind == "pass_thresholds" and "chance_passes" in arrays:
        rates = (arrays.pop(name) for name in ("chance_passes", "untrained_passes"))
        put(scalars, arrays, "passed", passed_estimate(arrays["measured.value"], *rates, n=n))


def convert(folder: Path) -> bool:
    """Convert the reports of one folder; returns whether anything changed."""
    parts, extra = storage.read(folder)
    new = {kind: (dict(scalars), dict(arrays)) for kind, (scalars, arrays) in parts.items()}
    for kind, (scalars, arrays) in new.items():
        fold(kind, scalars, arrays)
        before = {x for part in parts[kind] for x in numbers(part)}
        lost = before - {x for part in (scalars, arrays) for x in numbers(part)}
        assert not lost, f"{folder}: {kind} lost {sorted(lost)[:3]}"
    if all(
        new[kind][0].keys() == parts[kind][0].keys() and new[kind][1].keys() == parts[kind][1].keys() for kind in new
    ):
        return False
    replace_parts(folder, new, extra)
    return True


if __name__ == "__main__":
    convert_folders(convert)
