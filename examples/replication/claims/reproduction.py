"""Run the commands of a claim again, and compare what they give with what is recorded, or record it."""

import contextlib
import datetime as dt
import io
import json
import math
import platform
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, final

from bayesgeom.core.errors import CheckpointFault, InvalidArgument, UnknownName
from bayesgeom.core.files import RUNS, atomic_file
from bayesgeom.core.text import aligned_table, number_text
from bayesgeom.models.checkpoint_files import FINISHED, checkpoints
from bayesgeom.report.storage import HTML, JSON, METRICS
from examples.replication.claims.claim import Claim, Measurement, Origin, Outcome, Run, Value, verdict
from examples.replication.claims.loading import FOLDER, MEASURED, find, load
from examples.replication.claims.reading import differing, origin_of, values_of

_INSTALLED = {"models/smollm2": "make real-model"}  # models that a command installs
_ENDS = {"value": "value", "low end": "lo", "high end": "hi", "baseline": "baseline"}  # fields of the parts that differ


class Executor(Protocol):
    """What runs a function elsewhere: an executor of `concurrent.futures`, or one of `bayesgeom.engine`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Return a future of `fn(*args)`."""


@final
@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The numbers of a claim measured again, next to the recorded ones.

    `differs` holds the parts that differ, of each number with a recorded value: see `reading.differing`. `not_run`
    lists the commands that were left out, with the way to make the checkpoints that they lack.
    """

    claim: Claim
    found: Mapping[str, Value]
    differs: Mapping[str, Sequence[str]]
    not_run: Sequence[str] = ()

    @property
    def recorded(self) -> Mapping[str, Value]:
        """The recorded numbers by name."""
        return {} if self.claim.measured is None else self.claim.measured.numbers

    @property
    def verdict(self) -> Outcome:
        """The verdict on the numbers measured again."""
        return verdict(self.claim, self.found)

    @property
    def is_reproduced(self) -> bool:
        """Whether value, interval and baseline of every recorded number, and the verdict, were reproduced."""
        return not any(self.differs.values()) and self.verdict == verdict(self.claim)

    def table(self) -> str:
        """Return recorded and reproduced numbers side by side, what differs, the verdicts, and what was not run."""
        rows = [("number", "recorded", "reproduced", "agrees")]
        for name, found in self.found.items():
            number, known = self.claim.numbers[name], self.recorded.get(name)
            agrees = ("no" if self.differs[name] else "yes") if name in self.differs else "–"
            before = "–" if known is None else known.text(number.unit)
            rows.append((number.label, before, found.text(number.unit), agrees))
        differing = [f"differs: {self.claim.numbers[name].label}: {self._parts(name)}" for name in self.differs]
        lines = [
            *aligned_table(rows),
            "",
            *(line for line, parts in zip(differing, self.differs.values(), strict=True) if parts),
        ]
        lines.append(f"verdict: recorded {verdict(self.claim)}, reproduced {self.verdict}")
        return "\n".join([*lines, *(f"not run: {command}" for command in self.not_run)])

    def _parts(self, name: str) -> str:
        """What differs of one number: now, and as recorded."""
        found, known, unit = self.found[name], self.recorded[name], self.claim.numbers[name].unit
        words = []
        for part in self.differs[name]:
            if part == "interval":
                words.append(f"interval: {found.why_not or found.text(unit)}, recorded {known.text(unit)}")
                continue
            own, before = (getattr(of, _ENDS[part]) for of in (found, known))
            scale = abs(before) if part in ("value", "baseline") else known.hi - known.lo
            share = (own - before) / scale if scale else math.nan
            change = f" ({share:+,.1%}{' of the width' * part.endswith('end')})" if math.isfinite(share) else ""
            words.append(f"{part} {number_text(own)}, recorded {number_text(before)}{unit and f' {unit}'}{change}")
        return "; ".join(words)

    def save(self, folder: Path) -> None:
        """Write the numbers, what differs and the verdicts as `reproduction.json` into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "claim": self.claim.id,
            "commands": [run.command for run in self.claim.runs],
            "found": {name: asdict(own) for name, own in self.found.items()},
            "recorded": {name: asdict(own) for name, own in self.recorded.items()},
            "differs": {name: list(parts) for name, parts in self.differs.items()},
            "verdict": str(self.verdict),
            "recorded_verdict": str(verdict(self.claim)),
            "not_run": list(self.not_run),
            "machine": machine(),
        }
        with atomic_file(folder / "reproduction.json") as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")


