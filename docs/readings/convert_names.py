"""Rename keys of shipped checkpoints and committed reports that changed their names, and renew the hashes.

Run once, from the root of the repository:

    python docs/readings/convert_names.py

Recipes say `optimizer` where they said `optimiser`; scores of checkpoints hold `baselines` where they held `nulls`. No
number changes. A file without such a key is left as it is, so running the script again does nothing.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from safetensors.numpy import load_file

from bayesgeom.models.checkpoint_files import hashed as hashed_config
from bayesgeom.results.storage import ARRAYS, HASH, JSON, hashed

RENAMED = {"optimiser": "optimizer"}
RENAMED_IN_SCORES = {"nulls": "baselines"}


def renamed(value: Any, names: dict[str, str]) -> Any:
    """Return nested JSON values with the keys that changed their names."""
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {key: names | RENAMED_IN_SCORES if key == "scores" else names for key in value}
    return {names.get(key, key): renamed(item, inner[key]) for key, item in value.items()}


def convert(path: Path, renew: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
    """Rename the keys of one JSON file; returns whether anything changed."""
    text = path.read_text()
    old = json.loads(text)
    new = renamed(old, RENAMED)
    if new == old:
        return False
    path.write_text(json.dumps(renew(new), indent=2 if text.startswith('{\n  "') else 1) + "\n")
    return True


def rehashed_report(path: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that renews the hash of the report in a folder, whose arrays did not change."""

    def renew(held: dict[str, Any]) -> dict[str, Any]:
        rest = {key: value for key, value in held.items() if key != HASH}
        return {**rest, HASH: hashed(rest, load_file(path.parent / ARRAYS))}

    return renew


def main() -> None:
    """Convert everything that is committed and say what changed."""
    for pattern in ("config.json", "formation.json"):
        for path in sorted(ROOT.glob(f"checkpoints/*/{pattern}")):
            if convert(path, hashed_config):
                print(path.relative_to(ROOT))
    for path in sorted(ROOT.glob(f"docs/readings/**/{JSON}")):
        if convert(path, rehashed_report(path)):
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
