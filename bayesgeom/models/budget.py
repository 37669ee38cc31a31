"""Memory for recorded activations: what the caller allows, or a share of what is free.

How many sequences are recorded decides numbers. So the share is rounded down to a power of two: it stays the same while
other programs take or free a little, and the number of sequences stands in every report's provenance.
"""

import math
import os
from pathlib import Path

import torch

from bayesgeom.core.errors import InvalidArgument

PASS_BYTES = 256 * 2**20  # of one forward pass on a CPU: larger ones are not faster there
SHARE = 8  # probes make float64 copies of what they read
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def recording_bytes(device: str, memory_gib: float | None = None) -> int:
    """Return the bytes that recorded activations may take.

    Args:
        device: Where the model runs, and where its activations are kept.
        memory_gib: What the caller allows. None is the largest power of two within an eighth of the free memory, and
            at least 256 MiB.

    Raises:
        InvalidArgument: `memory_gib` is no positive number.

    Example:
        >>> recording_bytes("cpu", 0.5) == 2**29
        True
    """
    if memory_gib is None:
        return max(PASS_BYTES, 1 << int(math.log2(max(1, free_bytes(device) // SHARE))))
    check_memory_gib(memory_gib)
    return max(1, int(memory_gib * 2**30))


def check_memory_gib(memory_gib: object) -> None:
    """**Raises** `InvalidArgument` unless this is None or a positive number of GiB."""
    if memory_gib is None:
        return
    if isinstance(memory_gib, bool) or not isinstance(memory_gib, int | float) or not 0 < memory_gib < math.inf:
        raise InvalidArgument(f"memory_gib must be a positive number of GiB, got {memory_gib!r}.")


def pass_bytes(device: str, budget: int) -> int:
    """Return the bytes that one forward pass may take, where so many are allowed for recorded activations."""
    return min(budget, PASS_BYTES) if torch.device(device).type == "cpu" else max(1, budget // 4)


def free_bytes(device: str) -> int:
    """Return the free memory of a device: of a CPU what the system and the container have left."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    return int(min(_of_system(), _of_container()))


def _of_system() -> int:
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # no Linux: half of what there is
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _of_container() -> float:
    """What the control group leaves; without a limit, infinity."""
    try:
        most, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return math.inf if most == "max" else max(0, int(most) - int(used))
    except (OSError, ValueError):
        return math.inf
