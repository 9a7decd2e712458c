"""How many threads zarr decodes with in this process, and how many chunks each read requests."""

from __future__ import annotations

import zarr

_DEFAULT = 10  # zarr's own


def decode_with(threads: int) -> None:
    """Gives zarr this many threads in this process, where its own settings don't say otherwise.

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
