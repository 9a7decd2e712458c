"""Finished blocks on disk: a run that was killed at any moment goes on where it was.

One folder, `<output.dir>/journal`, holds a file for each rank and start. A file begins with a line
of JSON that says what was run; records follow, each with its length and checksum, so that a torn
one at the end is known and dropped. Rank 0 holds a lock on the folder while the run lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import socket
import struct
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from neural_prep.errors import InputError
from neural_prep.stats.moments import Record

_log = logging.getLogger(__name__)

SCHEMA = "neural-prep/journal/1"
_FRAME = struct.Struct("<IIQII")  # checksum, series, block, kinds, variables
_MOMENTS = 8
_SYNC = 5.0  # seconds between flushes to disk: what a node that loses power may lose
_SUFFIX = ".blocks"
_LOCK = "lock"

Block = tuple[int, int]  # series, index


@dataclass(slots=True)
class Journal:
    """The journal of one output folder.

    Attributes:
        folder: Where its files are.
        covered: What decides the blocks' bits, by name.
        shapes: `(K, V)` of each series' records.
    """

    folder: Path
    covered: Mapping[str, Any]
    shapes: Sequence[tuple[int, int]]
    _file: FileIO | None = field(default=None, init=False)
    _synced: float = field(default=0.0, init=False)
    _lock: BinaryIO | None = field(default=None, init=False)
    _places: dict[Block, tuple[Path, int]] = field(default_factory=dict, init=False)

    def lock(self) -> None:
        """Keeps other runs from the same output, until this process ends.

        Raises:
            InputError: if another run is at work there.
        """
        self.folder.mkdir(exist_ok=True)
        lock = (self.folder / _LOCK).open("a+b")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().decode(errors="replace") or "an unknown process"
            lock.close()
            raise InputError(
                f"output.dir: {self.folder.parent} is being written to by another run ({owner}); "
                "wait for its end, or choose another folder"
            ) from None
        except OSError:  # a file system without locks
            _log.warning("warning: %s cannot be locked; start one run there at a time", self.folder)
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        lock.flush()
        self._lock = lock

    def find(self) -> frozenset[Block]:
        """Finds the finished blocks of all earlier starts.

        Raises:
            InputError: if they are another run's.
        """
        self._places.clear()
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            with path.open("rb") as file:
                if self._is_ours(path, file.readline()):
                    for block, place in self._records(file):
                        self._places[block] = (path, place)
        return frozenset(self._places)

    def load(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, Record]]:
        """Records of blocks that were found."""
        for block in blocks:
            path, place = self._places[block]
            kinds, variables = self.shapes[block[0]]
            record = np.fromfile(path, np.float64, _MOMENTS * kinds * variables, offset=place)
            yield block, record.reshape(_MOMENTS, kinds, variables)

    def open(self, rank: int) -> None:
        """Begins this rank's file of this start."""
        path = self.folder / f"rank{rank}-{uuid.uuid4().hex}{_SUFFIX}"
        file = path.open("xb", buffering=0)
        _write(file, json.dumps({"schema": SCHEMA, "covered": self.covered}).encode() + b"\n")
        self._file, self._synced = file, time.monotonic()

    def add(self, block: Block, record: Record) -> None:
        """Appends a finished block; where that fails, the run goes on without its journal."""
        if self._file is None:
            return
        series, index = block
        _, kinds, variables = record.shape
        body = _FRAME.pack(0, series, index, kinds, variables)[4:] + record.tobytes()
        end = self._file.tell()
        try:
            _write(self._file, struct.pack("<I", zlib.crc32(body)) + body)
            if time.monotonic() - self._synced > _SYNC:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            _log.error(
                "warning: %s cannot be written to (%s): blocks that finish from now on will be "
                "read again if this run is stopped",
                self.folder,
                os.strerror(error.errno or 0),
            )
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            self.close()

    def close(self) -> None:
        """Flushes to disk what this rank has written."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._file.fileno())
                self._file.close()
            self._file = None

    def remove(self) -> None:
        """Removes the journal, whose result is written."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def discard(self) -> None:
        """Removes earlier starts' files."""
        for path in self.folder.glob(f"*{_SUFFIX}"):
            path.unlink()

    def _is_ours(self, path: Path, head: bytes) -> bool:
        """Whether a file is of this run; False for one that ends before it says what it is.

        Raises:
            InputError: if it is another run's.
        """
        if not head.endswith(b"\n"):
            return False
        remedy = (
            "choose another output.dir, remove that folder, or drop it with --output.resume never"
        )
        try:
            header = json.loads(head)
            schema, covered = header["schema"], header["covered"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path} is no journal of neural-prep; {remedy}") from None
        if schema != SCHEMA:
            raise InputError(f"{path} is {schema}, not {SCHEMA}: another version's; {remedy}")
        wanted = json.loads(json.dumps(self.covered))
        for name in dict.fromkeys([*wanted, *covered]):
            if covered.get(name) != wanted.get(name):
                what = f"{name} was {covered.get(name)}, now {wanted.get(name)}"
                if name == "store":
                    what = "the store, or what is selected of it, has changed since"
                raise InputError(f"{self.folder} holds blocks of another run: {what}; {remedy}")
        return True

    def _records(self, file: BinaryIO) -> Iterator[tuple[Block, int]]:
        """Where a file's records are, up to the first that is torn."""
        while len(frame := file.read(_FRAME.size)) == _FRAME.size:
            checksum, series, index, kinds, variables = _FRAME.unpack(frame)
            if series >= len(self.shapes) or (kinds, variables) != tuple(self.shapes[series]):
                return
            place = file.tell()
            body = file.read(_MOMENTS * kinds * variables * 8)
            if zlib.crc32(frame[4:] + body) != checksum:
                return
            yield (series, index), place


def _write(file: FileIO, content: bytes) -> None:
    """Writes all of it; a disk that takes a part is full."""
    if file.write(content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
