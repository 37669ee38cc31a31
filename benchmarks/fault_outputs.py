"""Faults of outputs: odd paths, closed streams, kills between two steps, two writers of one directory."""

import contextlib
import errno
import functools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.core.errors import BayesGeomError
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.storage import write_page, write_run
from benchmarks.fault_files import RECIPE, TASK, checkpoint, held, report
from benchmarks.faults import Accepted, Case

STEPS = ("replace", "mkdir", "rmdir", "unlink", "chmod")  # functions of `os` with which a directory is written
CALLS = 4  # of each: the first ones
WRITERS, ROUNDS = 4, 40
ENCODINGS = ("ascii", "cp1252", "utf-8", "utf-16", "cp037", "latin-1")
ODD_PATHS = (
    "", ".", "..", "/", "~", " ", "\t", "a\nb", "a\x1b[31mb", "\u202egpj", "e\u0301", "x" * 215, "x" * 216, "x" * 255,
    "x" * 256, "é" * 120, "a/" * 500 + "b", "new", "old", "old/", "./old//", "old/../old", "old/..", "old/../new",
    "old/report.json", "old/report.json/x", "full", "full/x", "file", "file/x", "dangling", "to-old", "to-file", "loop",
    "loop/x", "/dev/null/x", "/proc/x", "/sys/x", "read-only/x", "pipe", "pipe/x", "damaged",
    os.fsdecode(b"caf\xe9"), os.fsdecode(b"caf\xe9/x"), "to-old/x", "old/parts/x", "con", "-", "x\\y", "CON:",
)  # fmt: skip


def outputs(folder: Path) -> Iterator[Case]:
    """A report written to every odd path: as a directory, and as a page."""
    whole, place = report(folder / "whole"), folder / "here"
    save = saver(Diagnosis.load(whole))
    page = functools.partial(write_page, "a page")
    for path in ODD_PATHS:
        yield Case(f"save {path!r:.40}", functools.partial(_written, place, whole, path, save, is_directory=True))
        if path != "old/report.json":  # allowed, and then the old report is damaged
            act = functools.partial(_written, place, whole, path, page, is_directory=False)
            yield Case(f"to_html {path!r:.40}", act)


def _prepare(folder: Path, whole: Path) -> None:
    """A folder with an old report, a damaged one, files of somebody else, links in every form, and a pipe.

    The pipe stands for every special file: a device of the machine is nothing to try this on.
    """
    _remove(folder)
    shutil.copytree(whole, folder / "old")
    shutil.copytree(whole, folder / "damaged")
    (folder / "damaged" / "report.json").write_bytes(b'{"schema": 3, "reports": \xff\x00')
    (folder / "full").mkdir()
    for name in ("full/thesis.tex", "file"):
        (folder / name).write_text("precious")
    os.mkfifo(folder / "pipe")
    (folder / "read-only").mkdir(mode=0o500)
    for name, to in {"dangling": "nowhere/x", "to-old": "old", "to-file": "file", "loop": "loop"}.items():
        (folder / name).symlink_to(to)


def _written(folder: Path, whole: Path, path: str, write: Callable[[Path], object], *, is_directory: bool) -> None:
    """Write to a path; what was there before is whole afterwards, or replaced on purpose."""
    _prepare(folder, whole)
    expected = held(Diagnosis.load(whole))
    with contextlib.chdir(folder):
        fault: BayesGeomError | None = None
        try:
            write(Path(path))
        except BayesGeomError as error:
            fault = error
        precious = ["full/thesis.tex", *(["file"] if path not in ("file", "to-file") else [])]
        if any((folder / name).read_text() != "precious" for name in precious):
            raise Accepted("a file of somebody else was changed")
        if held(Diagnosis.load(folder / "old")) != expected:
            raise Accepted("the old report is gone")
        if not (folder / "pipe").is_fifo():
            raise Accepted("the pipe was replaced")
        if left := [own.name for own in folder.iterdir() if ".tmp" in own.name]:
            raise Accepted(f"it left {left[0]}")
        if fault is not None:
            raise fault
        if is_directory and held(Diagnosis.load(Path(path))) != expected:
            raise Accepted("it reads as something else")


