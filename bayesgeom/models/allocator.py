"""An option to keep freed memory: by default glibc returns large buffers to the system and faults them in again.

The setting affects the whole process and cannot be undone. So no function of the package sets it. The command line sets
it if the environment variable `BAYESGEOM_KEEP_FREED_MEMORY` is 1; your program can call `keep_freed_memory`.
"""

import ctypes
import ctypes.util
import os
import sys

VARIABLE = "BAYESGEOM_KEEP_FREED_MEMORY"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP, _LARGEST_HEAP_BLOCK = 2**31 - 1, 32 * 2**20


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for the rest of the process.

    Training steps and ablations repeatedly allocate buffers of the same sizes. `benchmarks/training_step.py`
    measures the effect on your machine.

    Returns:
        Whether the setting was applied. Only glibc supports it.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    try:
        mallopt = library.mallopt
    except AttributeError:  # musl has none
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_HEAP_BLOCK) and mallopt(_M_TRIM_THRESHOLD, _KEEP))


def is_requested() -> bool:
    """Return whether the environment variable is set."""
    return os.environ.get(VARIABLE) == "1"
