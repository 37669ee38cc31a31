"""Keep freed memory, on request: glibc returns large buffers to the system and faults them in again at every step.

The setting changes the whole process and cannot be taken back. So no function of the package asks for it: the command
line does where the environment variable `BAYESGEOM_KEEP_FREED_MEMORY` is 1, and your program may.
"""

import ctypes
import ctypes.util
import os
import sys

VARIABLE = "BAYESGEOM_KEEP_FREED_MEMORY"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP, _LARGEST_HEAP_BLOCK = 2**31 - 1, 32 * 2**20


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed memory for the rest of the process.

    Training steps and ablations allocate buffers of the same sizes again and again. `benchmarks/training_step.py`
    measures the effect on your machine.

    Returns:
        Whether the C library accepted: only glibc has the setting.
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
    """Return whether the environment asks the command line to keep freed memory."""
    return os.environ.get(VARIABLE) == "1"
