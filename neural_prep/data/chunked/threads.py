"""How zarr works in this process: threads that decode, chunks requested at once, memory freed."""

from __future__ import annotations

import contextlib
import ctypes

import zarr

_DEFAULT = 10  # zarr's own
_M_MMAP_THRESHOLD = -3  # from malloc.h


def decode_with(threads: int) -> None:
    """Gives zarr and zarrs this many threads, where zarr's own settings don't say otherwise.

    zarrs takes that up when an array is opened; by itself each rank would use all cores.

    By itself it takes four more than there are cores, and ranks that share a machine then only push
    one another's chunks out of the caches: with one thread for each of two ranks on two cores,
    reading and summing zstd chunks is 1.1 to 1.3 times as fast, blosc-lz4 1.2.
    """
    if zarr.config.get("threading.max_workers", None) is None:
        zarr.config.set({"threading.max_workers": threads})


def request_at_once(requests: int) -> None:
    """Lets each read fetch so many chunks at once, where zarr's settings are its own."""
    if zarr.config.get("async.concurrency") == _DEFAULT:
        zarr.config.set({"async.concurrency": requests})


def free_at_once() -> None:
    """Has the C library give large arrays back to the system when they are freed.

    Glibc keeps them for others by itself. Where many are read at once and none is freed in the
    order in which it was made, half as much again as is in use lies idle in between. Smaller ones,
    such as most chunks, are soon free again, and mapping them anew each time costs a quarter of the
    speed.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 8_000_000)
