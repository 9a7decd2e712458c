"""Reads a region of an array; where that fails, chunk by chunk, to find those that are bad.

Of a shard whose index can be read, only those of its inner chunks are bad that cannot be decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from neural_prep.data.chunked.arrays import DataArray
from neural_prep.data.chunked.codecs import UNKNOWN_CODEC, codec_missing
from neural_prep.data.chunked.files import chunk_files
from neural_prep.data.retry import FetchError, reason_of
from neural_prep.errors import InputError, ReadError
from neural_prep.stats.corrupt import CorruptChunk

# What says nothing of a chunk: its bytes cannot be had, or nothing there can decode any.
_OTHER_ERRORS = (FetchError, MemoryError, ImportError, NotImplementedError, *UNKNOWN_CODEC)

Region = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What could be read of a region.

    Attributes:
        values: As stored; anything where `lost`.
        lost: Where corrupt chunks are; of the same shape if there are any.
        corrupt: The corrupt chunks.
    """

    values: NDArray[Any]
    lost: NDArray[np.bool_]
    corrupt: tuple[CorruptChunk, ...] = ()


def read_region(data: DataArray, region: Region, *, lenient: bool) -> Found:
    """Reads a region, and once more chunk by chunk if that fails.

    Args:
        data: The array.
        region: A range along each axis.
        lenient: Whether to go on without chunks that cannot be decoded.

    Raises:
        InputError: if a chunk cannot be decoded, or its bytes will never be had.
        ReadError: if a chunk's bytes cannot be had now, though it was tried several times.
    """
    try:
        try:
            _check_shards(data, region)
            return Found(np.asarray(data.stored.array[region]), np.zeros(0, np.bool_))
        except _OTHER_ERRORS:
            raise
        except Exception:  # every codec and every store has its own
            return _read_chunks(data, region, lenient)
    except UNKNOWN_CODEC as error:
        raise InputError(f"{data.place}: {codec_missing(error)}") from error
    except FetchError as error:
        kind = InputError if error.lasting else ReadError
        raise kind(
            f"{data.place}{_at(*data.times(_explicit(data, region)))} cannot be read ({error}); "
            "start again when it can"
        ) from error


def _read_chunks(data: DataArray, region: Region, lenient: bool) -> Found:
    """Reads each chunk of a region by itself, in as many attempts as its store allows."""
    array = data.stored.patient or data.stored.array
    region = _explicit(data, region)
    shape = [along.stop - along.start for along in region]
    values, lost = np.zeros(shape, array.dtype), np.zeros(shape, np.bool_)
    corrupt: dict[CorruptChunk, None] = {}
    for inside, error, chunk in _decode(array, region, data.stored.chunks, values):
        found = CorruptChunk(data.stored.name, _key(array, chunk), *data.times(chunk))
        if not lenient:
            raise InputError(_said_of(found, data, error)) from error
        lost[inside] = True
        corrupt[found] = None
    return Found(values, lost, tuple(corrupt))


def _check_shards(data: DataArray, region: Region) -> None:
    """Raises if a shard's file is empty, which zarr takes for a shard without chunks."""
    if data.stored.array.shards is None:
        return
    for path in chunk_files(data.stored, [region]):
        with suppress(OSError):
            if os.stat(path).st_size == 0:
                raise ValueError("it is empty")


def _explicit(data: DataArray, region: Region) -> Region:
    """The region with its ends as numbers."""
    sizes = zip(region, data.stored.shape, strict=True)
    return tuple(slice(*along.indices(size)[:2]) for along, size in sizes)


def _said_of(chunk: CorruptChunk, data: DataArray, error: Exception) -> str:
    return (
        f"{data.place}{_at(chunk.first, chunk.last)}: chunk {chunk.chunk} is corrupt "
        f"({reason_of(error)}); write it again, or count such chunks as missing with "
        "data.corrupt: missing"
    )


def _at(*times: str | None) -> str:
    """The times, in words; none where there is none, and one where both are the same."""
    given = dict.fromkeys(time for time in times if time is not None)
    return f" at {' to '.join(given)}" if given else ""


def _decode(
    array: zarr.Array[Any], region: Region, chunks: Sequence[int], values: NDArray[Any]
) -> Iterator[tuple[Region, Exception, Region]]:
    """Fills in the values of all chunks that can be decoded.

    Yields:
        Of each other one where it is in `values`, why, and all that the array has in it.
    """
    for chunk in _chunks(region, chunks, array.shape):
        wanted = _common(chunk, region)
        inside = tuple(
            slice(part.start - whole.start, part.stop - whole.start)
            for part, whole in zip(wanted, region, strict=True)
        )
        try:
            values[inside] = array[wanted]
        except _OTHER_ERRORS:
            raise
        except Exception as error:  # every codec has its own
            if tuple(chunks) == array.chunks:
                yield inside, error, chunk
            else:  # a shard
                for within, reason, inner in _decode(array, wanted, array.chunks, values[inside]):
                    yield _shifted(within, inside), reason, inner


def _shifted(within: Region, outer: Region) -> Region:
    return tuple(
        slice(a.start + b.start, a.stop + b.start) for a, b in zip(within, outer, strict=True)
    )


def _chunks(region: Region, chunks: Sequence[int], shape: Sequence[int]) -> Iterator[Region]:
    """All that the array has in each chunk that a region touches."""
    axes = [
        [
            slice(begin, min(begin + chunk, size))
            for begin in range(along.start // chunk * chunk, along.stop, chunk)
        ]
        for along, chunk, size in zip(region, chunks, shape, strict=True)
    ]
    yield from product(*axes)


def _common(chunk: Region, region: Region) -> Region:
    return tuple(
        slice(max(a.start, b.start), min(a.stop, b.stop))
        for a, b in zip(chunk, region, strict=True)
    )


def _key(array: zarr.Array[Any], chunk: Region) -> str:
    """The store's key of a chunk, or of the shard that it is in."""
    sizes = array.shards or array.chunks
    place = tuple(along.start // size for along, size in zip(chunk, sizes, strict=True))
    key = array.metadata.encode_chunk_key(place)
    return f"{array.path}/{key}" if array.path else key
