"""Nothing that was measured is lost: to the terminal, an old report, a full disk, a link, or a killed run."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import safetensors
import safetensors.numpy

from bayesgeom.cli import main
from bayesgeom.core import files
from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import atomic_directory, atomic_file, check_directory
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.training import recipes
from tests.structure.source import ROOT
from tests.test_cli import QUICK, TINY, save

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
    kept = {"ablate": ["progress.safetensors"]}.get(command, [])
    assert names(Path("run")) == ["arrays.safetensors", "metrics.parquet", *kept, "report.html", "report.json"]
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


@pytest.mark.parametrize(("encoding", "errors"), [("ascii", "strict"), ("cp1252", "strict")])
def test_any_encoding_of_standard_output_will_do(encoding: str, errors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    with io.TextIOWrapper(printed, encoding=encoding, errors=errors) as narrow, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", narrow)
        status = main(["diagnose", *COMMANDS["diagnose"], "--out", "run"])
        narrow.flush()
        text = printed.getvalue().decode(encoding)
    summary = Diagnosis.load("run").summary()
    assert status == 0 and "KL(exact ‖ model)" in summary and "KL(exact ? model)" in text and "‖" not in text
    assert [len(line) for line in summary.splitlines()] == [len(line) for line in text.splitlines()[:-1]]


# --- the report that was there ----------------------------------------------------------------------------------------

# --- a full disk ------------------------------------------------------------------------------------------------------


def no_room(*arguments: object, **named: object) -> None:
    raise safetensors.SafetensorError(f"Error while serializing: {FULL}")


def no_space(*arguments: object, **named: object) -> None:
    raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")


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
    assert "KL(exact ‖ model)" in output.out, "what was measured is printed where it cannot be saved"
    assert "report.html" not in output.out and "entropy error" in output.out
    assert names(folder) == ["checkpoints", "run"] and (folder / "run" / "report.json").read_text() == "old"


# --- links, killed runs -----------------------------------------------------------------------------------------------


def test_a_link_is_written_through_and_remains(folder: Path) -> None:
    report("old", folder / "disk" / "run")
    (folder / "link").symlink_to(folder / "disk" / "run")
    (folder / "dangling").symlink_to(Path("disk") / "fresh" / "run")
    for name, target in (("link", "run"), ("dangling", "fresh/run")):
        assert main(["diagnose", *COMMANDS["diagnose"], "--out", name]) == 0
        assert (folder / name).is_symlink() and len(Diagnosis.load(folder / "disk" / target)) == 1
    assert names(folder) == ["checkpoints", "dangling", "disk", "link"] and names(folder / "disk") == ["fresh", "run"]


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


IN_SAFETENSORS = """
import os, signal, sys, threading
from pathlib import Path
import numpy as np
from bayesgeom.core.files import atomic_file, write_arrays
path = Path(sys.argv[1])
def wait():
    while not any(path.parent.rglob(".tmp*")):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=wait, daemon=True).start()
with atomic_file(path) as temporary:
    write_arrays({"half": np.zeros(40_000_000)}, temporary)
"""


def interrupted(*arguments: object, **named: object) -> None:
    raise KeyboardInterrupt


def kill_in_safetensors(path: Path) -> None:
    """SIGKILL while safetensors writes its own temporary file; and the kind that an earlier version left."""
    command = [sys.executable, "-c", IN_SAFETENSORS, str(path)]
    assert subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, check=False).returncode == -9
    assert any(path.parent.rglob(".tmp*")), "something was left"
    (path.parent / ".tmpAb12Cd").touch()


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (("ablate", "tiny", "--battery", "mlps", "--n", "5", "--out", "run"), "progress.safetensors"),
        (("train", TINY.name, "--out", "run"), "state.safetensors"),
        (("capture", "tiny", "--n", "5", "--out", "run"), "shard-00000.safetensors"),
    ],
    ids=lambda own: own[0] if isinstance(own, tuple) else "",
)
@pytest.mark.parametrize("is_begun", [False, True])
def test_what_safetensors_left_of_a_killed_run_is_no_obstacle_and_does_not_stay(
    command: tuple[str, ...], file: str, is_begun: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(recipes.RECIPES, TINY.name, TINY)
    if is_begun and command[0] == "capture":
        with monkeypatch.context() as patch:
            patch.setattr("bayesgeom.models.captured.model.captured", interrupted)
            assert main([*command]) == 130
    elif is_begun:
        assert main([*command]) == 0
        (folder / "run" / file).unlink()
    else:
        (folder / "run").mkdir()
    kill_in_safetensors(folder / "run" / file)
    again = [*command, *(["--resume"] if command[0] == "train" and is_begun else [])]
    assert main(again) == 0
    assert not [entry.name for entry in (folder / "run").iterdir() if "tmp" in entry.name]


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
