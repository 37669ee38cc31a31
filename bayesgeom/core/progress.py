"""Progress bars on a terminal, and notes about saved progress when work is interrupted."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import is_temporary

_SILENT_SECONDS = 1.0  # until the line of elapsed time appears, and between its updates
_COLUMNS, _ROWS = 80, 24  # for a terminal that does not report its size


def bar(over: Iterable[Any] | None = None, *, is_quiet: bool = False, **options: Any) -> Any:
    """Return a tqdm progress bar, hidden if `is_quiet` or if standard error is not a terminal.

    Terminals of containers and of `script` may report no size. tqdm alone would draw nothing there.

    Args:
        over: Items to iterate over. None: update the bar by hand.
        is_quiet: Whether to hide the bar.
        options: Further arguments of tqdm.
    """
    is_hidden = is_quiet or sys.stderr is None  # None: the process has no standard error
    size = {}
    with contextlib.suppress(OSError, ValueError):  # not a terminal, or an object without a file descriptor
        if not is_hidden and os.get_terminal_size(sys.stderr.fileno()).columns <= 0:
            size = {"ncols": _COLUMNS, "nrows": _ROWS}
    return tqdm(over, disable=True if is_hidden else None, **size, **options)


@contextlib.contextmanager
def elapsed_shown(what: str) -> Iterator[None]:
    """Around work that may be silent for long: on a terminal, a line counts its seconds above all bars.

    The line appears after a second and vanishes at the end. Elsewhere than on a terminal nothing is shown.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    ended, begun = threading.Event(), time.monotonic()

    def count() -> None:
        if ended.wait(_SILENT_SECONDS):
            return
        with bar(bar_format="{desc}", leave=False) as line:
            while not ended.is_set():
                line.set_description_str(f"{what}: {time.monotonic() - begun:.0f} s")
                ended.wait(_SILENT_SECONDS)

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
