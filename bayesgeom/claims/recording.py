"""Recording measurements: reports into the source repository, numbers into the package's `measured.toml`."""

import datetime as dt
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from bayesgeom.claims.claim import Claim, Measurement, Origin, Run, Value
from bayesgeom.claims.loading import FOLDER, MEASURED, load
from bayesgeom.claims.needs import arguments_of, check_needs
from bayesgeom.claims.reading import origin_of, values_of
from bayesgeom.claims.reproduction import machine
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import atomic_file
from bayesgeom.results.folder import HTML, METRICS
from bayesgeom.results.storage import JSON


def record(claim: Claim, repository: Path, *, stale: set[Path] | None = None) -> Measurement:
    """Record the numbers of a claim.

    An existing report is read; a missing one is made by the claim's command. A number that was added to a run after the
    last recording is therefore read from the existing report. Numbers of a run without a folder for its report, which
    needs trainings that do not exist yet, are left out.

    Args:
        claim: The claim.
        repository: Root of the source checkout, which contains the reports.
        stale: Folders of reports, relative to `repository`, to make again. Each is removed from the set once made.

    Returns:
        The measurement, which is also written to the package's file.

    Raises:
        InvalidArgument: If no run defines numbers and names a report.
    """
    if not claim.recordable:
        raise InvalidArgument(
            f"claim {claim.id} defines no numbers, or no folder for its report: nothing can be recorded."
        )
    values: dict[str, Value] = {}
    origins: dict[str, Origin] = {}
    for run in claim.recordable:
        folder = repository / str(run.report)
        if not (folder / JSON).is_file() or (stale is not None and Path(str(run.report)) in stale):
            _make(claim, run, folder)
            if stale is not None:
                stale.discard(Path(str(run.report)))
        values.update(values_of(run, folder))
        origins[run.name] = origin_of(folder)
    found = Measurement(
        date=dt.datetime.now(dt.UTC).date().isoformat(), machine=machine(), numbers=values, origins=origins
    )
    _write({**{own.id: own.measured for own in load().values() if own.measured is not None}, claim.id: found})
    load.cache_clear()
    return found


def _make(claim: Claim, run: Run, folder: Path) -> None:
    from bayesgeom.cli import parsed

    check_needs(claim)
    parsed([*arguments_of(run), "--out", str(folder)])()
    for name in (HTML, METRICS):  # the repository keeps numbers; page and table can be made from them
        (folder / name).unlink()


def _write(measurements: Mapping[str, Measurement]) -> None:
    order = [claim_id for claim_id in load() if claim_id in measurements]
    blocks = [_block(claim_id, measurements[claim_id]) for claim_id in order]
    head = "# Written by `bayesgeom reproduce --record`; criteria are in the other files. nan: there is none.\n\n"
    with (
        resources.as_file(resources.files("bayesgeom.claims") / FOLDER / MEASURED) as path,
        atomic_file(path) as temporary,
    ):
        temporary.write_text(head + "\n".join(blocks), encoding="utf-8")


def _block(claim_id: str, measured: Measurement) -> str:
    lines = [f"[{claim_id}]", f"date = {json.dumps(measured.date)}", f"machine = {json.dumps(measured.machine)}"]
    for kind, entries in (("numbers", measured.numbers), ("origins", measured.origins)):
        lines.append(f"[{claim_id}.{kind}]")
        lines += [f"{name} = {{ {_fields(vars(entry))} }}" for name, entry in entries.items()]
    return "\n".join(lines) + "\n"


def _fields(entry: Mapping[str, object]) -> str:
    written = {name: value for name, value in entry.items() if value or name not in ("why_not", "over")}
    fields = {name: json.dumps(value) if isinstance(value, str) else repr(value) for name, value in written.items()}
    return ", ".join(f"{name} = {value}" for name, value in fields.items())
