"""One folder that cannot be read costs no other checkpoint."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.core.errors import CheckpointFault
from bayesgeom.models.checkpoint_files import checkpoints
from tests.models.test_checkpoint import saved


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAYESGEOM_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.chdir(tmp_path)
    for name in ("a-first", "m-locked", "z-last"):
        saved(tmp_path / "checkpoints" / name)
    return tmp_path / "checkpoints"


def lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to look at anything in a folder, as its permissions would if the tests did not run as root."""

    def guarded(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | Path) and folder in Path(path).parents:
                raise PermissionError(13, "Permission denied", str(path))
            return plain(path, *args, **kwargs)

        return call

    for module, name in ((os, "stat"), (os, "lstat"), (io, "open"), (os, "open")):
        monkeypatch.setattr(module, name, guarded(getattr(module, name)))


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
