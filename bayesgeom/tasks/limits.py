"""What a task may cost: parameters are refused where one block of sequences would fill the memory or take very long.

Costs are estimates, within a factor of two of what was measured on one core for every task here. The limits are far
above any experiment of the papers: they are there for a slip of the keyboard, and for configs from elsewhere.
"""

import os
from collections.abc import Sequence
from typing import Any

from bayesgeom.core.errors import InvalidArgument

BLOCK = 128  # sequences drawn and run at a time
BLOCK_TOKENS = 2**20  # fewer of very long ones, so that memory does not grow with their length either
MOST_BYTES, MOST_SECONDS = 4e9, 600.0
MOST_BITS = 63  # of a whole number: what torch can hold
_TOKEN_BYTES = 25  # of a position without its posterior: id, whether it is scored, label, id for the model
_LABEL_BYTES = 100  # of an id: the text that tables and plots call it by
_BYTES_PER_SECOND, _STEP_SECONDS = 2e8, 2e-4
_UNITS = ((3.156e7, "years"), (86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def block_size(n_pos: int) -> int:
    """Return how many sequences of this length are drawn and run at a time.

    Example:
        >>> block_size(39), block_size(2**20)
        (128, 1)
    """
    return max(1, min(BLOCK, BLOCK_TOKENS // n_pos))


def check_affordable(
    task: Any,
    posterior_bytes: float,
    *,
    n_steps: float = 0.0,
    constant_bytes: float = 0.0,
    sequence_seconds: float = 0.0,
    constant_seconds: float = 0.0,
    on: Sequence[str],
) -> None:
    """Check that one block of a task can be drawn, with its posterior and its baselines.

    Args:
        task: The task, whose `name`, `n_pos` and `d_vocab` are read.
        posterior_bytes: Memory that one sequence's posterior and baselines take at their peak.
        n_steps: Steps that are drawn one after another.
        constant_bytes: Memory that does not grow with the number of sequences.
        sequence_seconds: Time for one sequence beyond that of writing its memory.
        constant_seconds: Time that does not grow with the number of sequences.
        on: Parameters that the cost depends on, for the message.

    Raises:
        InvalidArgument: It needs more than 4 GB or 10 minutes; the message states the estimate.
    """
    n_pos, d_vocab = task.n_pos, task.d_vocab
    n = block_size(n_pos)
    each = posterior_bytes + _TOKEN_BYTES * float(n_pos)
    n_bytes = n * each + constant_bytes + _LABEL_BYTES * float(d_vocab)
    seconds = n * each / _BYTES_PER_SECOND + n_steps * _STEP_SECONDS + n * sequence_seconds + constant_seconds
    if n_bytes <= MOST_BYTES and seconds <= MOST_SECONDS:
        return
    given = ", ".join(f"{name}={getattr(task, name)}" for name in on)
    raise InvalidArgument(
        f"task {task.name!r} with {given} needs about {_gigabytes(n_bytes)} of memory and {_time(seconds)} to draw "
        f"{n} sequence(s), one block; allowed are {_gigabytes(MOST_BYTES)} and {_time(MOST_SECONDS)}. Choose a smaller "
        f"task."
    )


def check_room(n: int, n_bytes: float) -> None:
    """Check that a number of sequences fits this machine's memory.

    Raises:
        InvalidArgument: They need more than there is; the message states the estimate.
    """
    there = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES") if os.name == "posix" else float("inf")
    if n_bytes > there:
        raise InvalidArgument(
            f"{n:,} sequences need about {_gigabytes(n_bytes)} of memory; this machine has {_gigabytes(there)}. Lower "
            f"n, or draw them in blocks with stream(n, seed=…)."
        )


def check_whole(name: str, value: object) -> None:
    """Check that a whole number fits 64 bits, so that it can be computed with and printed.

    Raises:
        InvalidArgument: It does not.
    """
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise InvalidArgument(f"{name} takes a whole number below 2^{MOST_BITS}, got one of {value.bit_length()} bits.")


def _gigabytes(n_bytes: float) -> str:
    """Memory, as a message states it."""
    return "more than a million GB" if n_bytes > 1e15 else f"{n_bytes / 1e9:,.3g} GB"


def _time(seconds: float) -> str:
    """A duration in the largest unit of which there is at least one, as a message states it."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return "more than 1,000 years" if seconds > 1_000 * _UNITS[0][0] else f"{seconds / size:.3g} {unit}"
