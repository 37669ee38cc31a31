"""Progress bars on a terminal, and notes about saved progress when work is interrupted."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from bayesgeom.core.errors import OutputFault

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
    size = {} if is_hidden or _has_size() else {"ncols": _COLUMNS, "nrows": _ROWS}
    return tqdm(over, disable=True if is_hidden else None, **size, **options)


@contextlib.contextmanager
def kept_in(place: Path | None, how: str = "repeat the same command") -> Iterator[None]:
    """Add a note to the exception that stops the work in the block: where its progress is saved, and how to continue.

    Args:
        place: Where the progress is saved. None: nowhere, and no note is added.
        how: How to continue, as an instruction.
    """
    try:
        yield
    except OutputFault as fault:
        if place is not None:
            fault.add_note(f"the progress saved in {place} is intact; to continue, free some disk space and {how}.")
        raise
    except KeyboardInterrupt as stopped:
        if place is not None:
            stopped.add_note(f"the progress is saved in {place}; to continue, {how}.")
        raise


def _has_size() -> bool:
    """Whether the terminal behind standard error reports its size."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):  # not a terminal, or an object without a file descriptor
        return True
