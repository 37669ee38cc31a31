"""Reading files that somebody else wrote: regular ones only, and JSON of bounded size and depth.

A named pipe never ends to open, a device never ends to read, and a file of a few bytes can ask a parser for more memory
or recursion than there is. Each is refused by name before it is opened or used.
"""

import json
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bayesgeom.core.errors import CheckpointFault

LEVELS = 64  # lists and objects inside each other; a config has about five
JSON_BYTES = 64 * 2**20
GIGABYTE = 1e9
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def check_regular(path: Path) -> None:
    """Check that a path leads to a regular file, through symbolic links or not.

    Raises:
        FileNotFoundError: nothing is there.
        CheckpointFault: it is something else, or cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointFault(f"{path} cannot be read: {error.strerror or error}.") from error
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no regular file")
        raise CheckpointFault(f"{path} is {kind}; only regular files are read. Put the file itself there.")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Args:
        path: A regular file of at most 64 MiB, in UTF-8, with at most 64 levels of lists and objects.

    Returns:
        What it holds.

    Raises:
        FileNotFoundError: nothing is there.
        CheckpointFault: it is no such file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "config.json"
        ...     _ = file.write_text('{"n_layers": 2}')
        ...     read_json(file)
        {'n_layers': 2}
    """
    check_regular(path)
    try:
        size = path.stat().st_size
        if size > JSON_BYTES:
            raise CheckpointFault(
                f"{path} has {size / GIGABYTE:.3g} GB; JSON is read up to {JSON_BYTES / GIGABYTE:.3g} GB. Restore it "
                f"from a copy."
            )
        held = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise _too_deep(path) from error
    except (OSError, ValueError) as error:  # among the latter: no JSON, no UTF-8, numbers of more than 4,300 digits
        raise CheckpointFault(f"{path} cannot be read as JSON: {error}.") from error
    if _levels_exceed(held, LEVELS):
        raise _too_deep(path)
    return held


def _too_deep(path: Path) -> CheckpointFault:
    return CheckpointFault(f"{path} is nested more than {LEVELS} deep, which no config is. Restore it from a copy.")


def _levels_exceed(held: Any, allowed: int) -> bool:
    """Whether lists and objects lie in each other more than `allowed` deep."""
    level: list[Any] = [held]
    for _ in range(allowed + 1):
        level = [inner for inner in level if isinstance(inner, dict | list)]
        if not level:
            return False
        level = [inner for outer in level for inner in _inside(outer)]
    return True


def _inside(outer: Any) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer
