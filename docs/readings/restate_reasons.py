"""Write the reasons in committed reports in present words; no number and no verdict changes.

Run from the root of the repository:

    python docs/readings/restate_reasons.py

A reason of a verdict on an intervention has no semicolon in brackets, where a finding would end, and says "toward". The
reason why attention is not compared with the posterior says what is missing. Running the script again changes nothing.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_folders, replace_parts

from bayesgeom.interventions.report import InterventionReport
from bayesgeom.probes.attention_entropy import AttentionEntropyReport
from bayesgeom.results.storage import read

WORDS = {
    "moves towards the donor's": "moves toward the donor's",  # language: quoted
    "before removal; a verdict needs": "before removal, and verdicts need",
}


def restated(reason: str) -> str:
    """Return a reason in present words."""
    for old, new in WORDS.items():
        reason = reason.replace(old, new)
    tokens = r"(\d+) tokens stand for hypotheses, and the belief is over (\d+): no consistency"
    return re.sub(tokens, r"not measured: it requires one token per hypothesis, but \2 hypotheses have \1", reason)


def convert(folder: Path) -> bool:
    """Restate the reasons of one folder; return whether any changed."""
    parts, extra = read(folder)
    changed = dict(parts)
    for report, field in ((InterventionReport, "reason_by_layer"), (AttentionEntropyReport, "note")):
        if report.name in parts:
            scalars, arrays = parts[report.name]
            told = scalars[field]
            now = restated(told) if isinstance(told, str) else type(told)(map(restated, told))
            if now != told:
                changed[report.name] = ({**scalars, field: now}, arrays)
    if all(changed[name] is own for name, own in parts.items()):
        return False
    replace_parts(folder, changed, extra)
    return True


if __name__ == "__main__":
    convert_folders(convert)
