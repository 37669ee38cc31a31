"""Phases of long work, with progress bars on a terminal, and notes about saved progress when work is interrupted."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import is_temporary
from bayesgeom.core.text import count_text, shortened

_NAME = 32  # letters before a bar: it fits 80 columns with its numbers
_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit}s [{elapsed}<{remaining}]"
_open: list[str] = []  # the phases that run, the outermost first
_listening: list[Callable[[str], None]] = []  # what is told of outermost phases


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
    is_hidden = is_quiet or total is None or sys.stderr is None  # None: the process has no standard error
    options = {"total": total, "desc": shortened(what, _NAME), "unit": f" {unit}", "bar_format": _FORMAT}
    with tqdm(**options, initial=done, leave=leave, disable=True if is_hidden else None) as shown:
        _open.extend([] if is_quiet else [what])
        try:
            yield shown
        finally:
            if not is_quiet:
                _open.remove(what)


@contextlib.contextmanager
def phases_shown() -> Iterator[None]:
    """Around a command: write a line on standard error for each phase that is not part of another."""
    stream = sys.stderr

    def tell(line: str) -> None:
        with contextlib.suppress(OSError):
            print(f"  {line}", file=stream, flush=True)

    if stream is not None:
        _listening.append(tell)
    try:
        yield
    finally:
        _listening.clear()


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
