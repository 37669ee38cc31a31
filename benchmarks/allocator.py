"""Keep freed memory: by default glibc returns large buffers to the system and faults them in again.

The setting affects the whole process and cannot be undone. Outside of benchmarks, set it before Python starts, by
`GLIBC_TUNABLES=glibc.malloc.trim_threshold=2147483647:glibc.malloc.mmap_threshold=33554432`.
"""

import ctypes
import ctypes.util
import sys

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