def reproduce(
    claim: str | Claim,
    *,
    out: str | Path | None = None,
    runs: str | Path = RUNS,
    executor: Executor | None = None,
) -> Reproduction:
    """Run a claim's commands and compare their numbers with the recorded ones.

    Only commands whose checkpoints exist are run, unless they have a stored report. `not_run` of the result lists the
    others.

    Args:
        claim: The claim or its id.
        out: Directory for the reports, one folder per run. Default: they are not saved.
        runs: Folder of training runs, searched for checkpoints that are not shipped.
        executor: Where the claim's commands run, one call of `submit` each (see `bayesgeom.engine`); `out` and `runs`
            are then directories that all workers see. Default: this process.

    Returns:
        Recorded and reproduced numbers, and the verdicts that follow from them.

    Raises:
        UnknownName: If there is no claim with this id.
        InvalidArgument: The claim has no command yet, a command failed, or an executor has no `out`.
        CheckpointFault: If a checkpoint is absent; the message states how to make it.
    """
    own = find(claim) if isinstance(claim, str) else claim
    if not any(run.command for run in own.runs):
        labels = ", ".join(number.label for number in own.numbers.values())
        raise InvalidArgument(f"{own.id} cannot be run: no command measures {labels} yet.")
    if executor is not None and out is None:
        raise InvalidArgument("name `out`: a directory that all workers of the executor see.")
    check_needs(own, Path(runs))
    chosen = runnable(own, Path(runs))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()) if out is None else out).resolve()
        lines = [(arguments_of(run, Path(runs).resolve()), str(folder / run.name)) for run in chosen]
        if executor is None:
            for line in lines:
                run_command(*line)
        else:
            for future in [executor.submit(run_command, *line) for line in lines]:
                future.result()
        found: dict[str, Value] = {}
        for run in chosen:
            found |= values_of(run, folder / run.name)
    return compared(own, found, chosen=chosen, runs=Path(runs))


def run_command(words: Sequence[str], out: str) -> None:
    """Run a command line, whose report is written into `out`, and drop what it prints.

    Raises:
        InvalidArgument: The command failed.
    """
    if words[0] == "bayesgeom":
        from bayesgeom.cli import main

        given = words[1:]
    else:
        from examples.replication.__main__ import main

        given = words[3:]  # after `python -m examples.replication`
    with contextlib.redirect_stdout(io.StringIO()):
        status = main([*given, "--out", out])
    if status:
        raise InvalidArgument(f"`{shlex.join(words)}` failed with status {status}; its message says why.")


def compared(
    claim: Claim,
    found: Mapping[str, Value],
    *,
    chosen: Sequence[Run] | None = None,
    runs: Path = RUNS,
) -> Reproduction:
    """Compare reproduced numbers with the recorded ones; `chosen` are the runs that were made (default: all).

    The others are listed as left out, with the way to make the checkpoints that `runs` lacks.
    """
    differs = {}
    if claim.measured is not None:
        is_same = claim.measured.machine == machine()
        for name, value in found.items():
            number, recorded = claim.numbers[name], claim.measured.numbers.get(name)
            if recorded is not None:
                differs[name] = differing(value, recorded, number.tolerance, is_same_machine=is_same)
    left_out = [run for run in claim.runs if chosen is not None and run not in chosen]
    not_run = [f"{run.command or ', '.join(run.numbers)} ({_ways_to(run, runs)})" for run in left_out]
    return Reproduction(claim=claim, found=found, differs=differs, not_run=tuple(not_run))


def machine() -> str:
    """Return the type of this machine, which determines the rounding of the numbers."""
    import torch

    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


# The checkpoints that a claim's commands need: where they are, and how to make them.


def arguments_of(run: Run, runs: Path = RUNS) -> list[str]:
    """Return the words of a run's command line; a checkpoint in `runs` is named by its path.

    `compare` names architectures instead of checkpoints, so it gets the folder.
    """
    shipped = checkpoints()
    words = shlex.split(run.command)
    placed = [_place(word, runs) if word in run.needs and word not in shipped else word for word in words]
    return [*placed, "--runs", str(runs)] if "compare" in words[1:4] and runs.resolve() != RUNS.resolve() else placed


def runnable(claim: Claim, runs: Path = RUNS) -> list[Run]:
    """Return the runs with a command, except those without a stored report whose checkpoints do not exist yet.

    All of them if no run would be left, so that `check_needs` names what is absent.
    """
    with_command = [run for run in claim.runs if run.command]
    return [run for run in with_command if run.report is not None or not _absent(run, runs)] or with_command


