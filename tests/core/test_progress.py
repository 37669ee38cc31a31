"""Phases: bars on terminals, lines for the command line elsewhere; what an interruption says of what is kept."""

import os
import pty
import re
import struct
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pytest

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.progress import phase, phases_shown, progress_in


def work(*, is_quiet: bool) -> None:
    """Three counted steps with a part of unknown size in the second."""
    with phase("snapshots", 3, "snapshot", is_quiet=is_quiet) as shown:
        for step in range(3):
            shown.mininterval, shown.miniters = 0, 1
            with phase("loading"):
                time.sleep(0.15 * (step == 1))
            shown.update(1)


def drawn(
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int] | None,
    *,
    is_quiet: bool = False,
    around: AbstractContextManager[None] | None = None,
) -> str:
    """What the work writes to a terminal of this size (rows, columns), or to a file."""
    above, below = os.pipe() if size is None else pty.openpty()
    with os.fdopen(below, "w") as stream:
        if size is not None:
            ioctl(below, TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        monkeypatch.setattr(sys, "stderr", stream)
        with around or nullcontext():
            work(is_quiet=is_quiet)
        stream.write("end")
        stream.flush()
        monkeypatch.undo()
        found = b""
        while not found.endswith(b"end"):  # a terminal passes on what was written in several parts
            found += os.read(above, 100_000)
    os.close(above)
    return found.decode()


@pytest.mark.parametrize("size", [(24, 70)])
def test_a_terminal_shows_how_far_and_how_long(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, size).split("\r")
    shape = r"snapshots:  67%\|.*\| 2/3 snapshots \[\d\d:\d\d<\d\d:\d\d"
    assert [line for line in lines if re.match(shape, line)], lines
    assert max(map(len, lines)) <= (size[1] or 80) + len("\r\nend")


def test_nothing_is_drawn_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, None) == "end"
    assert drawn(monkeypatch, (24, 70), is_quiet=True) == "end"


def test_a_command_gets_a_line_for_each_outer_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, None, around=phases_shown()) == "  snapshots (3 snapshots)\nend"
    assert drawn(monkeypatch, None, is_quiet=True, around=phases_shown()) == "  loading\n" * 3 + "end"
    assert drawn(monkeypatch, None) == "end"  # and nothing once the command has ended


def test_an_interruption_says_where_progress_lies_and_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(KeyboardInterrupt) as stopped, progress_in(tmp_path, "repeat the command with --resume"):
        raise KeyboardInterrupt
    text = f"the progress is saved in {tmp_path}; to continue, repeat the command with --resume."
    assert stopped.value.__notes__ == [text]
    with pytest.raises(KeyboardInterrupt) as stopped, progress_in(None):
        raise KeyboardInterrupt
    assert not vars(stopped.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OutputFault])
def test_progress_that_was_not_saved_is_not_mentioned(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "recipe.json").touch()
    (tmp_path / ".state.00000000-1-ab.tmp").touch()
    for place, saved in ((tmp_path, "**/state"), (tmp_path / "nowhere", "*"), (None, "*")):
        with pytest.raises(error) as stopped, progress_in(place, saved=saved):
            raise error
        assert not getattr(stopped.value, "__notes__", [])
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "state").touch()
    with pytest.raises(error) as stopped, progress_in(tmp_path, saved="**/state"):
        raise error
    assert str(tmp_path) in stopped.value.__notes__[0]
