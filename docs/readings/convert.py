"""Convert saved reports of schema 2, with one field per interval end and baseline, to schema 3, made of estimates.

Run once over the committed readings, as the first step of `convert_all.py`:

    python docs/readings/convert.py docs/readings

Every number of an old report must be found in the new one, except in fields that `DROPPED` names because they can be
computed from the others. The script ends with an error where one is missing, and leaves that report as it was.
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import conversions
from conversions.merged import COMPUTED
from conversions.old import Old, numbers

from bayesgeom.core.files import atomic_directory
from bayesgeom.core.reading import decoded
from bayesgeom.results.folder import write_parts
from bayesgeom.results.report import Report
from bayesgeom.results.storage import ARRAYS, HASH, JSON, hashed, parts_of

_PARTS = [importlib.import_module(f"conversions.{own.name}") for own in pkgutil.iter_modules(conversions.__path__)]
CONVERTERS = {kind: of for part in _PARTS for kind, of in vars(part).get("CONVERTERS", {}).items()}
SPLIT = {kind: others for part in _PARTS for kind, others in vars(part).get("SPLIT", {}).items()}
DROPPED = {kind: names for part in _PARTS for kind, names in vars(part).get("DROPPED", {}).items()}


def missing(kind: str, old: Old, new: Sequence[Report]) -> dict[str, list[float]]:
    """Numbers of an old report that the new one neither holds nor computes, by field."""
    held = {x for report in new for part in parts_of(report) for x in numbers(part)}
    held |= {x for report in new for of in COMPUTED.get(report.name, ()) for x in numbers(of(report))}
    dropped = DROPPED.get(kind, ())
    fields = {**old.scalars, **old.arrays}
    for nested in ("intervals", "nulls"):
        fields |= {f"{nested}[{name}]": value for name, value in fields.pop(nested, {}).items()}
    found = {
        name: [x for x in numbers(value) if x not in held]
        for name, value in fields.items()
        if name not in dropped and name.removeprefix("nulls[").removeprefix("intervals[").rstrip("]") not in dropped
    }
    return {name: values for name, values in found.items() if values}


def old_reports(folder: Path) -> tuple[dict[str, Old], dict[str, Any]]:
    """The reports of a folder as they were saved, and what else its JSON file holds; the hash is checked."""
    held, arrays = json.loads((folder / JSON).read_text(encoding="utf-8")), load_file(folder / ARRAYS)
    stated = held.pop(HASH)
    if stated != hashed(held, arrays):
        raise ValueError(f"{folder} was changed after it was written.")
    reports = {
        kind: Old(
            decoded(scalars),
            {name.split("/", 1)[1]: own for name, own in arrays.items() if name.startswith(f"{kind}/")},
        )
        for kind, scalars in held.pop("reports").items()
    }
    del held["schema"]
    return reports, decoded(held)


def converted(folder: Path) -> str:
    """Convert one folder; what happened, or what is wrong."""
    if json.loads((folder / JSON).read_text(encoding="utf-8"))["schema"] != 2:
        return "unchanged"
    reports, extra = old_reports(folder)
    if unknown := reports.keys() - CONVERTERS.keys():
        return f"FAULT: no converter for {', '.join(sorted(unknown))}"
    new: dict[str, Report] = {}
    for kind, old in reports.items():
        made = [CONVERTERS[kind](old), *(of(old) for of in SPLIT.get(kind, ()))]
        if lost := missing(kind, old, made):
            told = "; ".join(f"{name} lacks {len(values)} ({values[0]:.6g}, …)" for name, values in lost.items())
            return f"FAULT: {kind}: {told}"
        new |= {report.name: report for report in made}
    with atomic_directory(folder) as aside:
        write_parts(aside, new, extra)
    return "converted"


def main() -> int:
    """Convert every report below the folders."""
    faults = 0
    for path in sorted(own for folder in sys.argv[1:] for own in Path(folder).rglob(JSON)):
        found = converted(path.parent)
        faults += found.startswith("FAULT")
        print(f"{path.parent}: {found}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