def check_needs(claim: Claim, runs: Path = RUNS) -> None:
    """Check that every checkpoint exists that the claim's `runnable` commands load.

    Raises:
        CheckpointFault: If one is absent; the message states how to make it.
    """
    absent = list(dict.fromkeys(name for run in runnable(claim, runs) for name in _absent(run, runs)))
    if absent:
        raise CheckpointFault(
            f"claim {claim.id} needs {', '.join(map(repr, absent))}: neither shipped nor in "
            f"{str(runs)!r}. {'. '.join(map(_way, absent))}."
        )


def _ways_to(run: Run, runs: Path) -> str:
    """How to make each absent checkpoint of a run."""
    return "; ".join(dict.fromkeys(map(_way, _absent(run, runs)))) if run.command else "no command measures this yet"


def _absent(run: Run, runs: Path) -> list[str]:
    return [name for name in run.needs if not _is_there(name, runs)]


def _is_there(name: str, runs: Path) -> bool:
    if name in _INSTALLED:
        return Path(name).exists()
    if "/" in name:  # on the Hugging Face hub: loading it says what is wrong
        return True
    return name in checkpoints() or (runs / name / FINISHED).is_dir()


def _place(name: str, runs: Path) -> str:
    path = runs / name / FINISHED
    return str(path) if path.is_dir() else name


def _way(name: str) -> str:
    from bayesgeom.training.recipes import RECIPES
    from examples.replication.training.recipes import recipe

    if name in _INSTALLED:
        return f"Install {name!r} with `{_INSTALLED[name]}` in a source checkout, and run the command there"
    base, _, seed = name.partition("-seed")
    try:
        found = recipe(name if not seed.isdecimal() else base)
    except UnknownName:
        return f"No recipe makes {name!r} yet"
    option = f" --seed {seed}" if seed.isdecimal() else ""
    train = "bayesgeom train" if found.name in RECIPES else "python -m examples.replication train"
    return f"Make {name!r} with `{train} {found.name}{option}`"


# Recording: reports into the clone, numbers into `measured.toml`.


def record(claim: Claim, clone: Path, *, stale: set[Path] | None = None) -> Measurement:
    """Record the numbers of a claim.

    An existing report is read; a missing one is made by the claim's command. A number that was added to a run after the
    last recording is therefore read from the existing report. Numbers of a run without a folder for its report, which
    needs trainings that do not exist yet, are left out.

    Args:
        claim: The claim.
        clone: Root of the clone, which contains the reports.
        stale: Folders of reports, relative to `clone`, to make again. Each is removed from the set once made.

    Returns:
        The measurement, which is also written to `measured.toml`.

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
        folder = clone / str(run.report)
        is_made = folder.is_file() or (folder / JSON).is_file()  # a table, or a report
        if not is_made or (run.command and stale is not None and Path(str(run.report)) in stale):
            _make(claim, run, folder)
            if stale is not None:
                stale.discard(Path(str(run.report)))
        values |= values_of(run, folder)
        origins[run.name] = origin_of(folder)
    date = dt.datetime.now(dt.UTC).date().isoformat()
    found = Measurement(date=date, machine=machine(), numbers=values, origins=origins)
    _write({**{own.id: own.measured for own in load().values() if own.measured is not None}, claim.id: found})
    load.cache_clear()
    return found


def _make(claim: Claim, run: Run, folder: Path) -> None:
    check_needs(claim)
    run_command(arguments_of(run), str(folder))
    for name in (HTML, METRICS):  # numbers are stored; page and table can be made from them
        (folder / name).unlink(missing_ok=True)


def _write(measurements: Mapping[str, Measurement]) -> None:
    blocks = [_block(claim_id, measurements[claim_id]) for claim_id in load() if claim_id in measurements]
    head = "# Written by `python -m examples.replication record`; the other files have criteria. nan: there is none.\n"
    with atomic_file(FOLDER / MEASURED) as temporary:
        temporary.write_text("\n".join([head, *blocks]), encoding="utf-8")


def _block(claim_id: str, measured: Measurement) -> str:
    lines = [f"[{claim_id}]", f"date = {json.dumps(measured.date)}", f"machine = {json.dumps(measured.machine)}"]
    for kind, entries in (("numbers", measured.numbers), ("origins", measured.origins)):
        lines.append(f"[{claim_id}.{kind}]")
        lines += [f"{name} = {{ {_fields(vars(entry))} }}" for name, entry in entries.items()]
    return "\n".join(lines) + "\n"


def _fields(entry: Mapping[str, Any]) -> str:
    written = {name: value for name, value in entry.items() if value or name not in ("why_not", "over")}
    fields = {name: json.dumps(value) if isinstance(value, str) else repr(value) for name, value in written.items()}
    return ", ".join(f"{name} = {value}" for name, value in fields.items())
