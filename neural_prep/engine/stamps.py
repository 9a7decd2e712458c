"""What a block was made from, in 16 bytes: if they are the same again, its record still holds.

A stamp covers the block's positions, ages and times, and size and time of change of each local file
that holds its chunks, taken before the first of them is read: a file that changes while a run
reads it is found by the next one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from stat import S_ISDIR
from types import MappingProxyType

from neural_prep.data.source import Series
from neural_prep.errors import InputError

STAMP_SIZE = 16  # bytes of a digest

State = tuple[int, int]  # size in bytes, time of change in nanoseconds
_NONE: Mapping[str, State] = MappingProxyType({})
_UNREADABLE = -1  # as size; the other number is the error's


@dataclass(frozen=True, slots=True)
class Stamp:
    """A block's stamp.

    Attributes:
        digest: 16 bytes.
        files: The state of each file that the block is read from.
    """

    digest: bytes
    files: Mapping[str, State]


def take_stamp(series: Series, block: int, lag: int, known: Mapping[str, State] = _NONE) -> Stamp:
    """The stamp of a block as its store is now.

    Args:
        series: The block's series.
        block: Its index.
        lag: The longest lag, which may need steps of earlier blocks.
        known: Files' states from before they were read, which hold instead of newer ones.

    Raises:
        InputError: if a folder stands where a file should.
    """
    files = {path: known.get(path) or _state(path) for path in series.paths(block, lag)}
    digest = hashlib.blake2b(series.describe(block, lag), digest_size=STAMP_SIZE)
    digest.update(repr(list(files.values())).encode())
    return Stamp(digest.digest(), files)


def _state(path: str) -> State:
    """A file's state; that it is not there is one, since a chunk may be absent."""
    try:
        status = os.stat(path)
    except OSError as error:  # what it means is for whoever reads the file to say
        return _UNREADABLE, error.errno or 0
    if S_ISDIR(status.st_mode):  # some readers take it for nothing at all
        raise InputError(f"{path} is a folder; expected a file: write that part of the store again")
    return status.st_size, status.st_mtime_ns
