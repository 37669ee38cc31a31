"""Memory for recorded activations: a given amount, or a share of the free memory.

The number of recorded sequences affects results. So the share is rounded down to a power of two, which rarely changes
when other programs allocate or free memory. The number of sequences is part of every report's provenance.
"""

import math
import os
from pathlib import Path

import torch

from bayesgeom.core.errors import InvalidArgument

PASS_BYTES = 256 * 2**20  # memory of one forward pass on a CPU, where larger passes are not faster
SHARE = 8  # an eighth of the free memory, because probes make float64 copies
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def recording_bytes(device: str, memory_gib: float | None = None) -> int:
    """Return the bytes that recorded activations may take.

    Args:
        device: Device of the model and of its activations.
        memory_gib: The allowed memory in GiB. None: the largest power of two within an eighth of the free memory, and
            at least 256 MiB.

    Raises:
        InvalidArgument: `memory_gib` is not a positive number.

    Example:
        >>> recording_bytes("cpu", 0.5) == 2**29
        True
    """
    if memory_gib is None:
        return max(PASS_BYTES, 1 << int(math.log2(max(1, free_bytes(device) // SHARE))))
    check_memory_gib(memory_gib)
    return max(1, int(memory_gib * 2**30))


def check_memory_gib(memory_gib: object) -> None:
    """Check that this is None or a positive number of GiB.

    Raises:
        InvalidArgument: It is not.
    """
    if memory_gib is None:
        return
    if isinstance(memory_gib, bool) or not isinstance(memory_gib, int | float) or not 0 < memory_gib < math.inf:
        raise InvalidArgument(f"memory_gib must be a positive number of GiB, got {memory_gib!r}.")


def pass_bytes(device: str, budget: int) -> int:
    """Return the bytes that one forward pass may take, given the budget for recorded activations."""
    return min(budget, PASS_BYTES) if torch.device(device).type == "cpu" else max(1, budget // 4)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch could not allocate memory, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def free_bytes(device: str) -> int:
    """Return the free memory of a device in bytes; for a CPU the smaller of system's and container's."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    return int(min(_of_system(), _of_container()))


def _of_system() -> int:
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux: half of the physical memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _of_container() -> float:
    """Free memory of the control group; infinity if there is no limit."""
    try:
        most, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return math.inf if most == "max" else max(0, int(most) - int(used))
    except (OSError, ValueError):
        return math.inf
