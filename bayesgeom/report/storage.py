"""Reports as files: `report.json` and `arrays.safetensors`, with a common hash that is checked when they are read.

A run directory also has the tidy table and the page; it is written atomically.

The hash covers every value in the JSON file and every array with its name, type and shape. An edited, truncated or
mixed-up report is therefore an error. Fields are then checked against the annotations of the report.
"""

import hashlib
import json
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from jaxtyping import AbstractArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bayesgeom.core import CheckpointFault, InvalidArgument, OutputFault, Reason
from bayesgeom.core.errors import check_types, quoted
from bayesgeom.core.errors import fits as fits_type
from bayesgeom.core.files import (
    atomic_directory,
    atomic_file,
    check_directory,
    decoded_json,
    encoded_json,
    is_temporary,
    read_json,
    restore_directory,
    write_arrays,
)
from bayesgeom.report.estimate import Baseline, Coordinate, Estimate, Quantity, Unit

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R")  # a report

SCHEMA = 4  # a number is an estimate, with the code of a reason by entry
JSON, ARRAYS = "report.json", "arrays.safetensors"
HASH, ORIGIN = "hash", "provenance"
_IN_ARRAYS = "array"  # in place of a number: the value is among the arrays
_LEVELS = ("value", "low", "high")
PROGRESS = "progress.safetensors"  # of an interrupted battery
PARTS = "parts"  # results per snapshot of an interrupted analysis
METRICS, HTML = "metrics.parquet", "report.html"
ALONE = "alone"  # whether a folder holds one report, not a diagnosis
JOINED = "joined_along"  # field of a joined report: the axis along which reports of its kind were joined
VIEWER = "inside"  # the report that may be saved with one that is alone
_SOURCE: Mapping[str, Any] = {  # what tables and pages read of the provenance, where it is present
    **dict.fromkeys(("arguments", "recipe", "task", "task_in_words"), Mapping[str, Any]),
    **dict.fromkeys(("attention_kernels", "foreign_hooks"), tuple[str, ...]),
    "layers": Mapping[str, tuple[int, ...]],
    **dict.fromkeys(("served", "streamed"), Mapping[str, float]),
}
_OURS = {JSON, ARRAYS, METRICS, HTML, PROGRESS, PARTS, ".DS_Store"}  # macOS creates .DS_Store
Parts = Mapping[str, tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]  # scalars and arrays by report


def write(path: Path, parts: Parts, extra: Mapping[str, Any]) -> None:
    """Write the fields of reports, and other JSON content, into a folder.

    Args:
        path: A folder, inside `atomic_directory`.
        parts: Scalar fields and array fields by the name of their report.
        extra: Other content of the JSON file.

    Raises:
        InvalidArgument: A field has a value that JSON does not support.
    """
    arrays = {f"{key}/{name}": array for key, (_, own) in parts.items() for name, array in own.items()}
    write_arrays(arrays, path / ARRAYS)
    stored = encoded_json({"schema": SCHEMA, **extra, "reports": {key: scalars for key, (scalars, _) in parts.items()}})
    text = json.dumps({**stored, HASH: hashed(stored, arrays)}, indent=1, allow_nan=False)
    (path / JSON).write_text(text + "\n", encoding="utf-8")


def read(path: Path) -> tuple[dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]], dict[str, Any]]:
    """Return scalar and array fields by report, and the other content of the JSON file.

    If a process was killed while it replaced a report, the old report is restored first.

    Raises:
        OutputFault: There is no complete report, it was changed after it was written, or it has another schema.
    """
    restore_directory(path)
    unreadable = f"{path} holds no readable report ({JSON} and {ARRAYS})"
    if missing := [name for name in (JSON, ARRAYS) if not (path / name).is_file()]:
        raise OutputFault(f"{unreadable}: it lacks {' and '.join(missing)}. Name the directory of a saved report.")
    try:
        stored, arrays = read_json(path / JSON), load_file(path / ARRAYS)
    except (OSError, ValueError, SafetensorError, CheckpointFault) as error:
        raise OutputFault(f"{unreadable}: {str(error).rstrip('.')}.") from error
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA:
        raise OutputFault(
            f"{path} was written by another version: this bayesgeom reads schema {SCHEMA}. Make it again."
        )
    stated = stored.pop(HASH, None)
    if stated != hashed(stored, arrays):
        raise OutputFault(f"{path} was changed after it was written: {JSON} and {ARRAYS} do not match their hash.")
    if not fits_type(scalars := stored.pop("reports", None), Mapping[str, Mapping[str, Any]]):
        raise OutputFault(f"{path} is damaged: {JSON} lists no reports and their fields. Make it again.")
    del stored["schema"]
    parts = {}
    for key, values in scalars.items():
        own = {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith(f"{key}/")}
        parts[key] = ({name: decoded_json(value) for name, value in values.items()}, own)
    return parts, decoded_json(stored)


