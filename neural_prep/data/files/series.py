"""A series of `.npy` files, each of them one trajectory, cut into blocks of whole files.

Files are memory-mapped and used in place where their type allows, so that reading costs no copy.
The price: a file that is cut off by someone else while its values are in use kills the process
(SIGBUS), as with every map; what cannot be read before, and a change between two pieces, is named.

Legend: T steps, O outer and I inner variables, N grid points, F files, B blocks.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neural_prep.data.files.headers import cut_off_header
from neural_prep.data.files.pages import bring_in
from neural_prep.data.retry import RETRIES, is_transient, reason_of, retry
from neural_prep.data.source import Outline, Piece, Span
from neural_prep.data.values import check_dtype, float_type, to_float
from neural_prep.errors import InputError, ReadError
from neural_prep.stats.corrupt import CorruptChunk

_PIECE_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """One `.npy` file that has been opened once: its header and its length are right.

    Attributes:
        path: The file.
        shape: Its whole shape.
        dtype: Its stored type.
        label: What its steps belong to, for messages.
        stamp: Its length in bytes and the time of its last change, in nanoseconds.
        corrupt: Its entry in the result, where it is cut off and counts as missing.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    label: str
    stamp: tuple[int, int]
    corrupt: CorruptChunk | None = None

    def load(self) -> NDArray[np.generic]:
        """The whole array, memory-mapped.

        Raises:
            InputError: if the file is not what it was when it was opened.
        """
        try:
            changed = _stamp(self.path) != self.stamp
        except FileNotFoundError:
            changed = True
        if changed:
            raise InputError(
                f"{self.path} has changed since the run began; start again when no one writes to "
                "the store"
            )
        return _map(self.path)


def open_file(
    path: Path,
    dims: Sequence[str],
    label: str = "",
    *,
    retries: int = RETRIES,
    if_cut_off: CorruptChunk | None = None,
) -> ArrayFile:
    """Checks a file's header and length without reading its values.

    Args:
        path: The file.
        dims: Names of the dimensions that are expected.
        label: What its steps belong to, for messages.
        retries: How often what fails for the moment is read again.
        if_cut_off: Its entry in the result if it is cut off; None: that is an error.

    Raises:
        InputError: if it is no whole `.npy` file of numbers with these dimensions.
    """
    corrupt = None
    try:
        stamp = retry(str(path), retries, _stamp, path)  # before the map: a later change is found
        header = None if if_cut_off is None else retry(str(path), retries, cut_off_header, path)
        if header is not None:
            (shape, dtype), corrupt = header, if_cut_off
        else:
            array = retry(str(path), retries, _map, path)
            shape, dtype = array.shape, array.dtype
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}); make it readable or remove it"
        ) from error
    if len(shape) != len(dims) or 0 in shape:
        raise InputError(
            f"{path} has shape {shape}; expected ({', '.join(dims)}), each at least 1: "
            "write it again or remove it"
        )
    check_dtype(dtype, str(path))
    return ArrayFile(path, shape, dtype, label, stamp, corrupt)


