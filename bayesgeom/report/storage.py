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
from bayesgeom.core.errors import allowed_values, quoted
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
from bayesgeom.report.estimate import KINDS, Baseline, Coordinate, Estimate, Quantity, Unit

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R")  # a report

SCHEMA = 4  # a number is an estimate, with the code of a reason by entry
JSON, ARRAYS = "report.json", "arrays.safetensors"
HASH, ORIGIN = "hash", "provenance"
OTHER_VERSION = "other_version"  # key of the provenance: by report, the fields that a file lacks or that are ignored
_IN_ARRAYS = "array"  # in place of a number: the value is among the arrays
_LEVELS = ("value", "low", "high")
PROGRESS = "progress.safetensors"  # of an interrupted battery
PARTS = "parts"  # results per snapshot of an interrupted analysis
METRICS, HTML = "metrics.parquet", "report.html"
ALONE = "alone"  # whether a folder holds one report, not a diagnosis
JOINED = "joined_along"  # field of a joined report: the axis along which reports of its kind were joined
VIEWER = "inside"  # the report that may be saved with one that is alone
_PROVENANCE: Mapping[str, Any] = {  # what tables and pages read, where it is present
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
    if not isinstance(stored, dict) or not isinstance(schema := stored.get("schema"), int):
        raise OutputFault(f"{unreadable}: {JSON} has no schema number.")
    if schema > SCHEMA:
        raise OutputFault(f"{path} has schema {schema}; this bayesgeom reads up to {SCHEMA}. Upgrade bayesgeom.")
    if schema < SCHEMA:
        raise OutputFault(
            f"{path} has schema {schema}; this bayesgeom reads {SCHEMA}. Run the command that made it again."
        )
    stated = stored.pop(HASH, None)
    if stated != hashed(stored, arrays):
        raise OutputFault(f"{path} was changed after it was written: {JSON} and {ARRAYS} do not match their hash.")
    if not isinstance(scalars := stored.pop("reports", None), dict):
        raise OutputFault(f"{unreadable}: {JSON} lists none.")
    del stored["schema"]
    _check_owned(path, arrays, scalars)
    parts = {}
    for key, values in scalars.items():
        if not isinstance(values, dict):
            raise OutputFault(f"{path}: report {key!r} is not a table of fields.")
        own = {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith(f"{key}/")}
        parts[key] = ({name: decoded_json(value) for name, value in values.items()}, own)
    return parts, decoded_json(stored)


def _check_owned(path: Path, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, Any]) -> None:
    """Raise `OutputFault` if the file holds an array that belongs to no report: it would be lost without notice."""
    if stray := sorted(name for name in arrays if name.partition("/")[0] not in scalars or "/" not in name):
        raise OutputFault(f"{path}: {ARRAYS} holds arrays of no report: {', '.join(stray[:3])}. Make it again.")


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
    form = f"{where}: field {name!r} holds no estimate"
    wanted = {*_LEVELS, "resampled", "n", "baselines"}
    is_known = isinstance(stored, Mapping) and wanted <= stored.keys()
    if not is_known or not fits(stored["baselines"], tuple[Mapping[str, Any], ...]):
        raise OutputFault(f"{form}: its parts are not {', '.join(sorted(wanted))}.")
    if not fits((stored["resampled"], stored["n"]), tuple[str, int]):
        raise OutputFault(f"{form}: resampled or n is of another type.")

    def level(own: Mapping[str, Any], key: str, part: str) -> np.ndarray:
        value = own[part]
        if value == _IN_ARRAYS and (array := arrays.get(f"{key}.{part}")) is not None:
            return array
        if isinstance(value, str) or not fits(value, float):
            raise OutputFault(f"{form}: {key}.{part} is {_described(value)}, which is no number and no stored array.")
        return np.asarray(value, dtype=np.float64)

    def levels(own: Mapping[str, Any], key: str) -> dict[str, Any]:
        return {part: None if part != "value" and own[part] is None else level(own, key, part) for part in _LEVELS}

    whole = levels(stored, name)
    baselines = []
    for index, own in enumerate(stored["baselines"]):
        if own.keys() != {"kind", "name", *_LEVELS} or own["kind"] not in KINDS or not isinstance(own["name"], str):
            raise OutputFault(f"{form}: baseline {index} needs kind ({', '.join(KINDS)}), name, value, low and high.")
        baselines.append(Baseline(kind=own["kind"], name=own["name"], **levels(own, f"{name}.{index}")))
    shapes = {np.shape(part) for part in whole.values() if part is not None}
    shapes |= {part.shape for own in baselines for part in (own.value, own.low, own.high) if part is not None}
    kinds = {part.dtype.kind for part in whole.values() if part is not None}
    if len(shapes) != 1 or kinds != {"f"}:
        raise OutputFault(f"{form}: value, ends and baselines have shapes {sorted(shapes)}.")
    return Estimate(
        **whole,
        resampled=stored["resampled"],
        n=stored["n"],
        reason=_reason_of(stored, arrays.get(f"{name}.reason"), whole["value"].shape, form),
        baselines=tuple(baselines),
    )


