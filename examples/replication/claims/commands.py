"""The commands on claims: `list`, `table`, `reproduce` and `record`."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

import bayesgeom
from bayesgeom.core.errors import BayesGeomError, InvalidArgument, unknown_name
from bayesgeom.core.files import RUNS
from examples.replication.claims.claim import Claim, Measurement, verdict
from examples.replication.claims.loading import find, load
from examples.replication.claims.pages import overview, titles, write
from examples.replication.claims.reading import values_of
from examples.replication.claims.reproduction import record, reproduce

Ids = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ID …")]
CLONE = Path(__file__).parents[3]


def list_claims() -> None:
    """List the claims: id, verdict, time of one CPU core to reproduce it, and the claim."""
    print("\n".join(_columns(titles(load().values()))))


def table(*, write_pages: bool = False) -> None:
    """Print the verdict on every claim, what was measured, and the strongest baseline; `claims.md` has the details.

    Args:
        write_pages: Write the generated parts of `claims.md` and `interventions.md` instead.
    """
    if write_pages:
        print("\n".join(f"written: {path}" for path in write(CLONE)) or "every page is up to date")
    else:
        print("\n".join(_columns(overview(load().values()))))


def reproduce_claims(
    ids: Ids = (), *, every: bool = False, out: Path | None = None, runs: Path = RUNS, on: str = ""
) -> int:
    """Measure claims again, and compare values, ends of intervals, baselines and verdicts with the recorded ones.

    The status is 1 if something differs. `list` shows how long each claim takes.

    Args:
        ids: Ids of claims, such as B1 or G3.
        every: All claims, which takes hours. A claim that cannot be run is named, and the next one follows.
        out: Directory for the reports and the comparison, a folder per claim. Default: they are not saved.
        runs: Folder of trainings, searched for checkpoints that are not shipped.
        on: Engine on which the commands run, such as local:4 or ray (see `bayesgeom.executors`). Default: this process.
    """
    chosen, are_same = _chosen(ids, every), True
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(bayesgeom.executors.connect(on)) if on else None
        for claim in chosen:
            print(f"{claim.id}: {claim.claim}{claim.duration and f' About {claim.duration} of one CPU core.'}")
            folder = None if out is None else out / claim.id
            try:
                again = reproduce(claim, out=folder, runs=runs, executor=executor)
            except BayesGeomError as error:
                if not every:
                    raise
                print(f"not run: {error}\n")
                continue
            if folder is not None:
                again.save(folder)
            print(f"\n{again.table()}\n")
            are_same &= again.is_reproduced
    return 0 if are_same else 1


def judge(claim: str, report: Path, /, *, network: str = "") -> None:
    """Apply a claim's tests to a saved report, such as that of a network of your own.

    Args:
        claim: Id of the claim, such as A1.
        report: Directory of the report, as the command of the claim saves it with --out.
        network: The network of the claim whose rows of the report are read, such as hmm-s5. Default: its first one.
    """
    own = find(claim)
    networks = list(dict.fromkeys(case.network for case in own.cases))
    chosen = f"`{network}`" if network else networks[0]
    if chosen not in networks:
        raise unknown_name("network", network, [name.strip("`") for name in networks])
    cases = tuple(case for case in own.cases if case.network == chosen)
    read = {name for case in cases for test in case.tests for name in (test.number, test.than)}
    runs = tuple(run for run in own.runs if read & run.numbers.keys())
    numbers = {name: value for run in runs for name, value in values_of(run, report).items()}
    measured = Measurement(date="", machine="", numbers=numbers, origins={})
    print("\n".join(_columns(overview([replace(own, cases=cases, runs=runs, measured=measured)]))))


def record_claims(ids: Ids = (), *, every: bool = False, fresh: bool = False) -> None:
    """Write the measured numbers of claims into `measured.toml`; missing reports are made in `results`.

    Args:
        ids: Ids of claims.
        every: All claims.
        fresh: Make the reports again instead of reading the stored ones.
    """
    chosen = _chosen(ids, every)
    reports = {Path(run.report) for claim in chosen for run in claim.runs if run.report is not None}
    stale = reports if fresh else set()
    for claim in chosen:
        if not claim.recordable:
            print(f"{claim.id}: no numbers to record")
            continue
        measured = record(claim, CLONE, stale=stale)
        new = f", new: {', '.join(claim.unrecorded)}" if claim.unrecorded else ""
        print(f"{claim.id}: {len(measured.numbers)} numbers{new}, {verdict(claim, measured.numbers)}")


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, with aligned columns before the last one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return ["  ".join([*map(str.ljust, row, widths), row[-1]]) for row in rows]


def _chosen(ids: tuple[str, ...], every: bool) -> list[Claim]:
    if not ids and not every:
        raise InvalidArgument("name a claim, such as B1, or pass --every.")
    return [find(claim_id) for claim_id in ids] or list(load().values())
