"""One folder that cannot be read, or was half replaced, costs no other checkpoint."""

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.core.errors import CheckpointFault
from bayesgeom.core.files import _here
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.training.formation import pack
from bayesgeom.training.packed import formations, read_formation
from tests.models.test_checkpoint import saved

DEAD = 2**22 + 1  # more than Linux gives to a process


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAYESGEOM_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.chdir(tmp_path)
    for name in ("a-first", "m-locked", "z-last"):
        saved(tmp_path / "checkpoints" / name)
    return tmp_path / "checkpoints"


def lock(folder: Path, monkeypatch: pytest.MonkeyPatch, *, itself: bool = False) -> None:
    """Refuse to look at anything in a folder, as its permissions would if the tests did not run as root."""

    def guarded(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | Path) and (folder in Path(path).parents or (itself and Path(path) == folder)):
                raise PermissionError(13, "Permission denied", str(path))
            return plain(path, *args, **kwargs)

        return call

    for module, name in ((os, "stat"), (os, "lstat"), (io, "open"), (os, "open")):
        monkeypatch.setattr(module, name, guarded(getattr(module, name)))


def lock_listing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.listdir, os.scandir

    def refused(path: Any) -> Any:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return path

    monkeypatch.setattr(os, "listdir", lambda path=".": plain[0](refused(path)))
    monkeypatch.setattr(os, "scandir", lambda path=".": plain[1](refused(path)))


def test_a_folder_that_cannot_be_looked_into_is_listed_with_its_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        lock(root / "m-locked", patched)
        assert list(checkpoints()) == ["a-first", "m-locked", "z-last"]
        assert main(["checkpoints"]) == 0
        out = capsys.readouterr().out
        assert bayesgeom.load("z-last").spec.name == "z-last"
        with pytest.raises(CheckpointFault, match=r"m-locked.*Permission denied"):
            bayesgeom.load("m-locked")
    error, _, last = out.split("m-locked\n", 1)[1].partition("\nz-last\n")  # a long path has lines of its own
    assert error.startswith("  error") and "Permission denied" in " ".join(error.split())
    assert last.startswith("  task ") and out.startswith("a-first\n  task ")


def test_a_checkpoint_folder_that_cannot_be_listed_is_one_sentence(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock_listing(root, monkeypatch)
    assert main(["checkpoints"]) == 2
    output = capsys.readouterr().err
    assert output.startswith("bayesgeom: the checkpoint folder ") and "cannot be listed: Permission denied" in output
    assert bayesgeom.load(root / "z-last").spec.name == "z-last"


def moved_away(path: Path) -> Path:
    """What a kill between the two renames of a replacement leaves: the old directory under a temporary name."""
    former = path.with_name(f".{path.name}.{_here()}-{DEAD}-abcd1234.tmp.former")
    path.rename(former)
    half = path.with_name(f".{path.name}.{_here()}-{DEAD}-abcd1234.tmp")
    half.mkdir(exist_ok=True)
    (half / "config.json").write_text("{")
    return former


@pytest.mark.parametrize("how", ["name", "list"])
def test_a_checkpoint_that_a_kill_moved_away_is_put_back(
    how: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load_checkpoint(root / "m-locked").weights_hash
    former = moved_away(root / "m-locked")
    match how:
        case "name":
            assert bayesgeom.load("m-locked").spec.weights_hash == before
        case "list":
            assert main(["checkpoints"]) == 0
            out = capsys.readouterr().out
            assert f"  weights {before}" in out.split("m-locked\n")[1].splitlines()[2]
            assert ".tmp" not in out and "error" not in out
    assert not former.exists() and (root / "m-locked" / "config.json").is_file()


def test_what_a_living_process_moved_away_stays_there(root: Path) -> None:
    former = root / f".m-locked.{_here()}-{os.getpid()}-abcd1234.tmp.former"
    (root / "m-locked").rename(former)
    assert list(checkpoints()) == ["a-first", "z-last"]
    assert former.exists()


def test_a_checkpoint_that_is_there_is_not_replaced_by_an_older_one(root: Path) -> None:
    shutil.copytree(root / "m-locked", root / "copy")
    moved_away(root / "copy")
    new = saved(root / "copy", seed=2)
    assert bayesgeom.load("copy").spec.weights_hash == new


def test_a_packed_training_that_a_kill_moved_away_is_put_back(tmp_path: Path, root: Path) -> None:
    for step in (1, 2):
        saved(tmp_path / "run" / "snapshots" / f"step-{step}", seed=step)
    pack(tmp_path / "run", root / "packed", keep=2)
    moved_away(root / "packed")
    assert len(read_formation(root / "packed")["snapshots"]) == 2
    moved_away(root / "packed")
    assert list(formations()) == ["packed"]
