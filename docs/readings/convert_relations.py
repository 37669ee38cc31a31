"""Rename two relations of the bijection in committed reports, write counts with their noun, and renew the hashes.

Run once, from the root of the repository:

    python docs/readings/convert_relations.py

The relations to values and keys that were shown before are named `used_value` and `used_key`; they were `spent_value`
and `spent_key`. "1 training(s)" becomes "1 training", as the present code writes it. No number changes. A report
without these texts is left as it is, so running the script again does nothing.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from safetensors.numpy import load_file

from bayesgeom.results.storage import ARRAYS, HASH, JSON, hashed
from bayesgeom.results.tables import counted

COUNT = re.compile(r"\b([\d,]+) (frame measure|training)\(s\)")
RENAMED = {"spent_value": "used_value", "spent_key": "used_key"}


def renamed(value: Any) -> Any:
    """Return nested JSON values with the renamed relations and the counts."""
    if isinstance(value, list):
        return [renamed(item) for item in value]
    if isinstance(value, dict):
        return {key: renamed(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    return COUNT.sub(lambda found: counted(int(found[1].replace(",", "")), found[2]), RENAMED.get(value, value))


def convert(path: Path) -> bool:
    """Convert the texts of one report; returns whether anything changed."""
    text = path.read_text()
    old = json.loads(text)
    new = renamed(old)
    if new == old:
        return False
    rest = {key: value for key, value in new.items() if key != HASH}
    arrays = load_file(path.parent / ARRAYS)
    assert old[HASH] == hashed({key: value for key, value in old.items() if key != HASH}, arrays), path
    indent = 2 if text.startswith('{\n  "') else 1
    path.write_text(json.dumps({**rest, HASH: hashed(rest, arrays)}, indent=indent) + "\n")
    return True


def main() -> None:
    """Convert every committed report and say which ones changed."""
    for path in sorted(ROOT.glob(f"docs/readings/**/{JSON}")):
        if convert(path):
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
