"""A run directory: written atomically, and checked when it is read."""

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import atomic_directory, atomic_file, check_directory, is_remains
from bayesgeom.results import storage
from bayesgeom.results.storage import ARRAYS, JSON

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R")  # a report

PROGRESS = "progress.safetensors"  # of an interrupted battery
PARTS = "parts"  # results per snapshot of an interrupted analysis
METRICS, HTML = "metrics.parquet", "report.html"
ALONE = "alone"  # whether a folder holds one report, not a diagnosis
_PROVENANCE: Mapping[str, Any] = {  # what tables and pages read, where it is present
    **dict.fromkeys(("arguments", "recipe", "task"), Mapping[str, Any]),
    "foreign_hooks": tuple[str, ...],
    "layers": Mapping[str, tuple[int, ...]],
    **dict.fromkeys(("served", "streamed"), Mapping[str, float]),  # language: quoted
}
_OURS = {JSON, ARRAYS, METRICS, HTML, PROGRESS, PARTS, ".DS_Store"}  # macOS creates .DS_Store


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
    storage.write(path, {key: storage.parts_of(report) for key, report in reports.items()}, extra)


def read_parts(path: Path, kinds: Mapping[str, type[R]]) -> tuple[dict[str, R], dict[str, Any], tuple[str, ...]]:
    """Return the reports of these kinds in a folder, the other JSON content, and the names of unknown kinds.

    Raises:
        OutputFault: The folder has no complete report, one with fields of other types, or a provenance of another form.
    """
    parts, extra = storage.read(path)
    if "skipped" not in extra or not _is_provenance(extra.get(storage.ORIGIN)):
        raise OutputFault(f"{path} does not say of what model and task its reports are: run it again.")
    if not storage.fits((extra["skipped"], extra.get("inapplicable", {})), tuple[Mapping[str, str], ...]):
        raise OutputFault(f"{path} lists the skipped probes in an unknown form: run it again.")
    unknown = tuple(sorted(parts.keys() - kinds.keys()))
    reports, notes = dict[str, R](), dict[str, dict[str, list[str]]]()
    for key, (scalars, arrays) in parts.items():
        if key in unknown:
            continue
        where = f"{path}: report {key!r}"
        values, noted = storage.completed(kinds[key], storage.fields_of(kinds[key], scalars, arrays, where))
        notes |= {key: noted} if noted else {}
        storage.check_fields(kinds[key], values, where)
        reports[key] = kinds[key](**values)
    if notes:
        extra = {**extra, storage.ORIGIN: {**extra[storage.ORIGIN], storage.OTHER_VERSION: notes}}
    return reports, extra, unknown


def _is_provenance(stored: object) -> bool:
    """Return whether it names model and task; an empty provenance is that of reports made by hand."""
    match stored:
        case {"model": {"name": str(), "architecture": str()}, "task_label": str(), **rest}:
            return all(storage.fits(rest[key], hint) for key, hint in _PROVENANCE.items() if key in rest)
        case {}:
            return stored.keys() <= {storage.OTHER_VERSION}
    return False


def check_target(path: Path) -> None:
    """Check that a run directory can be written here, before any work is done.

    Raises:
        OutputFault: It cannot be written, or the directory holds other files than a report.
    """
    check_holds_report_alone(path)
    check_directory(path)


def check_holds_report_alone(path: Path) -> None:
    """Check that a directory, if it exists, holds nothing but a report, so that it can be replaced.

    Raises:
        OutputFault: It holds other files, or cannot be read.
    """
    try:
        entries = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    except OSError as error:
        raise OutputFault(f"cannot look into {path}: {error.strerror}.") from error
    if foreign := [name for name in entries if name not in _OURS and not is_remains(name, of=_OURS)]:
        named = ", ".join(foreign[:3])
        raise OutputFault(f"{path} holds something else than a report ({named}); name an empty or a new directory.")
