"""Files of job results: dataclasses, arrays, numbers and text, stored as arrays and JSON.

A value comes back equal: floats, NaN and infinities bit by bit, tuples as tuples, dataclasses by the path of their
class. Equal values make equal files.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.core.files import atomic_file, read_safetensors, write_arrays

_ARRAY, _CLASS, _TUPLE, _MAP = "array", "class", "tuple", "map"
_PARCEL = "parcel"


def write_parcel(path: Path, value: Any) -> None:
    """Write a value into one file, atomically.

    Raises:
        InvalidArgument: It holds anything but dataclasses, arrays, mappings, sequences, numbers and text.
        OutputFault: The file cannot be written, for example because the disk is full.
    """
    arrays: dict[str, np.ndarray] = {}
    tree = _packed(value, arrays)
    with atomic_file(path) as temporary:
        write_arrays(arrays, temporary, {_PARCEL: json.dumps(tree, sort_keys=True)})


def read_parcel(path: Path) -> Any:
    """Return the value that `write_parcel` wrote.

    Raises:
        OutputFault: The file cannot be read, or is of another version.
    """
    from safetensors import SafetensorError

    try:
        arrays, metadata = read_safetensors(path, framework="numpy")
        return _unpacked(json.loads(metadata[_PARCEL]), arrays)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise OutputFault(f"{path} cannot be read ({error}); delete it to have it computed again.") from error


def _packed(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    match value:
        case np.generic():  # first: numpy's float64 is a float
            return _packed(value.item(), arrays)
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() if value.dtype.kind in "biuf":
            arrays[name := f"{len(arrays):06d}"] = np.ascontiguousarray(value).reshape(value.shape)
            return {_ARRAY: name}
        case tuple() | list():
            stored = [_packed(item, arrays) for item in value]
            return {_TUPLE: stored} if isinstance(value, tuple) else stored
        case Mapping():
            return {_MAP: [[_packed(key, arrays), _packed(item, arrays)] for key, item in value.items()]}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise InvalidArgument(f"a job returned {value!r:.60}, which cannot be stored: return a dataclass of numbers.")
    kind = type(value)
    fields = {own.name: _packed(vars(value)[own.name], arrays) for own in dataclasses.fields(value)}
    return {_CLASS: f"{kind.__module__}:{kind.__qualname__}", "fields": fields}


def _unpacked(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    match tree:
        case list():
            return [_unpacked(item, arrays) for item in tree]
        case {"array": name}:
            return arrays[name]
        case {"tuple": stored}:
            return tuple(_unpacked(item, arrays) for item in stored)
        case {"map": pairs}:
            return {_unpacked(key, arrays): _unpacked(item, arrays) for key, item in pairs}
        case {"class": str(path), "fields": dict(fields)}:
            return _class_at(path)(**{name: _unpacked(item, arrays) for name, item in fields.items()})
    return tree


def _class_at(path: str) -> type:
    """Return a dataclass of a loaded module; a file of results names classes but never imports a module."""
    module, _, name = path.partition(":")
    kind = vars(sys.modules[module])[name]
    if not dataclasses.is_dataclass(kind) or not isinstance(kind, type):
        raise ValueError(f"{path} is no dataclass")
    return kind