def estimate_parts(name: str, estimate: Estimate) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return an estimate as JSON values, with scalars inline, and its arrays by key."""
    arrays: dict[str, np.ndarray] = {}

    def stored(own: Estimate | Baseline, key: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part, values in zip(_LEVELS, (own.value, own.low, own.high), strict=True):
            if values is None or values.ndim == 0:
                found[part] = None if values is None else float(values)
            else:
                found[part], arrays[f"{key}.{part}"] = _IN_ARRAYS, np.ascontiguousarray(values)
        return found

    reason: int | str | None = None
    if estimate.reason is not None:
        reason = int(estimate.reason) if estimate.reason.ndim == 0 else _IN_ARRAYS
        arrays |= {f"{name}.reason": np.ascontiguousarray(estimate.reason)} if reason == _IN_ARRAYS else {}
    scalars = {
        **stored(estimate, name),
        "resampled": estimate.resampled,
        "n": estimate.n,
        "reason": reason,
        "baselines": [
            {"kind": own.kind, "name": own.name, **stored(own, f"{name}.{index}")}
            for index, own in enumerate(estimate.baselines)
        ],
    }
    return encoded_json(scalars), arrays


def estimate_of(name: str, stored: Any, arrays: Mapping[str, np.ndarray], where: str) -> Estimate:
    """Return the estimate from the result of `estimate_parts`; parts of another version are ignored.

    Raises:
        OutputFault: A part is missing or of another form.
    """
    if not isinstance(stored, Mapping) or not {*_LEVELS, "resampled", "n", "baselines"} <= stored.keys():
        raise OutputFault(f"{where}: field {name!r} holds no estimate.")

    def levels(own: Mapping[str, Any], key: str) -> dict[str, Any]:
        found = {part: arrays[f"{key}.{part}"] if own[part] == _IN_ARRAYS else own[part] for part in _LEVELS}
        return {part: None if value is None else np.asarray(value, np.float64) for part, value in found.items()}

    try:
        whole, reason = levels(stored, name), stored.get("reason", int(Reason.NOT_STORED))
        if reason == _IN_ARRAYS:
            reason = arrays[f"{name}.reason"]
        elif "reason" not in stored and whole["low"] is None:
            reason = None
        codes = None if reason is None else np.broadcast_to(np.asarray(reason, np.int64), whole["value"].shape)
        baselines = (
            Baseline(kind=own["kind"], name=own["name"], **levels(own, f"{name}.{index}"))
            for index, own in enumerate(stored["baselines"])
        )
        of_all = {"resampled": stored["resampled"], "n": stored["n"], "reason": codes, "baselines": tuple(baselines)}
        return _sound(Estimate(**whole, **of_all))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise OutputFault(f"{where}: field {name!r} holds no estimate ({error}).") from error


def _sound(estimate: Estimate) -> Estimate:
    """Return an estimate from a file; parts of other types, arrays of several shapes and unknown codes are errors."""
    levels: tuple[Estimate | Baseline, ...] = (estimate, *estimate.baselines)
    for level in levels:
        check_types(level)
        arrays = (level.value, level.low, level.high)
        if any(array is not None and array.shape != estimate.value.shape for array in arrays):
            raise ValueError("its arrays have several shapes")
    if estimate.reason is not None and not np.isin(estimate.reason, [int(code) for code in Reason]).all():
        raise ValueError("its reasons are no known codes")
    return estimate


def quantity_of(hint: Any) -> Quantity | None:
    """Return the quantity that an annotation declares; None for fields that are not estimates."""
    if typing.get_origin(hint) is not Annotated:
        return None
    return next((own for own in hint.__metadata__ if isinstance(own, Quantity)), None)


def quantities_of(kind: type) -> dict[str, Quantity]:
    """Return the quantity of each field of a report class that is an estimate."""
    found = {field.name: quantity_of(field.type) for field in fields(kind)}
    return {name: quantity for name, quantity in found.items() if quantity is not None}


def units_of(kind: type) -> dict[str, str]:
    """Return the unit of each field of a report class that is a plain array; "" where none is stated."""
    stated = {own.name: typing.get_args(own.type)[1:] for own in fields(kind) if _array(own.type) is not None}
    return {name: "".join(part.name for part in parts if isinstance(part, Unit)) for name, parts in stated.items()}


def axes_of(kind: type) -> dict[str, tuple[str, ...]]:
    """Return the axes of every array and every estimate with axes, in order, from its annotation."""
    hints = ((own.name, own.type) for own in fields(kind))
    return {name: _axes(hint) for name, hint in hints if _axes(hint) or _array(hint) is not None}


def coordinates_of(kind: type) -> dict[str, str]:
    """Return the axis of each field of a report class that is marked as a `Coordinate` of it."""
    marked = [
        own for own in fields(kind) if any(isinstance(part, Coordinate) for part in typing.get_args(own.type)[1:])
    ]
    return {own.name: (*_axes(own.type), *_along(own.type))[0] for own in marked}


def value_of(report: object, name: str) -> Any:
    """Return the value of a report's field.

    Raises:
        InvalidArgument: The report has no such field.
    """
    if name not in (known := values_of(report)):
        raise InvalidArgument(f"{type(report).__name__} has no field {name!r}. Its fields: {', '.join(sorted(known))}.")
    return known[name]


def values_of(report: object) -> dict[str, Any]:
    """Return the values of all fields of a report, by name."""
    kind: type = type(report)
    return {own.name: getattr(report, own.name) for own in fields(kind)}


def is_joined(report: object) -> bool:
    """Return whether reports of its kind were joined along an axis: sentences and answers are of a single one."""
    return JOINED in values_of(report)


def parts_of(report: object) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return all fields of a report in file form: JSON values by field, and arrays by field or part of one."""
    scalars, arrays = dict[str, Any](), dict[str, np.ndarray]()
    values = values_of(report)
    for own in _stored(type(report)):
        value = values[own.name]
        if quantity_of(own.type) is not None:
            scalars[own.name], of_estimate = estimate_parts(own.name, value)
            arrays |= of_estimate
        elif _array(own.type) is not None:
            arrays[own.name] = np.asarray(value, order="C")
        else:
            scalars[own.name] = encoded_json(value)
    return scalars, arrays


