"""Has the C library keep memory that was freed, for the next piece.

By itself glibc gives large blocks back to the kernel, and each thread allocates from an arena of
its own that is too small for pieces: every piece then costs page faults and the zeroing of its
pages. Measured on zarr stores: 1.1 to 1.2 times the speed of reading and summing.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h
_LARGEST = 32 << 20  # what glibc takes at most; larger blocks are always the kernel's
_KEPT = 1 << 30  # bytes


def keep_memory() -> None:
    """Sets this process' allocator up; does nothing where it is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in (
        (_ARENA_MAX, 1),
        (_MMAP_THRESHOLD, _LARGEST),
        (_TRIM_THRESHOLD, _KEPT),
    ):
        mallopt(option, value)
