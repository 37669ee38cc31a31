"""Progress, as seen on a terminal and as kept on disk: bars, and what an interruption says."""

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

_SILENT_SECONDS = 1.0  # until the line of elapsed time appears, and between its updates
_COLUMNS, _ROWS = 80, 24  # of a terminal that does not know its size


def bar(over: Iterable[Any] | None = None, *, is_quiet: bool = False, **options: Any) -> Any:
    """A tqdm bar on a terminal, nothing elsewhere or where `is_quiet`; `options` are tqdm's.

    On a terminal without a size, as containers and `script` make them, tqdm would draw nothing at all.
    """
    is_hidden = is_quiet or sys.stderr is None  # None: the process was started without a standard error
    size = {} if is_hidden or _has_size() else {"ncols": _COLUMNS, "nrows": _ROWS}
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
def kept_in(place: Path | None, how: str = "repeat the same command") -> Iterator[None]:
    """Around work that keeps its progress in `place`, if anywhere: what stops it says so, and how to go on."""
    try:
        yield
    except OutputFault as fault:
        if place is not None:
            fault.add_note(f"what was saved in {place} is whole: to go on, make room and {how}.")
        raise
    except KeyboardInterrupt as stopped:
        if place is not None:
            stopped.add_note(f"what was done is kept in {place}; to go on, {how}.")
        raise


def _has_size() -> bool:
    """Whether standard error, where bars are drawn, says how large it is."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):  # no terminal, or a stand-in without a file
        return True
