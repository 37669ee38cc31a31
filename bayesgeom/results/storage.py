"""Reports as files: `report.json` and `arrays.safetensors`, tied together by a hash, and checked when they are read.

The hash covers every value in the JSON file and every array with its name, type and shape. So a report that was edited,
cut off or mixed with another one is refused by name. Fields are then checked against the annotations of the report.
"""

import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import AbstractArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.core.files import put_back, write_arrays

SCHEMA = 2  # 2: a hash over JSON and arrays
JSON, ARRAYS = "report.json", "arrays.safetensors"
HASH = "hash"
Parts = Mapping[str, tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]  # scalars and arrays by report


def write(path: Path, parts: Parts, extra: Mapping[str, Any]) -> None:
    """Write the fields of reports, and whatever else JSON can hold, into a folder.

    Args:
        path: The folder, which exists.
        parts: Scalar fields and array fields by the name of their report.
        extra: What the JSON file holds besides.

    Raises:
        OutputFault: The files cannot be written.
        InvalidArgument: A field holds something that JSON cannot.
    """
    arrays = {f"{key}/{name}": array for key, (_, own) in parts.items() for name, array in own.items()}
    write_arrays(arrays, path / ARRAYS)
    held = encoded({"schema": SCHEMA, **extra, "reports": {key: scalars for key, (scalars, _) in parts.items()}})
    text = json.dumps({**held, HASH: hashed(held, arrays)}, indent=1, allow_nan=False)
    (path / JSON).write_text(text + "\n", encoding="utf-8")


def read(path: Path) -> tuple[dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]], dict[str, Any]]:
    """Return scalar and array fields by report, and what else the JSON file holds.

    A report that a killed process had moved away, to replace it, is put back first.

    Raises:
        OutputFault: There is no whole report, it was changed after it was written, or its schema is another.
    """
    put_back(path)
    unreadable = f"{path} holds no readable report ({JSON} and {ARRAYS})"
    if missing := [name for name in (JSON, ARRAYS) if not (path / name).is_file()]:
        raise OutputFault(f"{unreadable}: {' and '.join(missing)} is missing or no file.")
    try:
        held, arrays = json.loads((path / JSON).read_text(encoding="utf-8")), load_file(path / ARRAYS)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise OutputFault(f"{unreadable}: {error}.") from error
    if not isinstance(held, dict) or not isinstance(schema := held.get("schema"), int):
        raise OutputFault(f"{unreadable}: {JSON} has no schema number.")
    if schema > SCHEMA:
        raise OutputFault(f"{path} has schema {schema}; this bayesgeom reads up to {SCHEMA}. Upgrade bayesgeom.")
    if schema < SCHEMA:
        raise OutputFault(
            f"{path} has schema {schema}, without a hash; this bayesgeom reads schema {SCHEMA}. Run the command that "
            f"made it again."
        )
    stated = held.pop(HASH, None)
    if stated != hashed(held, arrays):
        raise OutputFault(f"{path} was changed after it was written: {JSON} and {ARRAYS} do not match their hash.")
    if not isinstance(scalars := held.pop("reports", None), dict):
        raise OutputFault(f"{unreadable}: {JSON} lists none.")
    del held["schema"]
    parts = {}
    for key, values in scalars.items():
        if not isinstance(values, dict):
            raise OutputFault(f"{path}: report {key!r} is no table of fields.")
        own = {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith(f"{key}/")}
        parts[key] = ({name: decoded(value) for name, value in values.items()}, own)
    return parts, decoded(held)


def check_fields(kind: type, values: Mapping[str, Any], where: str) -> None:
    """Check fields against the annotations of a report class: names, types, and array axes that agree.

    Args:
        kind: A dataclass.
        values: Field values by name.
        where: How messages begin.

    Raises:
        OutputFault: A field is missing, unknown, or holds something else than its annotation says.
    """
    hints = {field.name: field.type for field in fields(kind)}
    optional = {field.name for field in fields(kind) if field.default is not MISSING}
    if missing := sorted(hints.keys() - values.keys() - optional):
        raise OutputFault(f"{where} lacks the fields {', '.join(missing)}: another version wrote it. Make it again.")
    if unknown := sorted(values.keys() - hints.keys()):
        raise OutputFault(f"{where} has unknown fields {', '.join(unknown)}: another version wrote it. Make it again.")
    sizes: dict[str, int] = {}
    for name, value in values.items():
        if not fits(value, hints[name]):
            raise OutputFault(f"{where}: field {name!r} holds {_described(value)}, which is not {_named(hints[name])}.")
        for axis, size in zip(_axes(hints[name]), np.shape(value), strict=True) if _axes(hints[name]) else ():
            if sizes.setdefault(axis, size) != size:
                raise OutputFault(f"{where}: {name!r} has {size} entries along {axis!r}, others have {sizes[axis]}.")
    for axis, size in sizes.items():
        labels = values.get(f"{axis}s")
        if isinstance(labels, tuple) and len(labels) != size:
            raise OutputFault(f"{where}: axis {axis!r} has {size} entries and {len(labels)} names.")


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type that reports use; an integer is a float too."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and _items_fit(value, arguments)
    if origin is not None and issubclass(origin, Mapping):
        key, item = arguments
        return isinstance(value, Mapping) and all(fits(k, key) and fits(v, item) for k, v in value.items())
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(value, Sequence) and not isinstance(value, str) and _items_fit(value, (*arguments, ...))
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return _is_array(value, hint)
    if hint in (int, float):
        is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
        return is_whole or (hint is float and isinstance(value, float))
    return isinstance(value, hint)


def encoded(value: Any) -> Any:
    """Return a value as strict JSON: NaN and infinities, which it lacks, become {"float": "nan"}.

    Raises:
        InvalidArgument: JSON cannot hold it.
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
    """Return the inverse of `encoded`; lists become tuples, as reports hold them."""
    match value:
        case {"float": str(text)} if text in ("nan", "inf", "-inf"):
            return float(text)
        case dict():
            return {key: decoded(item) for key, item in value.items()}
        case list():
            return tuple(decoded(item) for item in value)
        case _:
            return value


def hashed(held: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the hash over JSON values, without the hash itself, and arrays."""
    digest = hashlib.sha256(json.dumps(held, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _is_array(value: object, hint: type[AbstractArray]) -> bool:
    """Kind and number of axes. `isinstance` would compare axes with those of what is being checked around this call."""
    if not isinstance(value, np.ndarray) or value.ndim != len(_axes(hint)):
        return False
    dtypes: Any = hint.dtypes
    return value.dtype.name in dtypes if isinstance(dtypes, list | tuple) else True  # of Shaped any will do


def _items_fit(values: Sequence[object], arguments: tuple[Any, ...]) -> bool:
    if arguments[-1:] == (...,):
        return all(fits(value, arguments[0]) for value in values)
    return len(values) == len(arguments) and all(map(fits, values, arguments))


def _axes(hint: object) -> tuple[str, ...]:
    """The axes of a jaxtyping annotation; none for other types."""
    return tuple(hint.dim_str.split()) if isinstance(hint, type) and issubclass(hint, AbstractArray) else ()


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _named(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "").replace("collections.abc.", "")