def _reason_of(
    stored: Mapping[str, Any], array: np.ndarray | None, shape: tuple[int, ...], form: str
) -> np.ndarray | None:
    """Return the codes of an estimate."""
    if "reason" not in stored:
        return np.full(shape, int(Reason.NOT_STORED)) if stored["low"] is not None else None
    codes = array if stored["reason"] == _IN_ARRAYS else stored["reason"]
    if codes is None and stored["reason"] is None:
        return None
    known_codes = [int(code) for code in Reason]
    are_numbers = isinstance(codes, np.ndarray) or fits(codes, int)
    if codes is None or not are_numbers or not np.isin(codes, known_codes).all() or np.shape(codes) != shape:
        raise OutputFault(f"{form}: its reason is not the number of a code for each entry.")
    return np.asarray(codes, dtype=np.int64)


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


def completed(kind: type, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return the fields of a report of another version: those it lacks are missing values, unknown ones are left out.

    A field with another number of axes is one that the file lacks.

    Args:
        kind: The report class.
        values: Field values by name.

    Returns:
        The field values, and the names of fields that the file lacks and of those that are ignored; empty without any.
    """
    hints = {own.name: own.type for own in _stored(kind)}
    optional = {own.name for own in _stored(kind) if own.default is not MISSING or own.default_factory is not MISSING}
    found = {name: value for name, value in values.items() if name in hints and _has_axes(value, hints[name])}
    lacks = sorted(hints.keys() - found.keys())
    ignored = sorted(values.keys() - found.keys() - vars(kind).keys())  # a constant of the class is not lost
    sizes: dict[str, int] = {}
    for name, value in found.items():
        array = value.value if isinstance(value, Estimate) else value
        sizes |= dict(zip(_axes(hints[name]), np.shape(array), strict=False)) if isinstance(array, np.ndarray) else {}
        if isinstance(value, tuple) and name.endswith("s"):
            sizes.setdefault(name.removesuffix("s"), len(value))
    found |= {name: _not_stored(name, hints[name], sizes) for name in lacks if name not in optional}
    return found, {what: names for what, names in (("lacks", lacks), ("ignored", ignored)) if names}


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
            raise OutputFault(f"{where}: field {name!r} holds {_described(value)}, which is not {_named(hints[name])}.")
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


def _described(value: object) -> str:
    if isinstance(value, Estimate):
        return f"an estimate of shape {value.value.shape}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return quoted(value)


def _named(hint: Any) -> str:
    if (quantity := quantity_of(hint)) is not None:
        return f"an estimate along ({quantity.axes})"
    return allowed_values(hint) if (array := _array(hint)) is None else array.__name__


def write_run(
    path: Path, reports: Mapping[str, object], extra: Mapping[str, Any], table: "pd.DataFrame", page: Callable[[], str]
) -> None:
    """Write reports, other JSON content, the tidy table and the page into a folder; all or none.

    Raises:
        OutputFault: The folder cannot be written, or holds other files than a report.
    """
    check_target(path)
    with atomic_directory(path) as temporary:
        write_parts(temporary, reports, extra)
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


def write_parts(path: Path, reports: Mapping[str, object], extra: Mapping[str, Any]) -> None:
    """Write reports and other JSON content as `report.json` and `arrays.safetensors` into a folder."""
    write(path, {key: parts_of(report) for key, report in reports.items()}, extra)


def read_parts(
    path: Path, kinds: Mapping[str, type[R]], joined: Callable[[type[R], str], type[R]] | None = None
) -> tuple[dict[str, R], dict[str, Any], tuple[str, ...]]:
    """Return the reports of these kinds in a folder, the other JSON content, and the names of unknown kinds.

    `joined` returns the kind of reports that were joined along an axis.

    Raises:
        OutputFault: The folder has no complete report, one with fields of other types, or a provenance of another form.
    """
    parts, extra = read(path)
    if "skipped" not in extra or not _is_provenance(extra.get(ORIGIN)):
        raise OutputFault(f"{path} does not say of what model and task its reports are: run it again.")
    if not fits((extra["skipped"], extra.get("inapplicable", {})), tuple[Mapping[str, str], ...]):
        raise OutputFault(f"{path} lists the skipped probes in an unknown form: run it again.")
    # A function that was passed as a probe has a name of its own: its report states the kind.
    whole = _split(parts, kinds)
    found = {key: kinds.get(key) or kinds.get(str(own.get("made_by"))) for key, (own, _) in whole.items()}
    unknown = tuple(sorted(key for key, kind in found.items() if kind is None))
    reports, notes = dict[str, R](), dict[str, dict[str, list[str]]]()
    for key, (scalars, arrays) in whole.items():
        if (kind := found[key]) is None:
            continue
        kind = joined(kind, str(scalars[JOINED])) if joined and JOINED in scalars else kind
        where = f"{path}: report {key!r}"
        values, noted = completed(kind, fields_of(kind, scalars, arrays, where))
        notes |= {key: noted} if noted else {}
        check_fields(kind, values, where)
        reports[key] = kind(**values)
    if notes:
        extra = {**extra, ORIGIN: {**extra[ORIGIN], OTHER_VERSION: notes}}
    return reports, extra, unknown


def _split(parts: Parts, kinds: Mapping[str, type[R]]) -> Parts:
    """Return the parts, with fields that a report had up to version 0.2 as the reports that have them now.

    Such a report is left out if all of its numbers are missing: it did not apply to the task.
    """
    whole = dict(parts)
    for name, kind in kinds.items():
        source = vars(kind).get("split_from", "")
        if source not in parts or source not in kinds or name in parts:
            continue
        names, kept = ({field.name for field in _stored(each)} for each in (kind, kinds[source]))
        moved = _fields_within(parts[source], names)
        if any(array.dtype.kind == "f" and np.isfinite(array).any() for array in moved[1].values()):
            whole[name] = moved
        scalars, arrays = whole[source]
        stays = {key.split(".", maxsplit=1)[0] for key in (*scalars, *arrays)} - (names - kept)
        whole[source] = _fields_within(whole[source], stays)
    return whole


def _fields_within(
    part: tuple[Mapping[str, Any], Mapping[str, np.ndarray]], names: set[str]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    scalars, arrays = part
    chosen = {key: array for key, array in arrays.items() if key.split(".", maxsplit=1)[0] in names}
    return {key: value for key, value in scalars.items() if key in names}, chosen


def _is_provenance(stored: object) -> bool:
    """Return whether it names model and task; an empty provenance is that of reports made by hand."""
    match stored:
        case {"model": {"name": str(), "architecture": str()}, "task_label": str(), **rest}:
            return all(fits(rest[key], hint) for key, hint in _PROVENANCE.items() if key in rest)
        case {}:
            return stored.keys() <= {OTHER_VERSION}
    return False


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
