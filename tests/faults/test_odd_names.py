"""Names and texts that hold what no name should: ends of lines, escape sequences, bytes that are no UTF-8."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import bayesgeom
from bayesgeom.cli import note, tell
from bayesgeom.core import files
from bayesgeom.core.errors import (
    BayesGeomError,
    CheckpointFault,
    OutputFault,
    ServerFault,
    on_lines,
    on_one_line,
)
from bayesgeom.core.files import atomic_directory, atomic_file
from bayesgeom.report.storage import JSON
from tests.interventions.worlds import lively

CLEAR = "a\nb\x1b[2Jc\u2028d\u202ee"
CLEARED = r"a\nb\x1b[2Jc\u2028d\u202ee"
NOT_UTF_8 = os.fsdecode(b"caf\xe9")


def write_into(path: Path, text: str = "new") -> None:
    with atomic_directory(path) as temporary:
        (temporary / "text").write_text(text)


def write_file(path: Path) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text("new")


@pytest.mark.parametrize("write", [write_into, write_file])
def test_a_pipe_or_a_device_is_not_replaced(write: Callable[[Path], None], tmp_path: Path) -> None:
    """`to_html("/dev/null")` by the system's administrator put a file in place of the device."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(OutputFault, match=r"is a device or a pipe, which is not replaced|is a file; name a dir"):
            write(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_that_cannot_be_removed_raises_output_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "rmdir", refuse)
    with pytest.raises(OutputFault, match=os.strerror(errno.ENOSPC)):
        files.check_directory(tmp_path / "run")


@pytest.mark.parametrize("kind", [BayesGeomError, ServerFault, CheckpointFault])
def test_a_message_is_one_line_whatever_it_names(kind: type[BayesGeomError]) -> None:
    assert str(kind(f"there is no {CLEAR}.")) == f"there is no {CLEARED}." == on_one_line(f"there is no {CLEAR}.")


def test_commands_print_no_escape_sequence_of_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    tell(CLEAR, "two")
    note(CLEAR)
    found = capsys.readouterr()
    assert found.out == f"{on_lines(CLEAR)}\ntwo\n" and found.err == f"{on_lines(CLEAR)}\n"
    assert on_lines(CLEAR) == "a\n" + CLEARED[3:] and on_lines("a\tb") == "a\tb"


@pytest.mark.parametrize("write", [write_into, write_file])
def test_a_name_without_room_for_a_temporary_ending_is_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / ("x" * 215))
    for name in ("x" * 216, "é" * 108):
        with pytest.raises(OutputFault, match="a name has at most 215 bytes, this one 216"):
            write(tmp_path / name)
    assert [own.name for own in tmp_path.iterdir()] == ["x" * 215]


@pytest.mark.parametrize("write", [write_into, write_file])
def test_a_path_that_libraries_cannot_encode_is_refused_before_it_is_written(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    """pyarrow raised UnicodeEncodeError after everything was measured."""
    for path in (tmp_path / NOT_UTF_8, tmp_path / NOT_UTF_8 / "run"):
        with pytest.raises(OutputFault, match=r"caf\\udce9.* is not encoded as UTF-8"):
            write(path)


def test_a_way_through_the_old_directory_replaces_it(tmp_path: Path) -> None:
    """`old/../old` led nowhere once the old directory was moved away, where it then stayed."""
    write_into(tmp_path / "old", "old")
    write_into(tmp_path / "old" / ".." / "old")
    assert [own.name for own in tmp_path.iterdir()] == ["old"] and (tmp_path / "old" / "text").read_text() == "new"


@pytest.mark.parametrize("which", ["the first", "every"])
def test_a_directory_that_another_process_puts_there_meanwhile_is_replaced(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes with the same --out, one failed and left its old directory behind under a temporary name."""
    path, plain, n_others = tmp_path / "run", os.replace, 0
    write_into(path, "old")

    def replace(source: Path, target: Path) -> None:
        nonlocal n_others
        if target == path and (which == "every" or not n_others):
            n_others += 1
            path.mkdir()
            (path / "text").write_text("of another process")
        plain(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    if which == "every":
        with pytest.raises(OutputFault, match=os.strerror(errno.ENOTEMPTY)):
            write_into(path)
        assert (path / "text").read_text() == "of another process"
    else:
        write_into(path)
        assert (path / "text").read_text() == "new" and n_others == 1
    assert [own.name for own in tmp_path.iterdir()] == ["run"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    bayesgeom.diagnose(lively(), n=5, probes=("calibration",), n_untrained=0).save(path)
    return path


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_name_that_occurs_twice_is_refused(where: str, saved: Path, tmp_path: Path) -> None:
    """The hash covers the last value only; other readers of the file may take the first."""
    path = Path(shutil.copytree(saved, tmp_path / "run"))
    text = (path / JSON).read_text().strip()
    (path / JSON).write_text('{"schema": 3, ' + text[1:] if where == "first" else text[:-1] + ', "schema": 3}')
    with pytest.raises(OutputFault, match="'schema' occurs twice in an object"):
        bayesgeom.load_report(path)