def saver(diagnosis: Diagnosis) -> Callable[[Path], None]:
    """`diagnosis.save` without the time that it takes to draw the page."""
    table = diagnosis.to_pandas()
    extra = {"skipped": diagnosis.skipped, "inapplicable": {}, "provenance": diagnosis.provenance}
    return lambda path: write_run(path, diagnosis.reports, extra, table, lambda: "a page")


def streams(folder: Path) -> Iterator[Case]:
    """Commands whose standard output, error output or both cannot be written, and every encoding of a locale."""
    model = checkpoint(folder / "modèl")
    line = ["diagnose", str(model), "--n", "4", "--n-untrained", "0", "--probes", "calibration"]
    lines = {"diagnose": line, "checkpoints": ["checkpoints"], "no such model": ["diagnose", "no\n-such", "--n", "4"]}

    for name, given in lines.items():
        out = folder / "öut" if given == line else None
        for kind, change in {"closed": _closed, "full": _full, "a closed pipe": _piped}.items():
            for changed in ((1,), (2,), (1, 2)):
                act = functools.partial(_streamed, folder, given, out, functools.partial(change, *changed))
                yield Case(f"{name}, {changed} {kind}", act)
        for encoding in ENCODINGS:
            act = functools.partial(_streamed, folder, given, out, _closed, encoding=encoding)
            yield Case(f"{name} in {encoding}", act)


def _closed(*streams: int) -> None:
    for stream in streams:
        os.close(stream)


def _full(*streams: int) -> None:
    for stream in streams:
        os.dup2(os.open("/dev/full", os.O_WRONLY), stream)


def _piped(*streams: int) -> None:
    read, write = os.pipe()
    os.close(read)
    for stream in streams:
        os.dup2(write, stream)


def _streamed(
    folder: Path, given: Sequence[str], out: Path | None, change: Callable[[], object], *, encoding: str = "utf-8"
) -> None:
    """The command ends with 0 or 2, without a traceback, and its report is there whatever its streams are."""
    shutil.rmtree(folder / "öut", ignore_errors=True)
    status, text = in_child(folder, change, [*given, *([] if out is None else ["--out", str(out)])], encoding)
    if status not in (0, 2) or "Traceback" in text:
        raise Accepted(f"status {status}: {text[-200:]}")
    if out is not None and not held(Diagnosis.load(out)):
        raise Accepted("there is no report")