@dataclass(frozen=True)
class FileSeries:
    """Files of one kind as a series; implements `Series`.

    A block is as many whole files as fit into `block_bytes`, at least one. So a block needs no
    earlier steps for its lags: its pieces follow one another, and no trajectory spans two blocks.

    Attributes:
        group: The group that the variables belong to.
        columns: Positions in the group of the O * I variables; -1: not used.
        files: The files, at least one and of one type, in the order in which they are counted.
        shape: What a step looks like: (O, N, I), before `kept`.
        timed: Whether the files' first dimension is time; else each file is one step.
        kept: `(N,)`: which grid points are used; None: all.
        block_bytes: Uncompressed bytes that a block aims at.
        retries: How often what fails for the moment is read again.
        block_nbytes: Uncompressed bytes of each block, `(B,)`.
    """

    group: str
    columns: tuple[int, ...]
    files: tuple[ArrayFile, ...]
    shape: tuple[int, int, int]
    timed: bool
    kept: NDArray[np.bool_] | None
    block_bytes: int
    retries: int = RETRIES
    block_nbytes: NDArray[np.int64] = field(init=False)
    _points: NDArray[np.intp] | None = field(init=False)  # indices of the points that are kept
    _starts: NDArray[np.int64] = field(init=False)  # (F + 1,): each file's first position
    _cuts: list[int] = field(init=False)  # (B + 1,): each block's first file

    def __post_init__(self) -> None:
        steps = [file.shape[0] if self.timed else 1 for file in self.files]
        nbytes = [count * self._step_nbytes for count in steps]
        cuts = _pack(nbytes, self.block_bytes)
        sums = np.concatenate(([0], np.cumsum(nbytes)))
        points = None if self.kept is None else np.flatnonzero(self.kept)
        # A frozen dataclass sets what it derives through its base class.
        object.__setattr__(self, "_points", points)
        object.__setattr__(self, "_starts", np.concatenate(([0], np.cumsum(steps))))
        object.__setattr__(self, "_cuts", cuts)
        object.__setattr__(self, "block_nbytes", np.diff(sums[cuts]))

    @property
    def _step_nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.files[0].dtype.itemsize

    @property
    def reach(self) -> int:
        """Steps of the longest file before its last; see `Series.reach`."""
        return int(np.diff(self._starts).max()) - 1

    def predecessor(self, block: int) -> int | None:
        """None: no trajectory spans two files."""
        return None

    def spans(
        self, block: int, *, lag: int, piece_steps: int | None, continued: bool
    ) -> Iterator[Span]:
        """Spans of each file of the block, none with context; see `Series.spans`."""
        step_nbytes = self._step_nbytes
        steps = self._piece_steps(piece_steps)
        files = range(self._cuts[block], self._cuts[block + 1])
        for file in files:
            begin, end = int(self._starts[file]), int(self._starts[file + 1])
            for first in range(begin, end, steps):
                stop = min(first + steps, end)
                yield Span(
                    block=block,
                    first=first,
                    stop=stop,
                    context=0,
                    part=0,
                    last=file == files[-1] and stop == end,
                    nbytes=(stop - first) * step_nbytes,
                )

    def outline(self, *, lag: int, piece_steps: int | None) -> Outline:
        """What reading all blocks takes: none needs earlier steps; see `Series.outline`."""
        lengths = np.diff(self._starts)
        steps = self._piece_steps(piece_steps)
        return Outline(
            objects=len(self.files),
            pieces=np.add.reduceat(-(-lengths // steps), self._cuts[:-1]),
            again=np.zeros(len(self.block_nbytes), np.int64),
            apart=1,
            growth=self._growth,
            piece_nbytes=min(steps, int(lengths.max())) * self._step_nbytes * self._growth,
            step_nbytes=self._step_nbytes * self._growth,
        )

    @property
    def _growth(self) -> int:
        """Bytes in memory for each byte stored."""
        return max(1, float_type(self.files[0].dtype).itemsize // self.files[0].dtype.itemsize)

    def _piece_steps(self, piece_steps: int | None) -> int:
        return piece_steps or max(1, _PIECE_BYTES // (self._step_nbytes * self._growth))

    def read(self, span: Span) -> Piece:
        """Maps the span's steps; copies them only to convert them or to leave out points.

        Raises:
            InputError: if the file is not what it was when it was opened, or may not be read.
            ReadError: if it cannot be read now, though it was tried several times.
        """
        index, begin = self._find(span.first)
        steps = slice(span.first - begin, span.stop - begin)
        file = self.files[index]
        age = np.arange(steps.start, steps.stop, dtype=np.int64)
        if file.corrupt is not None:
            outer, points, inner = self.shape
            kept = points if self._points is None else len(self._points)
            values = np.full((len(age), outer, kept, inner), np.nan, float_type(file.dtype))
            return Piece(span, values, age, (file.corrupt,) if steps.start == 0 else ())
        try:
            values = retry(str(file.path), self.retries, self._values, file, steps)
        except OSError as error:
            kind = ReadError if is_transient(error) else InputError
            tries = f", {self.retries + 1} attempts" if is_transient(error) else ""
            within = f", steps {steps.start} to {steps.stop - 1}" if self.timed else ""
            raise kind(
                f"{file.path}{within} cannot be read ({reason_of(error)}{tries}); start again when "
                "it can"
            ) from error
        return Piece(span, values, age)

    def _values(self, file: ArrayFile, steps: slice) -> NDArray[np.floating]:
        stored = file.load()
        fields = (stored[steps] if self.timed else stored).reshape(-1, *self.shape)
        if self._points is not None:
            fields = fields.take(self._points, axis=2)
        values = to_float(fields)
        if np.may_share_memory(values, stored):
            bring_in(values)  # here, beside the arithmetic on earlier ones
        return values

    def place(self, span: Span, step: int) -> str:
        """The file, and the step in it."""
        index, begin = self._find(span.first)
        file = self.files[index]
        within = f", step {span.first + step - begin}" if self.timed else ""
        return f"{file.path}{within}" + (f" ({file.label})" if file.label else "")

    def describe(self, block: int, lag: int) -> bytes:
        """Names and shapes of the block's files; see `Series.describe`."""
        return repr([(file.path.name, file.shape) for file in self._files(block)]).encode()

    def paths(self, block: int, lag: int) -> Iterator[str]:
        """The block's files, which hold all that its lags need."""
        return (str(file.path) for file in self._files(block))

    def _files(self, block: int) -> tuple[ArrayFile, ...]:
        return self.files[self._cuts[block] : self._cuts[block + 1]]

    def _find(self, position: int) -> tuple[int, int]:
        """The file that holds a position, and its first position."""
        index = int(np.searchsorted(self._starts, position, side="right")) - 1
        return index, int(self._starts[index])


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _map(path: Path) -> NDArray[np.generic]:
    """The file's array, mapped copy-on-write: writable, as all arrays that the arithmetic gets.

    Nothing is written, and nothing is ever unpickled.

    Raises:
        InputError: if it is no whole `.npy` file of numbers.
        OSError: if the file cannot be opened.
    """
    try:
        return np.lib.format.open_memmap(path, mode="c").view(np.ndarray)
    except OSError:
        raise
    except Exception as error:  # for a damaged header also tokenize's own and OverflowError
        size = path.stat().st_size
        reason = textwrap.shorten(str(error), 120)
        if "mmap length" in reason:
            raise InputError(
                f"{path} of {size} bytes is cut off: its header announces more; write it again or "
                "remove it, or count its steps as missing with data.corrupt: missing"
            ) from error
        raise InputError(
            f"{path} of {size} bytes is no whole .npy file of numbers ({reason}); write it again "
            "or remove it"
        ) from error


def _pack(nbytes: Sequence[int], limit: int) -> list[int]:
    """Cuts consecutive items into blocks of at most `limit` bytes, or of one item.

    They are filled from the start, so that items appended at the end change no earlier block's
    beginning.

    >>> _pack([3, 3, 3, 9, 1], 6)
    [0, 2, 3, 4, 5]
    """
    cuts, filled = [0], 0
    for index, size in enumerate(nbytes):
        if filled and filled + size > limit:
            cuts.append(index)
            filled = 0
        filled += size
    return [*cuts, len(nbytes)]
