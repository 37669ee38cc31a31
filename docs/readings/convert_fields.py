"""Merge fields of committed readings along axes: `conversions/merged.py` says which (schema 3 to schema 3).

Run once, over folders of readings; a report that was merged before is left as it is:

    python docs/readings/convert_fields.py docs/readings

Every number of an old report must be found in the new one, or be a value that the new report computes from others. The
script ends with an error where one is missing, and leaves that report as it was.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.merged import BEFORE, COMPUTED, MERGED
from conversions.old import numbers

from bayesgeom.core.files import atomic_directory
from bayesgeom.results import storage
from bayesgeom.results.diagnosis import report_kinds
from bayesgeom.results.folder import write_parts
from bayesgeom.results.report import Report
from bayesgeom.results.storage import JSON

KINDS = report_kinds()


def fields_before(scalars: dict[str, Any], arrays: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of an old report: estimates put together, everything else as it was stored."""
    estimates = {name for name, value in scalars.items() if isinstance(value, dict) and "baselines" in value}
    found = {name: value for name, value in scalars.items() if name not in estimates}
    found |= {name: array for name, array in arrays.items() if name.split(".")[0] not in estimates}
    for name in estimates:
        own = {key: array for key, array in arrays.items() if key.startswith(f"{name}.")}
        found[name] = storage.estimate_of(name, scalars[name], own, where)
    return found


def lost(kind: str, scalars: dict[str, Any], arrays: dict[str, Any], new: Report) -> dict[str, list[float]]:
    """Return the numbers of an old report that the new one neither holds nor computes, by field."""
    held = {x for part in storage.parts_of(new) for x in numbers(part)}
    held |= {x for of in COMPUTED.get(kind, ()) for x in numbers(of(new))}
    found = {name: [x for x in numbers(value) if x not in held] for name, value in {**scalars, **arrays}.items()}
    return {name: values for name, values in found.items() if values}


def converted(folder: Path) -> str:
    """Convert one folder; return what happened, or what is wrong."""
    parts, extra = storage.read(folder)
    new: dict[str, Report] = {}
    changed = []
    for kind, (scalars, arrays) in parts.items():
        fields = fields_before(scalars, arrays, f"{folder}: {kind}")
        if kind in MERGED and BEFORE[kind] in fields:
            new[kind] = MERGED[kind](fields)
            changed.append(kind)
            if gone := lost(kind, scalars, arrays, new[kind]):
                told = "; ".join(f"{name} lacks {len(values)} ({values[0]:.6g}, …)" for name, values in gone.items())
                return f"FAULT: {kind}: {told}"
        else:
            new[kind] = KINDS[kind](**storage.fields_of(KINDS[kind], scalars, arrays, str(folder)))
    if changed:
        with atomic_directory(folder) as aside:
            write_parts(aside, new, extra)
    return f"merged: {', '.join(changed)}" if changed else "unchanged"


def main() -> int:
    """Convert every report below the folders."""
    faults = 0
    for path in sorted(own for folder in sys.argv[1:] for own in Path(folder).rglob(JSON)):
        found = converted(path.parent)
        faults += found.startswith("FAULT")
        if found != "unchanged":
            print(f"{path.parent}: {found}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