def in_child(
    folder: Path, change: Callable[[], object], line: Sequence[str], encoding: str = "utf-8"
) -> tuple[int, str]:
    """Run a command in a copy of this process with changed streams; its exit status, and what it wrote."""

    def run() -> int:
        written = os.open(folder / "written", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(written, 1)
        os.dup2(written, 2)
        change()
        sys.stdout = _stream(1, encoding, "strict")
        sys.stderr = _stream(2, encoding, "backslashreplace")
        status = main(line)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status

    status = forked(run)
    return status, (folder / "written").read_bytes().decode("utf-8", "replace")


def _stream(number: int, encoding: str, errors: str) -> Any:
    """A standard stream as the interpreter makes it: None where the descriptor is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    return open(number, "w", encoding=encoding, errors=errors, closefd=False)


def forked(function: Callable[[], int], seconds: float = 40.0) -> int:
    """Run a function in a copy of this process; its status, and 99 for an exception. A copy that hangs is ended."""
    child = os.fork()
    if not child:
        status = 99
        try:
            status = function()
        finally:
            os._exit(status)
    end = time.monotonic() + seconds
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise Accepted(f"hang: more than {seconds:g} s")
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(found[1])


def writers() -> dict[str, tuple[Callable[[Path], object], Callable[[Path], object], Callable[[Path], object]]]:
    """What writes the first version of a directory, what writes another one there, and what reads it."""
    model = bayesgeom.as_model(RECIPE.model_config().build(seed=0))
    first, other = (bayesgeom.diagnose(model, TASK, n=n, n_untrained=0, probes=["calibration"]) for n in (4, 5))
    return {
        "report": (saver(first), saver(other), lambda path: held(bayesgeom.load_report(path))),
        "checkpoint": (
            checkpoint,
            lambda path: checkpoint(path, step=1),
            lambda path: bayesgeom.load(path).spec.weights_hash,
        ),
    }


def kills(folder: Path) -> Iterator[Case]:
    """The process is killed, or the disk is full, before or after each step of replacing a directory."""
    for name, (first, other, read) in writers().items():
        versions = {}
        for which, write in {"first": first, "other": other}.items():
            write(folder / which / "own")
            versions[which] = read(folder / which / "own")
        for step in STEPS:
            for call in range(CALLS):
                for fault in ("killed before", "killed after", "no space"):
                    breaking = functools.partial(_break, step, call, fault)
                    act = functools.partial(_broken_off, folder / "run" / "own", first, other, read, versions, breaking)
                    yield Case(f"{name}: {fault} os.{step} {call}", act)


def _break(step: str, call: int, fault: str) -> None:
    """Let one call of a function of `os` end the process, or fail as on a full disk."""
    plain, numbers = getattr(os, step), iter(range(10**6))

    def broken(*given: Any, **named: Any) -> Any:
        if next(numbers) != call:
            return plain(*given, **named)
        if fault == "no space":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if fault == "killed after":
            plain(*given, **named)
        os._exit(9)

    setattr(os, step, broken)


def _broken_off(
    path: Path,
    first: Callable[[Path], object],
    other: Callable[[Path], object],
    read: Callable[[Path], object],
    versions: dict[str, object],
    breaking: Callable[[], None],
) -> None:
    """What is there afterwards is one of the versions, whole, and writing again succeeds and leaves nothing."""
    _remove(path.parent)
    first(path)

    def write() -> int:
        breaking()
        try:
            other(path)
        except BayesGeomError:
            return 2
        return 0

    status = forked(write)
    if status not in (0, 2, 9):
        raise Accepted(f"status {status}")
    if read(path) not in ([versions["other"]] if status == 0 else versions.values()):
        raise Accepted(f"status {status}, and neither version is there")
    other(path)
    if read(path) != versions["other"]:
        raise Accepted("writing again changed nothing")
    if left := [own.name for own in path.parent.iterdir() if own.name != path.name]:
        raise Accepted(f"it left {left[0]}")


def at_once(folder: Path) -> Iterator[Case]:
    """Several processes write one directory at the same time: none fails, and what is there is whole."""
    for name, (first, other, read) in writers().items():
        yield Case(
            f"{name}: {WRITERS} writers", functools.partial(_together, folder / name / "own", first, other, read)
        )


def _together(
    path: Path, first: Callable[[Path], object], other: Callable[[Path], object], read: Callable[[Path], object]
) -> None:
    def write(which: int) -> int:
        for number in range(ROUNDS):
            (first, other)[(which + number) % 2](path)
        return 0

    children = []
    for which in range(WRITERS):
        child = os.fork()
        if not child:
            status = 99
            try:
                status = write(which)
            finally:
                os._exit(status)
        children.append(child)
    failed = [status for child in children if (status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))]
    if failed:
        raise Accepted(f"{len(failed)} of {WRITERS} writers failed")
    read(path)
    if left := [own.name for own in path.parent.iterdir() if own.name != path.name]:
        raise Accepted(f"they left {left[0]}")


def _remove(path: Path) -> None:
    if (path / "read-only").is_dir():
        (path / "read-only").chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
