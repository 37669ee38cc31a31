"""Files of values: dataclasses, enumerations, arrays, mappings, sequences, numbers and text.

A value comes back equal: floats, NaN and infinities bit by bit, tuples as tuples, dataclasses and enumerations by
the path of their class. Equal values make equal files.
"""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from enum import Enum, EnumType
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.core.files import atomic_file, read_safetensors, write_arrays


def write_parcel(path: Path, value: Any) -> None:
    """Write a value into one file, atomically.

    Raises:
        InvalidArgument: It holds something else.
        OutputFault: The file cannot be written, for example because the disk is full.
    """
    arrays: dict[str, np.ndarray] = {}
    with atomic_file(path) as temporary:
        tree = json.dumps(_packed(value, arrays), sort_keys=True)
        write_arrays(arrays, temporary, {"parcel": tree})


def read_parcel(path: Path) -> Any:
    """Return the value that `write_parcel` wrote.

    Raises:
        OutputFault: The file cannot be read, or is of another version.
    """
    try:
        arrays, metadata = read_safetensors(path, framework="numpy")
        return _unpacked(json.loads(metadata["parcel"]), arrays)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise OutputFault(f"{path} cannot be read ({error}); delete it to have it computed again.") from error


def _packed(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Return numbers and text unchanged, and anything else as its kind and its items."""
    if isinstance(value, np.generic):
        value = value.item()
    items: Iterable[Any]
    match value:
        case Enum():  # first, since it may be text
            kind, items = _path_of(type(value)), [("value", value.value)]
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() if value.dtype.kind in "biuf":
            arrays[name := f"{len(arrays):06d}"] = np.ascontiguousarray(value).reshape(value.shape)
            return ["array", name]
        case list() | tuple():
            kind, items = "list" if isinstance(value, list) else "tuple", value
        case Mapping():
            kind, items = "dict", value.items()
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            kind = _path_of(type(value))
            items = [(field.name, vars(value)[field.name]) for field in dataclasses.fields(value)]
        case _:
            raise InvalidArgument(f"{value!r:.60} cannot be stored: return numbers, arrays or dataclasses of them.")
    return [kind, [_packed(item, arrays) for item in items]]


def _unpacked(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, stored = tree
    if kind == "array":
        return arrays[stored]
    items = [_unpacked(item, arrays) for item in stored]
    if kind in (plain := {"list": list, "tuple": tuple, "dict": dict}):
        return plain[kind](items)
    module, _, name = kind.partition(":")
    made: Any = vars(sys.modules[module])[name]  # a file imports no module
    is_plain = dataclasses.is_dataclass(made) or isinstance(made, EnumType)
    if not is_plain:
        raise ValueError(f"{kind} is neither a dataclass nor an enumeration")
    return made(**dict(items))


def _path_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
