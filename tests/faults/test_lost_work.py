"""Nothing that was measured is lost: to the terminal, an old report, a full disk, a link, or a killed run."""

import ast
import errno
import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors
import safetensors.numpy

from bayesgeom.cli import main
from bayesgeom.core import files
from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import atomic_directory, atomic_file, check_directory
from bayesgeom.dynamics.measure import SnapshotNumbers
from bayesgeom.dynamics.run import SnapshotCache
from bayesgeom.report.diagnosis import Diagnosis
from tests.structure.source import ROOT
from tests.test_cli import QUICK, save

FULL = "I/O error: No space left on device (os error 28)"
COMMANDS = {
    "diagnose": ("tiny", *QUICK),
    "ablate": ("tiny", "--battery", "mlps", "--n", "5"),
    "relabel": ("tiny", "--n", "5"),
    "sweep": ("bijection:repeats=true", "--vary", "n_pairs=3,5", "--checkpoint", "tiny", "--n", "5"),
    "gradients": ("tiny", "--n", "5"),
    "intervene": ("tiny", "--n", "7", "--layers", "1", "--subspace", "random:2"),
    "length": ("tiny", "--task", "bijection:repeats=true", "--to", "6", "--untrained-rows", "--n", "5"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESGEOM_CHECKPOINTS", str(tmp_path / "checkpoints"))
    save(tmp_path / "checkpoints" / "tiny")
    return tmp_path


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def report(value: str, path: Path) -> None:
    """A directory that stands for a report."""
    path.mkdir(parents=True)
    (path / "report.json").write_text(value)


# --- what is printed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.slow
def test_a_full_standard_output_costs_no_report(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        status = main([command, *COMMANDS[command], "--out", "run"])
    assert status == 2
    assert names(Path("run")) == ["arrays.safetensors", "metrics.parquet", "report.html", "report.json"]
    output = capsys.readouterr().err
    assert output == (
        f"bayesgeom: cannot write to standard output: No space left on device. The report is complete: "
        f"{Path('run/report.html')}.\n"
    )


def test_a_closed_pipe_costs_no_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert main(["diagnose", *COMMANDS["diagnose"], "--out", "run"]) == 0
    assert len(Diagnosis.load("run")) == 1 and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("encoding", "errors"), [("ascii", "strict"), ("cp1252", "strict"), ("ascii", "surrogateescape")]
)
def test_any_encoding_of_standard_output_will_do(encoding: str, errors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    with io.TextIOWrapper(printed, encoding=encoding, errors=errors) as narrow, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", narrow)
        status = main(["diagnose", *COMMANDS["diagnose"], "--out", "run"])
        narrow.flush()
        text = printed.getvalue().decode(encoding)
        assert narrow.errors == errors, "the stream is left as it was"
    summary = Diagnosis.load("run").summary()
    assert status == 0 and "─" in summary and "--------" in text and "─" not in text
    assert [len(line) for line in summary.splitlines()] == [len(line) for line in text.splitlines()[:-2]]


def test_no_standard_output_at_all_will_do_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stderr", None)
        assert main(["diagnose", *COMMANDS["diagnose"], "--out", "run"]) == 0
        assert main(["diagnose", "nowhere"]) == 2
    assert len(Diagnosis.load("run")) == 1


def test_the_interpreter_adds_nothing_of_its_own() -> None:
    """What is still buffered when a process ends would fail there, with another status and a second message."""
    command = [sys.executable, "-m", "bayesgeom", "--help"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, env={"PYTHONPATH": str(ROOT)}, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (
        2,
        "bayesgeom: cannot write to standard output: No space left on device.\n",
    )


def test_commands_print_through_one_function() -> None:
    """`print` alone would meet a full or narrow standard output on its own, and before results are saved."""
    for function in ast.parse((ROOT / "bayesgeom" / "cli.py").read_text()).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        called = {node.id for node in calls if isinstance(node, ast.Name)}
        called |= {node.attr for node in calls if isinstance(node, ast.Attribute)}
        assert function.name in ("tell", "note") or "print" not in called, function.name
        assert function.name == "_conclude" or "save" not in called, f"{function.name}: return the report"


# --- the report that was there ----------------------------------------------------------------------------------------

OLD = {
    "no object": "[]",
    "no provenance": '{"schema": 1, "reports": {}, "skipped": {}, "provenance": []}',
    "no model": '{"schema": 1, "reports": {}, "skipped": {}, "provenance": {"model": 3, "task_label": 4}}',
    "nested": "[" * 100_000,
    "a number of 5,000 digits": '{"schema": ' + "1" * 5_000 + "}",
    "half a character": '{"schema": 1, "reports": {"\\ud800": {}}, "skipped": {}, '
    '"provenance": {"model": {"name": "\\ud800"}, "task_label": "x"}}',
}


@pytest.mark.parametrize("kind", OLD)
@pytest.mark.slow
def test_a_malformed_old_report_costs_nothing(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    report(OLD[kind], Path("run"))
    safetensors.numpy.save_file({"a/b": np.ones(3)}, Path("run") / "arrays.safetensors")
    assert main(["diagnose", *COMMANDS["diagnose"], "--out", "run"]) == 0
    assert len(Diagnosis.load("run")) == 1 and "report: " in capsys.readouterr().out


# --- a full disk ------------------------------------------------------------------------------------------------------


def no_room(*arguments: object, **named: object) -> None:
    raise safetensors.SafetensorError(f"Error while serializing: {FULL}")


def no_space(*arguments: object, **named: object) -> None:
    raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")


def test_a_battery_goes_on_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    battery = ("ablate", "tiny", "--battery", "mlps", "--n", "5")
    assert main([*battery, "--out", "whole"]) == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.numpy, "save_file", no_room)
        assert main([*battery, "--out", "run"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == (
        f"bayesgeom: cannot write {Path('run/progress.safetensors')}: No space left on device; the progress saved "
        f"in run is intact; to continue, free some disk space and repeat the same command.\n"
    )
    assert names(Path("run")) == []
    assert main([*battery, "--out", "run"]) == 0
    assert Diagnosis.load("run").summary() == Diagnosis.load("whole").summary()


def test_the_results_of_a_snapshot_are_written_whole_or_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SnapshotCache(folder=folder / "parts", settings={"n": 7})
    found = SnapshotNumbers(numbers={"a": np.arange(5.0)}, missing={})
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.numpy, "save_file", no_room)
        with pytest.raises(OutputFault, match=r"cannot write .*\.safetensors: No space left on device\.$"):
            cache.put("weights", "last", found)
    assert names(folder / "parts") == [] and cache.find("weights", "last") is None
    cache.put("weights", "last", found)
    again = cache.find("weights", "last")
    assert again is not None and again.numbers["a"].tolist() == [0, 1, 2, 3, 4]


WRITERS: dict[str, tuple[object, str, Callable[..., None]]] = {
    "arrays": (safetensors.numpy, "save_file", no_room),
    "table": (pd.DataFrame, "to_parquet", no_space),
    "text": (Path, "write_text", no_space),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_report_that_has_no_room_leaves_the_old_one(
    writer: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report("old", folder / "run")
    owner, name, raises = WRITERS[writer]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raises)
        assert main(["diagnose", *COMMANDS["diagnose"], "--out", "run"]) == 2
    output = capsys.readouterr()
    assert output.err == "bayesgeom: cannot write run: No space left on device.\n"
    assert "calibration" in output.out, "what was measured is printed where it cannot be saved"
    assert names(folder) == ["checkpoints", "run"] and (folder / "run" / "report.json").read_text() == "old"


def test_damaged_progress_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run").mkdir()
    for metadata in (None, {"job": "{"}, {"job": "[]", "per_unit": "1", "done": "1"}):
        safetensors.numpy.save_file({"counts": np.ones(3)}, folder / "run" / "progress.safetensors", metadata=metadata)
        assert main(["ablate", "tiny", "--battery", "mlps", "--n", "5", "--out", "run"]) == 2
        assert capsys.readouterr().err.count("\n") == 1


# --- links, killed runs -----------------------------------------------------------------------------------------------


def test_a_link_is_written_through_and_remains(folder: Path) -> None:
    report("old", folder / "disk" / "run")
    (folder / "link").symlink_to(folder / "disk" / "run")
    (folder / "dangling").symlink_to(Path("disk") / "fresh" / "run")
    for name, target in (("link", "run"), ("dangling", "fresh/run")):
        assert main(["diagnose", *COMMANDS["diagnose"], "--out", name]) == 0
        assert (folder / name).is_symlink() and len(Diagnosis.load(folder / "disk" / target)) == 1
    assert names(folder) == ["checkpoints", "dangling", "disk", "link"] and names(folder / "disk") == ["fresh", "run"]


def test_a_link_to_a_file_is_written_through_and_remains(folder: Path) -> None:
    (folder / "disk").mkdir()
    (folder / "link").symlink_to("disk/file")
    with atomic_file(folder / "link") as aside:
        assert aside.parent == folder / "disk"
        aside.write_text("new")
    assert (folder / "link").is_symlink() and (folder / "disk" / "file").read_text() == "new"


def test_a_link_in_a_circle_is_refused(folder: Path) -> None:
    (folder / "link").symlink_to("link")
    for writer in (atomic_file, atomic_directory):
        with pytest.raises(OutputFault, match=r"link is a symbolic link that leads back to itself"):
            writer(folder / "link").__enter__()
    assert (folder / "link").is_symlink()


def test_the_working_directory_is_refused_before_anything_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder / "empty")
    assert main(["diagnose", *COMMANDS["diagnose"], "--out", "."]) == 2
    assert "is the working directory, which cannot be replaced" in capsys.readouterr().err


def test_only_a_report_is_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *COMMANDS["diagnose"], "--out", "run"]) == 0
    own = Diagnosis.load("run")["calibration"]
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(OutputFault, match=r"thesis holds something else than a report \(chapter\.tex\)"):
        own.save(folder / "thesis")
    assert main(["pack", "run", "checkpoints"]) == 2
    assert "checkpoints holds files that are not a packed training (tiny)" in capsys.readouterr().err
    assert names(folder / "checkpoints") == ["tiny"] and names(folder / "thesis") == ["chapter.tex"]


KILLED = """
import os, sys
from pathlib import Path
from bayesgeom.core import files
moment, path = sys.argv[1], Path(sys.argv[2])
replace, calls = os.replace, []
def dying(source, target):
    if moment == str(len(calls)):
        os._exit(9)
    calls.append(source)
    replace(source, target)
os.replace = dying
with files.atomic_directory(path) as aside:
    (aside / "report.json").write_text("new")
    if moment == "writing":
        os._exit(9)
    if moment == "living":
        print(aside, flush=True)
        sys.stdin.read()
files.shutil.rmtree = lambda *a, **k: os._exit(9)
os._exit(0)
"""


def killed(moment: str, path: Path, **more: int) -> "subprocess.Popen[str]":
    # Another interpreter without the tests' hooks: `files` alone is loaded, in a tenth of a second.
    command = [sys.executable, "-c", KILLED, moment, str(path)]
    return subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, text=True, **more)


@pytest.mark.parametrize("moment", ["writing", "0", "1"])
def test_a_killed_run_leaves_the_old_report_and_no_rubbish(moment: str, folder: Path) -> None:
    report("old", folder / "run")
    with killed(moment, folder / "run") as process:
        assert process.wait() == 9
    assert len(names(folder)) > 2 or moment == "1", "something was left"
    assert (folder / "run").exists() == (moment != "1")
    check_directory(folder / "run")
    assert names(folder) == ["checkpoints", "run"] and (folder / "run" / "report.json").read_text() == "old"


@pytest.mark.parametrize("is_made_again", [False, True])
def test_reading_puts_a_report_back(is_made_again: bool, folder: Path) -> None:
    assert main(["diagnose", *COMMANDS["diagnose"], "--out", "disk/run"]) == 0
    (folder / "link").symlink_to("disk/run")
    with killed("1", folder / "link") as process:
        assert process.wait() == 9
    assert not (folder / "disk" / "run").exists()
    if is_made_again:
        (folder / "disk" / "run").mkdir()  # as scripts do before every run
    assert len(Diagnosis.load("link")) == 1 and (folder / "link").is_symlink()


def test_what_a_living_process_writes_is_left_alone(folder: Path) -> None:
    with killed("living", folder / "run", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        aside = Path(process.stdout.readline().strip())
        check_directory(folder / "run")
        with atomic_directory(folder / "run"):
            pass
        assert (aside / "report.json").read_text() == "new"
        process.stdin.close()
        process.wait()
    assert names(folder) == ["checkpoints", "run"] and (folder / "run" / "report.json").read_text() == "new"


def test_only_remains_of_this_path_and_machine_are_removed(folder: Path) -> None:
    with killed("writing", folder / "run") as process:
        process.wait()
    (left,) = (entry for entry in folder.iterdir() if entry.name not in ("run", "checkpoints"))
    other = left.with_name(left.name.replace(".run.", ".run.2."))
    elsewhere = left.with_name(left.name.replace(files._here(), "00000000"))
    mine = [folder / ".run.notes", folder / ".run.tmp", folder / ".run", folder / "run.tmp"]
    for path in (other, elsewhere, *mine):
        path.mkdir()
    check_directory(folder / "run")
    assert not left.exists() and all(path.exists() for path in (other, elsewhere, *mine))


def test_a_battery_that_was_killed_while_saving_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    battery = ("ablate", "tiny", "--battery", "mlps", "--n", "5", "--out", "run")
    (folder / "run").mkdir()
    with killed("writing", folder / "run" / "progress.safetensors") as process:
        process.wait()
    assert len(names(folder / "run")) == 1
    assert main([*battery]) == 0, capsys.readouterr().err
    assert names(folder) == ["checkpoints", "run"] and len(Diagnosis.load("run")) == 1


def test_an_interruption_between_the_renames_puts_back_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report("old", folder / "run")
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        replace(source, target)
        if str(target).endswith(".former"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_directory(folder / "run") as aside:
        (aside / "report.json").write_text("new")
    assert names(folder) == ["checkpoints", "run"] and (folder / "run" / "report.json").read_text() == "old"


def test_what_is_in_the_way_of_an_old_report_costs_no_new_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that cannot be removed, as in a folder without write permission."""
    report("old", folder / "run")
    rmtree = importlib.import_module("shutil").rmtree

    def refused(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(errno.EACCES, "Permission denied")
        if not str(path).endswith(".former"):
            rmtree(path, ignore_errors=True)

    monkeypatch.setattr(files.shutil, "rmtree", refused)
    with atomic_directory(folder / "run") as aside:
        (aside / "report.json").write_text(json.dumps("new"))
    assert (folder / "run" / "report.json").read_text() == '"new"'