def _stored(kind: type) -> list[Field[Any]]:
    """Return the fields of a report class without its provenance, which is stored once per folder."""
    return [own for own in fields(kind) if own.name != ORIGIN]


def _array(hint: Any) -> Any:
    """Return the jaxtyping annotation of a plain array, without its unit; None for other annotations."""
    own = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    return own if isinstance(own, type) and issubclass(own, AbstractArray) else None


def fields_of(kind: type, scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray], where: str) -> dict[str, Any]:
    """Return the field values of a report: rebuilt estimates, and other values as read.

    Raises:
        OutputFault: An estimate is corrupt.
    """
    names = {field.name for field in fields(kind) if quantity_of(field.type) is not None}
    found: dict[str, Any] = {name: value for name, value in scalars.items() if name not in names}
    found |= {name: array for name, array in arrays.items() if name.split(".", maxsplit=1)[0] not in names}
    for name in names & scalars.keys():
        own = {key: array for key, array in arrays.items() if key.startswith(f"{name}.")}
        found[name] = estimate_of(name, scalars[name], own, where)
    return found


def completed(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a report of another version: those it lacks are missing values, unknown ones are left out.

    A field with another number of axes is one that the file lacks.

    Args:
        kind: The report class.
        values: Field values by name.

    Returns:
        The field values.
    """
    hints = {own.name: own.type for own in _stored(kind)}
    optional = {own.name for own in _stored(kind) if own.default is not MISSING or own.default_factory is not MISSING}
    found = {name: value for name, value in values.items() if name in hints and _has_axes(value, hints[name])}
    lacks = sorted(hints.keys() - found.keys())
    sizes: dict[str, int] = {}
    for name, value in found.items():
        array = value.value if isinstance(value, Estimate) else value
        sizes |= dict(zip(_axes(hints[name]), np.shape(array), strict=False)) if isinstance(array, np.ndarray) else {}
        if isinstance(value, tuple) and name.endswith("s"):
            sizes.setdefault(name.removesuffix("s"), len(value))
    return found | {name: _not_stored(name, hints[name], sizes) for name in lacks if name not in optional}


def _has_axes(value: Any, hint: Any) -> bool:
    """Return whether a value has as many axes as the annotation; only arrays and estimates have any."""
    array = value.value if isinstance(value, Estimate) else value
    return not isinstance(array, np.ndarray) or array.ndim == len(_axes(hint))


def _not_stored(name: str, hint: Any, sizes: Mapping[str, int]) -> Any:
    """Return the value of a field that a file lacks: NaN, −1 for integers, or nothing."""
    shape = tuple(sizes.get(axis, 0) for axis in _axes(hint))
    if quantity_of(hint) is not None:
        return Estimate.of(np.full(shape, np.nan), reason=Reason.NOT_STORED)
    if (array := _array(hint)) is not None:
        kinds = array.dtypes if isinstance(array.dtypes, list | tuple) else ()
        return np.zeros(shape, bool) if "bool" in kinds else np.full(shape, np.nan if "float64" in kinds else -1)
    own = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    if (typing.get_origin(own) or own) is tuple:
        along = " ".join(_along(hint)).split() or [name.removesuffix("s")]
        return tuple("" for _ in range(math.prod(sizes.get(axis, 0) for axis in along)))
    if typing.get_origin(own) is typing.Literal:
        return typing.get_args(own)[0]
    origin = typing.get_origin(own) or own
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {}
    return {str: "", bool: False, int: -1, float: math.nan}.get(origin)


def check_fields(kind: type, values: Mapping[str, Any], where: str) -> None:
    """Check fields against the annotations of a report class: types, and array axes that agree.

    Args:
        kind: A dataclass.
        values: Field values by name, as `completed` returns them.
        where: How messages begin.

    Raises:
        OutputFault: A field has another type than its annotation.
    """
    hints = {own.name: own.type for own in _stored(kind)}
    for name, value in values.items():
        if not fits(value, hints[name]):
            raise OutputFault(f"{where}: field {name!r} holds {quoted(value)}, which does not fit its annotation.")
    try:
        check_axes(kind, values, where)
    except ValueError as error:
        raise OutputFault(str(error)) from error


def check_axes(kind: type, values: Mapping[str, Any], where: str) -> None:
    """Check that axes of the same name have the same length in all fields, and that named axes name every entry.

    Raises:
        ValueError: They do not, or an estimate has another number of axes than its annotation.
    """
    sizes: dict[str, int] = {}
    for name, hint in ((field.name, field.type) for field in fields(kind)):
        axes, value = _axes(hint), values.get(name)
        array = value.value if isinstance(value, Estimate) else value if axes else None
        shape = array.shape if isinstance(array, np.ndarray) else ()
        if len(axes) != len(shape):
            raise ValueError(f"{where}: {name!r} has shape {shape}, its axes are ({' '.join(axes)}).")
        for axis, size in zip(axes, shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise ValueError(f"{where}: {name!r} has {size} entries along {axis!r}, others have {sizes[axis]}.")
    along = {f"{axis}s": axis for axis in sizes} | {own.name: axis for own in fields(kind) for axis in _along(own.type)}
    for name, own_axes in along.items():
        labels, size = {**vars(kind), **values}.get(name), math.prod(sizes.get(own, 0) for own in own_axes.split())
        if isinstance(labels, tuple) and size != len(labels):
            raise ValueError(f"{where}: {own_axes!r} has {size} entries, and {name!r} describes {len(labels)}.")


def fits(value: object, hint: Any) -> bool:
    """Return whether a value from a file has the annotated type, and an array or estimate the annotated axes."""
    if (array := _array(hint)) is not None:
        return _is_array(value, array)
    if (quantity := quantity_of(hint)) is not None:
        return isinstance(value, Estimate) and value.value.ndim == len(quantity.dims)
    return fits_type(value, hint, with_nan=True)


def hashed(stored: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the hash over JSON values, without the hash itself, and arrays."""
    digest = hashlib.sha256(json.dumps(stored, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _is_array(value: object, hint: type[AbstractArray]) -> bool:
    """Check dtype and number of axes. `isinstance` would compare axes with those of the surrounding checked call."""
    if not isinstance(value, np.ndarray) or value.ndim != len(_axes(hint)):
        return False
    dtypes: Any = hint.dtypes
    return value.dtype.name in dtypes if isinstance(dtypes, list | tuple) else True  # Shaped allows any dtype


def _axes(hint: object) -> tuple[str, ...]:
    """Return the axes of a jaxtyping annotation or of an estimate; empty for other types."""
    if (quantity := quantity_of(hint)) is not None:
        return quantity.dims
    return () if (own := _array(hint)) is None else tuple(own.dim_str.split())


def _along(hint: object) -> tuple[str, ...]:
    """Return the axes whose entries a tuple describes one by one: "layer" in `Annotated[tuple[str, ...], "layer"]`."""
    parts = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    return tuple(part for part in parts if isinstance(part, str))


def write_run(
    path: Path, reports: Mapping[str, object], extra: Mapping[str, Any], table: "pd.DataFrame", page: Callable[[], str]
) -> None:
    """Write reports, other JSON content, the tidy table and the page into a folder; all or none.

    Raises:
        OutputFault: The folder cannot be written, or holds other files than a report.
    """
    check_target(path)
    with atomic_directory(path) as temporary:
        write(temporary, {key: parts_of(report) for key, report in reports.items()}, extra)
        table.to_parquet(temporary / METRICS)
        (temporary / HTML).write_text(page(), encoding="utf-8", errors="replace")


def write_page(text: str, path: str | PathLike[str] | None) -> str:
    """Return the page unchanged; with a path, also write it there atomically.

    Raises:
        OutputFault: The file cannot be written.
    """
    if path is not None:
        with atomic_file(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="replace")
    return text


def read_parts(
    path: Path, kinds: Mapping[str, type[R]], joined: Callable[[type[R], str], type[R]] | None = None
) -> tuple[dict[str, R], dict[str, Any], tuple[str, ...]]:
    """Return the reports of these kinds in a folder, the other JSON content, and the names of unknown kinds.

    `joined` returns the kind of reports that were joined along an axis.

    Raises:
        OutputFault: The folder has no complete report, one with fields of other types, or a provenance of another form.
    """
    parts, extra = read(path)
    if not _is_provenance(extra.get(ORIGIN)):
        raise OutputFault(f"{path} does not say of what model and task its reports are: run it again.")
    if not fits((extra.get("skipped"), extra.get("inapplicable", {})), tuple[Mapping[str, str], ...]):
        raise OutputFault(f"{path} lists the skipped probes in an unknown form: run it again.")
    # A function that was passed as a probe has a name of its own: its report states the kind.
    found = {key: kinds.get(key) or kinds.get(str(own.get("made_by"))) for key, (own, _) in parts.items()}
    unknown = tuple(sorted(key for key, kind in found.items() if kind is None))
    reports = dict[str, R]()
    for key, (scalars, arrays) in parts.items():
        if (kind := found[key]) is None:
            continue
        kind = joined(kind, str(scalars[JOINED])) if joined and JOINED in scalars else kind
        where = f"{path}: report {key!r}"
        values = completed(kind, fields_of(kind, scalars, arrays, where))
        check_fields(kind, values, where)
        reports[key] = kind(**values)
    return reports, extra, unknown


def _is_provenance(stored: object) -> bool:
    """Return whether it names model and task; an empty provenance is that of reports made by hand."""
    match stored:
        case {"model": {"name": str(), "architecture": str()}, "task_label": str(), **rest}:
            return all(fits(rest[key], hint) for key, hint in _SOURCE.items() if key in rest)
    return stored == {}


def check_target(path: Path) -> None:
    """Check that a run directory can be written here, before any work is done.

    Raises:
        OutputFault: It cannot be written, or the directory holds other files than a report.
    """
    try:
        entries = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    except OSError as error:
        raise OutputFault(f"cannot look into {path}: {error.strerror}.") from error
    if foreign := [name for name in entries if name not in _OURS and not is_temporary(name)]:
        named = ", ".join(foreign[:3])
        raise OutputFault(f"{path} holds something else than a report ({named}); name an empty or a new directory.")
    check_directory(path)
