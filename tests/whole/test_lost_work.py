"""Nothing that was finished is lost: to a kill between any two steps, a full disk, or a terminal that is gone."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import safetensors
import safetensors.numpy

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.core.errors import OutputFault
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.training.formation import pack
from bayesgeom.training.packed import formations, read_formation
from tests.models.test_checkpoint import saved
from tests.structure.source import ROOT
from tests.test_cli import QUICK, save

FULL = "I/O error: No space left on device (os error 28)"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESGEOM_CHECKPOINTS", str(tmp_path / "checkpoints"))
    save(tmp_path / "checkpoints" / "tiny")
    return tmp_path


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


# --- killed runs ------------------------------------------------------------------------------------------------------

KILLED = """
import os, shutil, sys
from pathlib import Path
from bayesgeom.core import files
step, call, moment, source, path = sys.argv[1:]
plain, calls = getattr(os, step), []
def dying(*given, **named):
    calls.append(given)
    if len(calls) - 1 != int(call):
        return plain(*given, **named)
    if moment == "after":
        plain(*given, **named)
    os._exit(9)
setattr(os, step, dying)
with files.atomic_directory(Path(path)) as temporary:
    shutil.copytree(source, temporary, dirs_exist_ok=True)
"""


def killed(step: str, call: int, moment: str, source: Path, path: Path) -> None:
    """Replace a directory by a copy of another one, and be killed before or after a call of a function of `os`.

    Another interpreter without the tests' hooks: `files` alone is loaded, in a tenth of a second.
    """
    command = [sys.executable, "-c", KILLED, step, str(call), moment, str(source), str(path)]
    assert subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, check=False).returncode == 9


def packed(path: Path, seed: int) -> None:
    for step in (1, 2):
        saved(path.parent / f"run-{seed}" / "snapshots" / f"step-{step}", seed=seed + step)
    pack(path.parent / f"run-{seed}", path, keep=2)


def reported(path: Path, seed: int) -> None:
    bayesgeom.diagnose("tiny", n=5, n_untrained=0, probes=["calibration"], seed=seed).save(path)


KINDS: dict[str, tuple[Callable[[Path, int], object], Callable[[Path], object]]] = {
    "report": (reported, lambda path: bayesgeom.load_report(path).summary()),
    "checkpoint": (saved, lambda path: bayesgeom.load(path).spec.weights_hash),
    "packed training": (packed, lambda path: read_formation(path)["snapshots"]),
}
# The first call of `replace` moves the old directory away, and the second gives the new one its name.
MOMENTS = [("replace", 0, "before"), ("replace", 0, "after"), ("replace", 1, "after"), ("chmod", 0, "before")]
KILLS = [("report", *each) for each in MOMENTS] + [(kind, "replace", 0, "after") for kind in KINDS if kind != "report"]


@pytest.mark.parametrize(("kind", "step", "call", "moment"), KILLS)
def test_after_a_kill_the_old_or_the_new_directory_is_loaded(
    kind: str, step: str, call: int, moment: str, folder: Path
) -> None:
    make, read = KINDS[kind]
    path, new = folder / "checkpoints" / "own", folder / "new" / "own"
    make(path, 0)
    make(new, 7)
    old = read(path)
    assert read(new) != old
    killed(step, call, moment, new, path)
    assert path.exists() == ((step, call, moment) != ("replace", 0, "after")), "killed between the two renames"
    assert read(path) == (read(new) if call else old)
    killed("replace", 2, "after", new, path)
    assert read(path) == read(new), "the next run is not held up by what was left"


@pytest.mark.parametrize("kind", ["checkpoint", "packed training"])
def test_a_list_holds_what_a_kill_had_moved_away(kind: str, folder: Path) -> None:
    make, _ = KINDS[kind]
    make(folder / "checkpoints" / "own", 0)
    killed("replace", 0, "after", folder / "checkpoints" / "own", folder / "checkpoints" / "own")
    assert "own" not in names(folder / "checkpoints")
    listed = bayesgeom.checkpoints() if kind == "checkpoint" else formations()
    assert "own" in listed and "own" in names(folder / "checkpoints") and not any(".tmp" in name for name in listed)


def test_a_report_is_put_back_into_an_empty_directory_and_through_a_link(folder: Path) -> None:
    reported(folder / "disk" / "run", 0)
    (folder / "link").symlink_to("disk/run")
    killed("replace", 0, "after", folder / "disk" / "run", folder / "link")
    (folder / "disk" / "run").mkdir()  # as scripts do before every run
    assert len(Diagnosis.load("link")) == 1 and (folder / "link").is_symlink()


# --- a full disk, a terminal that is gone -----------------------------------------------------------------------------


def no_room(*arguments: object, **named: object) -> None:
    raise safetensors.SafetensorError(f"Error while serializing: {FULL}")


def no_space(*arguments: object, **named: object) -> None:
    raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")


WRITERS: dict[str, tuple[object, str, Callable[..., None]]] = {
    "arrays": (safetensors.numpy, "save_file", no_room),
    "table": (pd.DataFrame, "to_parquet", no_space),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_report_that_has_no_room_is_printed_and_leaves_the_old_one(
    writer: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reported(folder / "run", 0)
    old = bayesgeom.load_report("run").summary()
    owner, name, raises = WRITERS[writer]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raises)
        assert main(["diagnose", "tiny", *QUICK, "--out", "run"]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("bayesgeom: cannot write run: ") and "No space left on device" in output.err
    assert "KL(exact ‖ model)" in output.out and "report.html" not in output.out
    assert names(folder) == ["checkpoints", "run"] and bayesgeom.load_report("run").summary() == old


def test_a_full_or_closed_standard_output_costs_no_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for target, status in (("/dev/full", 2), (writing, 0)):
        with open(target, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:  # noqa: PTH123
            patch.setattr(sys, "stdout", stream)
            assert main(["diagnose", "tiny", *QUICK, "key_overlap", "--out", f"run-{status}"]) == status
        assert len(Diagnosis.load(f"run-{status}")) == 2, "not even where the answer is printed first"
    error = "cannot write to standard output: No space left on device. The report is complete: "
    assert capsys.readouterr().err == f"bayesgeom: {error}{Path('run-2/report.html')}.\n"


def test_only_a_report_is_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reported(folder / "run", 0)
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(OutputFault, match=r"thesis holds something else than a report \(chapter\.tex\)"):
        Diagnosis.load("run")["calibration"].save(folder / "thesis")
    assert main(["pack", "run", "checkpoints"]) == 2
    assert "checkpoints holds files that are not a packed training (tiny)" in capsys.readouterr().err
    assert names(folder / "checkpoints") == ["tiny"] and names(folder / "thesis") == ["chapter.tex"]
