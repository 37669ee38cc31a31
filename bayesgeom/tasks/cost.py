"""Limits on the cost of a task: a block of sequences must fit the memory and take less than ten minutes.

Costs are estimates, within a factor of two of measurements on one core for every task here. The limits are far above
any experiment of the papers. They guard against typing errors and faulty configs.
"""

import os
from collections.abc import Sequence
from typing import Any

from bayesgeom.core.errors import InvalidArgument

BLOCK = 128  # sequences drawn and run at a time
BLOCK_TOKENS = 2**20  # fewer sequences if they are very long, so that memory does not grow with their length
MOST_BYTES, MOST_SECONDS = 4e9, 600.0
MOST_BITS = 63  # of an integer: torch's largest
_TOKEN_BYTES = 25  # per position, without its posterior: id, scored flag, label, id for the model
_LABEL_BYTES = 100  # per id: its label in tables and plots
_BYTES_PER_SECOND, _STEP_SECONDS = 2e8, 2e-4
_UNITS = ((3.156e7, "years"), (86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def block_size(n_pos: int) -> int:
    """Return the number of sequences of this length that are drawn and run together.

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
        task: The task; its `name`, `n_pos` and `d_vocab` are read.
        posterior_bytes: Peak memory of one sequence's posterior and baselines.
        n_steps: Number of steps drawn one after another.
        constant_bytes: Memory independent of the number of sequences.
        sequence_seconds: Time per sequence in addition to writing its memory.
        constant_seconds: Time independent of the number of sequences.
        on: Parameters that determine the cost, for the message.

    Raises:
        InvalidArgument: The block needs more than 4 GB or 10 minutes; the message states the estimate.
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
        f"task {task.name!r} with {given} needs about {_gigabytes(n_bytes)} of memory and {_time(seconds)} to draw one "
        f"block of sequences ({n}); the limits are {_gigabytes(MOST_BYTES)} and {_time(MOST_SECONDS)}. Choose a "
        f"smaller task."
    )


def check_room(n: int, n_bytes: float) -> None:
    """Check that n sequences fit this machine's memory.

    Raises:
        InvalidArgument: They need more memory than the machine has; the message states the estimate.
    """
    there = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES") if os.name == "posix" else float("inf")
    if n_bytes > there:
        raise InvalidArgument(
            f"{n:,} sequences need about {_gigabytes(n_bytes)} of memory; this machine has {_gigabytes(there)}. Lower "
            f"n, or draw them in blocks with stream(n, seed=…)."
        )


def check_whole(name: str, value: object) -> None:
    """Check that an integer fits 64 bits, so that torch can compute with it and Python can print it.

    Raises:
        InvalidArgument: It does not fit.
    """
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise InvalidArgument(f"{name} must be an integer below 2^{MOST_BITS}, got one of {value.bit_length()} bits.")


def _gigabytes(n_bytes: float) -> str:
    """Format an amount of memory for a message."""
    return "more than a million GB" if n_bytes > 1e15 else f"{n_bytes / 1e9:,.3g} GB"


def _time(seconds: float) -> str:
    """Format a duration for a message, in the largest unit that gives at least 1."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return "more than 1,000 years" if seconds > 1_000 * _UNITS[0][0] else f"{seconds / size:.3g} {unit}"
