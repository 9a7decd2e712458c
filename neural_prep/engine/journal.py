"""Finished blocks on disk: a run that was killed at any moment goes on where it was.

One folder, `<output.dir>/journal`, holds a file of records for each rank and start, and in
`run.json` what was run. Rank 0 holds a lock on the folder while the run lives, and alone looks
through it: a rank of an earlier start that is still dying may append to its own file meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from neural_prep.engine.differences import differences
from neural_prep.engine.locking import NAME as LOCK
from neural_prep.engine.locking import lock_folder
from neural_prep.engine.plan import Block, digest
from neural_prep.engine.records import (
    DamagedError,
    HeaderError,
    Scan,
    pack_header,
    pack_record,
    read_header,
    record_size,
    scan_records,
)
from neural_prep.errors import InputError
from neural_prep.stats.moments import Record
from neural_prep.writers.atomic import replacing

_log = logging.getLogger(__name__)

_SYNC = 5.0  # seconds between flushes to disk: what a node that loses power may lose
_SUFFIX = ".blocks"
_NAME = re.compile(r"start(\d+)-.*" + re.escape(_SUFFIX))
_ABOUT = "run.json"
_REMEDY = "choose another output.dir, remove that folder, or drop it with --output.resume never"


@dataclass(frozen=True, slots=True)
class Found:
    """Where the newest record of each finished block is.

    Attributes:
        start: Number of the start that goes on from them.
        files: Names of the journal's files.
        file: For each series the index of each block's file; -1: not finished.
        place: For each series where each block's record begins.
        damaged: Which files hold something else than records, one line each.
    """

    start: int
    files: tuple[str, ...]
    file: tuple[NDArray[np.int64], ...]
    place: tuple[NDArray[np.int64], ...]
    damaged: tuple[str, ...]

    @property
    def blocks(self) -> int:
        """Number of finished blocks."""
        return sum(int(np.count_nonzero(file >= 0)) for file in self.file)


@dataclass(slots=True)
class Journal:
    """The journal of one output folder.

    Attributes:
        folder: Where its files are.
        covered: What decides all blocks' bits, by name.
        shapes: `(K, V)` of each series' records.
        lengths: Number of blocks of each series.
        keep: Whether it stays when the result is written.
        required: Whether there must be finished blocks.
        found: What rank 0 has found.
    """

    folder: Path
    covered: Mapping[str, Any]
    shapes: Sequence[tuple[int, int]]
    lengths: Sequence[int]
    keep: bool = False
    required: bool = False
    found: Found | None = None
    _name: str = ""
    _file: FileIO | None = field(default=None, init=False)
    _synced: float = field(default=0.0, init=False)
    _lock: BinaryIO | None = field(default=None, init=False)

    def lock(self) -> None:
        """Keeps other runs from the same output, until this process ends.

        Raises:
            InputError: if another run is at work there, or if nothing can be written.
        """
        self._lock = lock_folder(self.folder)

    def find(self) -> Found:
        """Finds the finished blocks of all earlier starts.

        Raises:
            InputError: if they are another run's.
        """
        # Where a block is in two files, that of the later start holds.
        paths = self._paths()
        file = [np.full(length, -1, np.int64) for length in self.lengths]
        place = [np.zeros(length, np.int64) for length in self.lengths]
        damaged = []
        for number, path in enumerate(paths):
            scan = self._scan(path)
            for (series, index), begin in scan.records:
                if index < self.lengths[series]:  # else the store was longer then
                    file[series][index], place[series][index] = number, begin
            if scan.damage is not None:
                damaged.append(f"{path} is damaged at byte {scan.damage}")
        names = tuple(path.name for path in paths)
        self.found = Found(_next_start(names), names, tuple(file), tuple(place), tuple(damaged))
        self._say_what_is_run()
        return self.found

    def discard(self) -> None:
        """Removes earlier starts' files."""
        try:
            for path in self._paths():
                path.unlink()
        except OSError as error:
            raise InputError(
                f"output.resume: never, but {path} cannot be removed "
                f"({os.strerror(error.errno or 0)}); remove it, or choose another output.dir"
            ) from error

    def begin(self, start: int, rank: int) -> None:
        """Says which start and rank writes; its file is made with its first block."""
        self._name = f"start{start:06d}-rank{rank}"

    def add(self, block: Block, stamp: bytes, record: Record) -> None:
        """Appends a finished block; where that fails, the next block may be tried.

        Raises:
            OSError: if it cannot be written; the file is as it was.
        """
        if self._file is None:
            self._file = self._open(self._name)
        end = self._file.tell()
        try:
            _write(self._file, pack_record(block, stamp, record))
        except OSError:
            self._cut_off(end)
            raise

    def _cut_off(self, end: int) -> None:
        """Takes back what was written after `end`; where that fails, the file is given up."""
        assert self._file is not None
        try:
            self._file.truncate(end)
            self._file.seek(end)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def sync(self) -> None:
        """Flushes to disk what this rank has written, if that has not been done for a while.

        Raises:
            OSError: if that fails.
        """
        if self._file is not None and time.monotonic() - self._synced > _SYNC:
            self._synced = time.monotonic()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends this rank's file, flushed to disk."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            with file:
                os.fsync(file.fileno())
        except OSError as error:
            _log.error("warning: %s", self.unwritten(error))

    def unwritten(self, error: OSError) -> str:
        """What the user is told when a block cannot be written."""
        return (
            f"{self.folder} cannot be written to ({os.strerror(error.errno or 0)}): blocks that "
            "finish while that lasts are read again if this run is stopped"
        )

    def finish(self) -> None:
        """Ends the journal of a run whose result is written: removes it, or keeps the blocks."""
        self.close()
        try:
            if self.keep:
                self._compact()
            else:
                # Its own files alone, the lock last: the next run may begin then.
                for path in (*self._paths(), self.folder / _ABOUT, self.folder / LOCK):
                    path.unlink(missing_ok=True)
        except OSError as error:
            what = "made smaller" if self.keep else "removed"
            remedy = "" if self.keep else "; remove it, or the next run goes on from it"
            reason = os.strerror(error.errno or 0)
            _log.warning("warning: %s cannot be %s (%s)%s", self.folder, what, reason, remedy)
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if not self.keep:
            with contextlib.suppress(OSError):  # another run may have begun there
                self.folder.rmdir()

    def _paths(self) -> list[Path]:
        """The journal's files of records, in the order of starts; what else is there stays."""
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def _compact(self) -> None:
        """Brings the newest record of each block into one file, and removes all others."""
        found = self.find()
        paths = [self.folder / name for name in found.files]
        with replacing(self.folder / f"start{found.start:06d}-all{_SUFFIX}") as (out,):
            out.write(pack_header(digest(self.covered)))
            for number, path in enumerate(paths):
                with path.open("rb") as file:
                    for series, shape in enumerate(self.shapes):
                        for index in np.flatnonzero(found.file[series] == number):
                            file.seek(found.place[series][index])
                            out.write(file.read(record_size(shape)))
        for path in paths:
            path.unlink()

    def _scan(self, path: Path) -> Scan:
        """The records of a file; none of one that ends before it says what it is.

        Raises:
            InputError: if it is another run's.
        """
        with _opened(path) as file:
            try:
                run = read_header(file)
            except DamagedError:
                return Scan(damage=0)
            except HeaderError as error:
                raise InputError(f"{path} is {error}; {_REMEDY}") from None
            if run is None:
                return Scan()
            if run != digest(self.covered):
                raise InputError(
                    f"{self.folder} holds blocks of another run{self._difference(run)}; {_REMEDY}"
                )
            return scan_records(file, self.shapes)

    def _difference(self, run: str) -> str:
        """How another run differs from this one, where that is known."""
        try:
            covered = json.loads((self.folder / _ABOUT).read_bytes())
        except (OSError, ValueError):
            return ""
        return f": {differences(covered, self.covered)}" if digest(covered) == run else ""

    def _say_what_is_run(self) -> None:
        with contextlib.suppress(OSError), replacing(self.folder / _ABOUT) as (file,):
            file.write(json.dumps(self.covered, default=str).encode())

    def _open(self, name: str) -> FileIO:
        path = self.folder / f"{name}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
        file = FileIO(path, "xb")
        try:
            _write(file, pack_header(digest(self.covered)))
        except OSError:
            with file:
                path.unlink()
            raise
        self._synced = time.monotonic()
        return file


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file of an earlier start.

    Raises:
        InputError: if it cannot be read.
    """
    try:
        if not path.is_file():  # a pipe would be waited for
            raise OSError(errno.EINVAL, "it is no file")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): make it readable, or remove it, and its "
            "blocks are read again"
        ) from error


def _next_start(names: Sequence[str]) -> int:
    return 1 + max((int(found[1]) for name in names if (found := _NAME.fullmatch(name))), default=0)


def _write(file: FileIO, content: bytes) -> None:
    """Writes all of it; a disk that takes a part is full."""
    if file.write(content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
