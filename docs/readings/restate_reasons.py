"""Write the reasons of committed verdicts on interventions in present words; no number and no verdict changes.

Run from the root of the repository:

    python docs/readings/restate_reasons.py

A reason has no semicolon in brackets, where a finding would end, and says "toward". Running the script again changes
nothing.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_folders, replace_parts

from bayesgeom.interventions.report import InterventionReport
from bayesgeom.results.storage import read

WORDS = {
    "moves towards the donor's": "moves toward the donor's",  # language: quoted
    "before removal; a verdict needs": "before removal, and verdicts need",
}


def restated(reason: str) -> str:
    """Return a reason in present words."""
    for old, new in WORDS.items():
        reason = reason.replace(old, new)
    return reason


def convert(folder: Path) -> bool:
    """Restate the reasons of one folder; return whether any changed."""
    parts, extra = read(folder)
    if InterventionReport.name not in parts:
        return False
    scalars, arrays = parts[InterventionReport.name]
    reasons = tuple(map(restated, scalars["reason_by_layer"]))
    if reasons == tuple(scalars["reason_by_layer"]):
        return False
    restated_parts = {**parts, InterventionReport.name: ({**scalars, "reason_by_layer": reasons}, arrays)}
    replace_parts(folder, restated_parts, extra)
    return True


if __name__ == "__main__":
    convert_folders(convert)
