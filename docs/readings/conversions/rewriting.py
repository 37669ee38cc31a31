"""Shared by the scripts that convert committed reports: go through the reports, and replace each one atomically."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bayesgeom.core.files import atomic_directory
from bayesgeom.results.storage import ARRAYS, JSON, read, write

ROOT = Path(__file__).parents[3]
Converted = tuple[Mapping[str, Any], Mapping[str, np.ndarray], int]  # scalars, arrays, number of changed entries


def replace_parts(folder: Path, parts: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Replace the reports of a folder and keep its other files."""
    with atomic_directory(folder) as temporary:
        for other in (path for path in folder.iterdir() if path.name not in (JSON, ARRAYS)):
            shutil.copy2(other, temporary)
        write(temporary, parts, extra)


def convert_folders(convert: Callable[[Path], bool]) -> None:
    """Call a function on every folder of committed readings, and print those that it changed."""
    for path in sorted(ROOT.glob(f"docs/readings/**/{JSON}")):
        if convert(path.parent):
            print(path.parent.relative_to(ROOT))


def convert_intervals(converted: Callable[[str, dict[str, Any], dict[str, np.ndarray]], Converted]) -> None:
    """Convert every report below `docs` in which the function changes an entry, and print the number of entries.

    Args:
        converted: From a report's name, scalars and arrays to both as converted, and the number of changes.
    """
    for path in sorted((ROOT / "docs").glob(f"**/{JSON}")):
        folder = path.parent
        parts, extra = read(folder)
        found = {key: converted(key, *own) for key, own in parts.items()}
        if not (changed := sum(count for *_, count in found.values())):
            continue
        with atomic_directory(folder) as temporary:
            write(temporary, {key: (scalars, arrays) for key, (scalars, arrays, _) in found.items()}, extra)
        print(folder.relative_to(ROOT), changed)
