"""A file of finished blocks: a line of JSON that says of which run, then one record for each block.

A record carries its checksum, so that one that was torn when its rank was killed is known. It also
carries the block's stamp: what it was made from.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from neural_prep.engine.plan import Block
from neural_prep.engine.stamps import STAMP_SIZE
from neural_prep.stats.moments import Record

SCHEMA = "neural-prep/journal/2"
_FRAME = struct.Struct(f"<IIQII{STAMP_SIZE}s")  # checksum, series, block, kinds, variables, stamp
_MOMENTS = 8


class HeaderError(Exception):
    """A file is another version's."""


class DamagedError(Exception):
    """Something else stands where a record should."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a file holds.

    Attributes:
        records: Each whole record's block, and where it begins.
        damage: Where something begins that is neither a record nor the torn end of one.
    """

    records: Sequence[tuple[Block, int]] = ()
    damage: int | None = None


def pack_header(run: str) -> bytes:
    """The first line of a file of this run."""
    return json.dumps({"schema": SCHEMA, "run": run}).encode() + b"\n"


def read_header(file: BinaryIO) -> str | None:
    """The run that a file is of; None for one that ends before it says so.

    Raises:
        DamagedError: if it begins with something else.
        HeaderError: if it is another version's.
    """
    line = file.readline()
    if not line.endswith(b"\n"):
        return None
    try:
        header = json.loads(line)
        schema, run = str(header["schema"]), str(header.get("run"))
    except (ValueError, KeyError, TypeError):
        raise DamagedError from None
    if schema != SCHEMA:
        raise HeaderError(f"{schema}, not {SCHEMA}: another version's")
    return run


def pack_record(block: Block, stamp: bytes, record: Record) -> bytes:
    """A record as it is written."""
    _, kinds, variables = record.shape
    frame = _FRAME.pack(0, *block, kinds, variables, stamp)[4:]
    return struct.pack("<I", zlib.crc32(record.tobytes(), zlib.crc32(frame))) + (
        frame + record.tobytes()
    )


def scan_records(file: BinaryIO, shapes: Sequence[tuple[int, int]]) -> Scan:
    """The whole records of a file, from where it stands to the first that is torn or damaged.

    Args:
        file: The file, its header read.
        shapes: `(K, V)` of each series' records.
    """
    records, begin = [], file.tell()
    try:
        while found := _read(file, shapes):
            records.append((found[0], begin))
            begin = file.tell()
    except DamagedError:
        return Scan(records, begin)
    return Scan(records)


def record_size(shape: tuple[int, int]) -> int:
    """Bytes of a record of this shape `(K, V)` as it is written."""
    return _FRAME.size + _MOMENTS * shape[0] * shape[1] * 8


def read_record(
    path: Path, begin: int, shapes: Sequence[tuple[int, int]]
) -> tuple[Block, bytes, Record] | None:
    """Block, stamp and record that begin at a place; None where there is no whole record.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        file.seek(begin)
        try:
            return _read(file, shapes)
        except DamagedError:
            return None


def _read(file: BinaryIO, shapes: Sequence[tuple[int, int]]) -> tuple[Block, bytes, Record] | None:
    """The next record; None where the file ends in it: what was torn is at the end.

    Raises:
        DamagedError: if it is no record.
    """
    frame = file.read(_FRAME.size)
    if len(frame) < _FRAME.size:
        return None
    checksum, series, index, kinds, variables, stamp = _FRAME.unpack(frame)
    if series >= len(shapes) or (kinds, variables) != tuple(shapes[series]):
        raise DamagedError
    size = record_size((kinds, variables)) - _FRAME.size
    body = file.read(size)
    if len(body) < size:
        return None
    if zlib.crc32(body, zlib.crc32(frame[4:])) != checksum:
        raise DamagedError
    record = np.frombuffer(bytearray(body), np.float64).reshape(_MOMENTS, kinds, variables)
    return (series, index), stamp, record
