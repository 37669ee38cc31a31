"""Progress, as seen on a terminal and as kept on disk: bars, and what an interruption says."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from bayesgeom.core.errors import OutputFault

_COLUMNS, _ROWS = 80, 24  # of a terminal that does not know its size


def bar(over: Iterable[Any] | None = None, *, is_quiet: bool = False, **options: Any) -> Any:
    """A tqdm bar on a terminal, nothing elsewhere or where `is_quiet`; `options` are tqdm's.

    On a terminal without a size, as containers and `script` make them, tqdm would draw nothing at all.
    """
    is_hidden = is_quiet or sys.stderr is None  # None: the process was started without a standard error
    size = {} if is_hidden or _has_size() else {"ncols": _COLUMNS, "nrows": _ROWS}
    return tqdm(over, disable=True if is_hidden else None, **size, **options)


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
