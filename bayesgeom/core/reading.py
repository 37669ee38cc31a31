"""Safe reading of untrusted files: regular files only, and JSON of bounded size and depth; and values as strict JSON.

Opening a named pipe or reading a device may never return, and a small file can make a parser exhaust memory or
recursion. Each case raises an error that names it, before the file is opened or used.
"""

import json
import math
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayesgeom.core.errors import CheckpointFault, InvalidArgument

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
    """Check that a path is a regular file or a symbolic link to one.

    Raises:
        FileNotFoundError: Nothing is there.
        CheckpointFault: It is something else, or cannot be accessed.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointFault(f"{path} cannot be read: {error.strerror or error}.") from error
    if not is_utf_8(path):
        raise CheckpointFault(f"{path} is not encoded as UTF-8, as safetensors requires. Rename it.")
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "not a regular file")
        raise CheckpointFault(f"{path} is {kind}; only regular files are read. Put the file itself there.")


def is_utf_8(path: Path) -> bool:
    """Return whether a path is encoded as UTF-8. Other bytes of a file name are halves of surrogates in Python."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json(path: Path, *, is_ours: bool = False) -> Any:
    """Read a JSON file.

    Args:
        path: A regular file of at most 64 MiB, in UTF-8, with at most 64 levels of lists and objects.
        is_ours: Whether bayesgeom wrote it: then no name occurs twice in an object, and all text can be encoded.

    Returns:
        The parsed content.

    Raises:
        FileNotFoundError: Nothing is there.
        CheckpointFault: It is not such a file.

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
        stored = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once if is_ours else None)
    except RecursionError as error:
        raise _too_deep(path) from error
    except (OSError, ValueError) as error:  # ValueError: invalid JSON or UTF-8, or more than 4,300 digits
        raise CheckpointFault(f"{path} cannot be read as JSON: {error}. Restore it from a copy.") from error
    if _levels_exceed(stored, LEVELS):
        raise _too_deep(path)
    if is_ours:
        try:
            json.dumps(stored, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise CheckpointFault(f"{path} holds half of a surrogate pair, which is no text. Restore it.") from error
    return stored


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Readers differ in which value of a name that occurs twice they take.

    Raises:
        ValueError: A name occurs twice.
    """
    stored = dict(pairs)
    if len(stored) < len(pairs):
        seen = [name for name, _ in pairs]
        twice = next(name for name in seen if seen.count(name) > 1)
        raise ValueError(f"{twice!r} occurs twice in an object")
    return stored


def _too_deep(path: Path) -> CheckpointFault:
    return CheckpointFault(f"{path} is nested more than {LEVELS} deep, which no config is. Restore it from a copy.")


def _levels_exceed(stored: Any, allowed: int) -> bool:
    """Whether lists and objects are nested more than `allowed` deep."""
    level: list[Any] = [stored]
    for _ in range(allowed + 1):
        level = [inner for inner in level if isinstance(inner, dict | list)]
        if not level:
            return False
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return True


def encoded(value: Any) -> Any:
    """Return a value as strict JSON, with NaN and infinities as {"float": "nan"}.

    Raises:
        InvalidArgument: JSON does not support the value.
    """
    match value:
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case np.floating() | np.integer() | np.bool_():
            return encoded(value.item())
        case Mapping():
            return {str(key): encoded(item) for key, item in value.items()}
        case str() | int() | float() | bool() | None:
            return value
        case Sequence():
            return [encoded(item) for item in value]
        case _:
            raise InvalidArgument(f"a report field cannot hold a {type(value).__name__}: use numbers, text, arrays.")


def decoded(value: Any) -> Any:
    """Return the inverse of `encoded`; lists become tuples, as in reports."""
    match value:
        case {"float": str(text)} if text in ("nan", "inf", "-inf"):
            return float(text)
        case dict():
            return {key: decoded(item) for key, item in value.items()}
        case list():
            return tuple(decoded(item) for item in value)
        case _:
            return value
