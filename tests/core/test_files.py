"""Writing aside: whole or not at all, whatever stops it."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import (
    Framework,
    atomic_directory,
    atomic_file,
    check_directory,
    differences,
    read_safetensors,
    write_arrays,
)


class Stopped(BaseException):
    """Stands for anything that ends a block, KeyboardInterrupt included."""


def tree(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}


def former_directory(path: Path) -> None:
    path.mkdir()
    (path / "a").write_text("former")


def test_a_file_appears_whole_and_only_at_the_end(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "deep" / "er" / "a.txt") as aside:
        aside.write_text("whole")
        assert not (tmp_path / "deep" / "er" / "a.txt").exists()
    assert tree(tmp_path) == {"deep/er/a.txt": "whole"}


def test_a_file_replaces_the_former_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("former")
    with atomic_file(tmp_path / "a.txt") as aside:
        aside.write_text("new")
        assert (tmp_path / "a.txt").read_text() == "former"
    assert tree(tmp_path) == {"a.txt": "new"}


@pytest.mark.parametrize("error", [ValueError, Stopped])
def test_a_stopped_block_leaves_the_former_file(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("former")
    with pytest.raises(error), atomic_file(tmp_path / "a.txt") as aside:
        aside.write_text("half")
        raise error
    assert tree(tmp_path) == {"a.txt": "former"}


def test_a_full_disk_is_an_output_fault_with_its_reason(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputFault, match=r"cannot write .*a\.txt: No space left on device\."),
        atomic_file(tmp_path / "a.txt") as aside,
    ):
        aside.write_text("half")
        raise OSError(28, "No space left on device")
    assert tree(tmp_path) == {}


def test_a_directory_in_the_files_place_is_an_output_fault(tmp_path: Path) -> None:
    former_directory(tmp_path / "a")
    with pytest.raises(OutputFault, match=r"cannot write .*/a: .*directory"), atomic_file(tmp_path / "a") as aside:
        aside.write_text("new")
    assert tree(tmp_path) == {"a/a": "former"}


def test_a_file_in_the_folders_place_is_an_output_fault(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file")
    for writer in (atomic_file, atomic_directory):
        with (
            pytest.raises(OutputFault, match=r"cannot make the folder .*folder: (File exists|Not a dir)"),
            writer(tmp_path / "folder" / "a"),
        ):
            raise AssertionError("the block must not run")
    assert tree(tmp_path) == {"folder": "a file"}


def test_a_directory_appears_whole_and_only_at_the_end(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "deep" / "a") as aside:
        (aside / "sub").mkdir()
        (aside / "sub" / "b").write_text("whole")
        assert not (tmp_path / "deep" / "a").exists()
    assert tree(tmp_path) == {"deep/a/sub/b": "whole"}
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["a"]


def test_a_directory_can_be_read_by_others(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "a"):
        pass
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755


def test_a_directory_replaces_the_former_one_whole(tmp_path: Path) -> None:
    former_directory(tmp_path / "x")
    with atomic_directory(tmp_path / "x") as aside:
        (aside / "b").write_text("new")
        assert tree(tmp_path / "x") == {"a": "former"}
    assert tree(tmp_path) == {"x/b": "new"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("error", [ValueError, Stopped])
@pytest.mark.parametrize("standing", [False, True], ids=["fresh", "over a former one"])
def test_a_stopped_block_leaves_the_former_directory(
    standing: bool, error: type[BaseException], tmp_path: Path
) -> None:
    if standing:
        former_directory(tmp_path / "x")
    with pytest.raises(error), atomic_directory(tmp_path / "x") as aside:
        (aside / "b").write_text("half")
        raise error
    assert tree(tmp_path) == ({"x/a": "former"} if standing else {})
    assert [entry.name for entry in tmp_path.iterdir()] == (["x"] if standing else [])


def test_a_refused_rename_leaves_the_former_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former_directory(tmp_path / "x")
    replace = os.replace

    def refused_for_the_new(source: Path, target: Path) -> None:
        if (Path(source) / "b").exists():
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refused_for_the_new)
    with (
        pytest.raises(OutputFault, match=r"cannot write .*/x: Input/output error"),
        atomic_directory(tmp_path / "x") as aside,
    ):
        (aside / "b").write_text("new")
    assert tree(tmp_path) == {"x/a": "former"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_file_in_the_directorys_place_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a file")
    with (
        pytest.raises(OutputFault, match=r"/x.*(is a file|Not a directory)"),
        atomic_directory(tmp_path / "x") as aside,
    ):
        (aside / "b").write_text("new")
    assert tree(tmp_path) == {"x": "a file"}


def test_a_check_of_a_place_leaves_nothing_there(tmp_path: Path) -> None:
    former_directory(tmp_path / "x")
    for name in ("x", "fresh"):
        check_directory(tmp_path / name)
    assert tree(tmp_path) == {"x/a": "former"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_check_finds_files_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a file")
    with pytest.raises(OutputFault, match=r"/x is a file; name a directory"):
        check_directory(tmp_path / "x")
    with pytest.raises(OutputFault, match=r"cannot make the folder .*/x: "):
        check_directory(tmp_path / "x" / "y")


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("fresh/run")
    with atomic_directory(tmp_path / "link") as aside:
        (aside / "a").write_text("new")
    assert (tmp_path / "link").is_symlink() and tree(tmp_path / "fresh") == {"run/a": "new"}
    with atomic_directory(
        tmp_path / "fresh" / "run" / ".." / "run"
    ) as aside:  # leads nowhere once the old one is moved
        (aside / "b").write_text("new")
    assert tree(tmp_path / "fresh") == {"run/b": "new"}


def test_the_working_directory_and_a_pipe_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputFault, match="is the working directory, which cannot be replaced"):
        check_directory(Path())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputFault, match="is a device or a pipe, which is not replaced"):
        atomic_file(tmp_path / "pipe").__enter__()


def test_an_interruption_between_the_renames_puts_back_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former_directory(tmp_path / "x")
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        replace(source, target)
        if str(target).endswith(".former"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_directory(tmp_path / "x"):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"] and tree(tmp_path) == {"x/a": "former"}


@pytest.mark.parametrize("framework", ["numpy", "pt"])
def test_arrays_and_tensors_are_written_by_one_function(framework: Framework, tmp_path: Path) -> None:
    one: Any = np.arange(5, dtype=np.float32) if framework == "numpy" else torch.arange(5, dtype=torch.bfloat16)
    write_arrays({"a": one}, tmp_path / "x", {"step": "7"}, framework=framework)
    found, metadata = read_safetensors(tmp_path / "x", framework=framework)
    assert found["a"].dtype == one.dtype and found["a"].tolist() == [0, 1, 2, 3, 4] and metadata == {"step": "7"}
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644, "safetensors' own file is private"
    with (
        pytest.raises(OutputFault, match=r"^cannot write .*/y: .*No such file or directory"),
        atomic_file(tmp_path / "y") as aside,
    ):
        write_arrays({"a": one}, aside / "no folder", framework=framework)


@pytest.mark.parametrize("metadata", [None, {"step": "3"}])
def test_safetensors_come_back_with_their_metadata(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"a": np.arange(3.0), "b": np.ones((2, 1))}, tmp_path / "x", metadata=metadata)
    arrays, found = read_safetensors(tmp_path / "x", framework="numpy")
    tensors, _ = read_safetensors(tmp_path / "x", framework="pt")
    assert found == (metadata or {}) and set(arrays) == set(tensors) == {"a", "b"}
    assert arrays["a"].tolist() == tensors["a"].tolist() == [0, 1, 2] and tensors["b"].shape == (2, 1)


def test_what_differs_is_named_field_by_field() -> None:
    there = {"steps": 30, "task": {"name": "hmm", "length": 20}, "after": None, "battery": [*range(50)], "seed": 0}
    asked = {"steps": 600, "task": {"name": "hmm", "length": 10}, "after": {"steps": 5}, "battery": [*range(1, 51)]}
    assert differences(there, there) == ""
    assert differences(there, asked | {"seed": 0}) == (
        "steps: 30 there, 600 requested; task.length: 20 there, 10 requested; "
        "after: None there, {'steps': 5} requested; "
        "battery: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1 there, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,  requested"
    )
