"""Phases of long work, with progress bars on a terminal, and notes about saved progress when work is interrupted."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import is_temporary
from bayesgeom.core.text import count_text, shortened

_SECOND = 1.0  # until the line of elapsed time appears, and between its updates
_NAME = 32  # letters before a bar: it fits 80 columns with its numbers
_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit}s [{elapsed}<{remaining}]"
_COLUMNS, _ROWS = 80, 24  # for a terminal that does not report its size
_open: list[tuple[str, bool]] = []  # the phases that run, the outermost first, and whether a bar shows each
_listening: list[Callable[[str], None]] = []  # what is told of outermost phases, outside of terminals


@contextlib.contextmanager
def phase(
    what: str,
    total: int | None = None,
    unit: str = "step",
    *,
    done: int = 0,
    leave: bool = False,
    is_quiet: bool = False,
) -> Iterator[Any]:
    """Around a part of long work: what the command line shows as running, with a bar if its size is known.

    From Python, a phase of known size draws its bar if standard error is a terminal; nothing else is ever written.

    Args:
        what: The part, in words: "loading smollm2".
        total: Its size. None: unknown, so that there is no bar.
        unit: What `total` counts, in the singular.
        done: How much of it was done before.
        leave: Whether the bar stays on the terminal at the end.
        is_quiet: Whether nothing is shown of it.

    Yields:
        A tqdm bar, hidden or not, whose `update` takes the numbers of units done.

    Example:
        >>> with phase("snapshots", 3, "snapshot") as shown:
        ...     for _ in range(3):
        ...         _ = shown.update(1)
    """
    if not (is_quiet or _open):
        size = "" if total is None else f" ({count_text(total - done, unit)})"
        for tell in _listening:
            tell(f"{what}{size}")
    with _bar(what, total, unit, done=done, leave=leave, is_hidden=is_quiet) as shown:
        entry = (what, not shown.disable)
        if not is_quiet:
            _open.append(entry)
        try:
            yield shown
        finally:
            if not is_quiet:
                _open.remove(entry)


def _bar(what: str, total: int | None, unit: str, *, done: int, leave: bool, is_hidden: bool) -> Any:
    """Return a tqdm bar, hidden where there is nothing to draw."""
    is_hidden = is_hidden or total is None or sys.stderr is None  # None: the process has no standard error
    size = {} if is_hidden else _size_of(sys.stderr)
    disable = True if is_hidden else None
    options = {"total": total, "desc": shortened(what, _NAME), "unit": f" {unit}", "bar_format": _FORMAT}
    return tqdm(**options, initial=done, leave=leave, disable=disable, **size)


def _size_of(stream: Any) -> dict[str, Any]:
    """Return tqdm's options for the size of a terminal that does not report one, as those of containers may."""
    with contextlib.suppress(OSError, ValueError):  # not a terminal, or an object without a file descriptor
        if os.get_terminal_size(stream.fileno()).columns <= 0:
            return {"ncols": _COLUMNS, "nrows": _ROWS}
    return {}


@contextlib.contextmanager
def phases_shown(what: str) -> Iterator[None]:
    """Around a command: show its phases on standard error.

    On a terminal, a line above all bars names the phase and counts the seconds; it appears after a second and vanishes
    at the end. Elsewhere each phase that is not part of another is a line.
    """
    stream = sys.stderr
    if stream is None:
        yield
        return
    if not stream.isatty():

        def tell(line: str) -> None:
            with contextlib.suppress(OSError):
                print(f"  {line}", file=stream, flush=True)

        _listening.append(tell)
        try:
            yield
        finally:
            _listening.remove(tell)
        return
    ended, begun = threading.Event(), time.monotonic()

    def count() -> None:
        if ended.wait(_SECOND):
            return
        with tqdm(bar_format="{desc}", leave=False, file=stream, **_size_of(stream)) as line:
            while not ended.is_set():
                known = [name for name, is_drawn in [*_open] if not is_drawn]
                line.set_description_str(f"{': '.join([what, *known[-1:]])}: {time.monotonic() - begun:.0f} s")
                ended.wait(_SECOND)

    counting = threading.Thread(target=count, name="elapsed", daemon=True)
    counting.start()
    try:
        yield
    finally:
        ended.set()
        counting.join()


@contextlib.contextmanager
def bars_cleared() -> Iterator[None]:
    """Around printing: bars on the terminal are removed first and drawn again afterwards."""
    with tqdm.external_write_mode():
        yield


@contextlib.contextmanager
def progress_in(place: Path | None, how: str = "repeat the same command", *, saved: str = "*") -> Iterator[None]:
    """Add a note to the exception that stops the work in the block: where its progress is saved, and how to continue.

    No note is added if nothing was saved.

    Args:
        place: Where the progress is saved. None: nowhere.
        how: How to continue, as an instruction.
        saved: Pattern of the files that hold it.
    """
    try:
        yield
    except (OutputFault, KeyboardInterrupt) as stopped:
        if place is not None and any(not is_temporary(path.name) for path in place.glob(saved)):
            is_full = isinstance(stopped, OutputFault)
            state = f"the progress saved in {place} is intact" if is_full else f"the progress is saved in {place}"
            stopped.add_note(f"{state}; to continue, {'free some disk space and ' if is_full else ''}{how}.")
        raise
