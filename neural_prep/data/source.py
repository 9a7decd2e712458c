"""What every layout gives the engine: groups of variables, and series of blocks to read.

Legend: T steps, O outer variables, N grid points, I inner variables (variable = o * I + i).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from neural_prep.data.retry import RETRIES
from neural_prep.stats.corrupt import CorruptChunk

Decoder = Literal["auto", "zarr", "zarrs"]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Which store, and which part of it, a source is opened on.

    Attributes:
        path: The store's folder or URL.
        split: Name of the store's own split, or None for the whole time line.
        start: First time that is used (inclusive, ISO 8601; a date means its first moment).
        end: Last time that is used (inclusive, ISO 8601; a date means its last moment).
        step: Time step inside a trajectory: a duration such as `6h`, `any`, or None for the most
            frequent one.
        variables: Names of the features where the store has none of its own.
        drop: Indices of features that are left out.
        region: `interior` leaves out the points of the border mask.
        block_bytes: Uncompressed bytes that a block aims at.
        retries: How often what fails for the moment is read again.
        corrupt: What a chunk or file that cannot be decoded does: `fail`, or count as `missing`.
        storage_options: How a URL's store is reached.
        decoder: Who decodes chunks: zarr-python, zarrs, or `auto` for the fastest.
    """

    path: str
    split: str | None = None
    start: str | None = None
    end: str | None = None
    step: str | None = None
    variables: tuple[str, ...] | None = None
    drop: tuple[int, ...] | None = None
    region: Literal["all", "interior"] = "all"
    block_bytes: int = 64_000_000
    retries: int = RETRIES
    corrupt: Literal["fail", "missing"] = "fail"
    storage_options: Mapping[str, Any] | None = None
    decoder: Decoder = "auto"


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of a group.

    Stored values are `(value - offset) / scale`; statistics are unpacked at the end.
    """

    name: str
    unit: str | None = None
    scale: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """Variables that share dimensions: `state`, `forcing`, `flux` or `static`."""

    name: str
    variables: tuple[Variable, ...]
    steps: int
    trajectories: int


@dataclass(frozen=True, slots=True)
class Span:
    """Steps of one block that are read at once; the description of a piece before it is read.

    Attributes:
        block: Index of the block in its series.
        first: Position of the first step on the series' own step axis.
        stop: One past the last step's position.
        context: How many leading steps are read for the lags alone and counted elsewhere.
        part: Which part of the grid; blocks with the same part continue each other along the step
            axis.
        last: Whether this is the block's last span.
        nbytes: Uncompressed bytes that are read.
    """

    block: int
    first: int
    stop: int
    context: int
    part: int
    last: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The steps of one span, in memory.

    Attributes:
        span: What was read.
        values: `(T, O, N, I)`, float32 or float64 in native byte order, each step C-contiguous;
            stored (packed) values, with NaN for every missing one.
        age: `(T,)` int64: steps of the same trajectory before this one (0: its first); -1: not
            selected, skip it.
        corrupt: Chunks that could not be decoded, whose values are all missing.
    """

    span: Span
    values: NDArray[np.floating]
    age: NDArray[np.int64]
    corrupt: tuple[CorruptChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """What reading a series takes, known before anything is read.

    Attributes:
        objects: Chunks, shards or files that hold its blocks.
        pieces: Pieces of each block, `(blocks,)`, without the one of a lag's earlier steps.
        again: Uncompressed bytes of the earlier steps that each block's lags need, `(blocks,)`:
            they are read again unless the predecessor has just been read.
        apart: How many blocks after its predecessor each block comes.
        growth: Bytes in memory for each byte stored.
        piece_nbytes: Bytes in memory of the largest piece.
        step_nbytes: Bytes in memory of one step with all parts of its grid.
    """

    objects: int
    pieces: NDArray[np.int64]
    again: NDArray[np.int64]
    apart: int
    growth: int
    piece_nbytes: int
    step_nbytes: int


class Series(Protocol):
    """Blocks of variables that share chunk bounds, in an order that growth at the end keeps."""

    @property
    def group(self) -> str:
        """Name of the group that the variables belong to."""
        ...

    @property
    def columns(self) -> tuple[int, ...]:
        """For each of the O * I variables, its position in the group's; -1: read, not used."""
        ...

    @property
    def block_nbytes(self) -> NDArray[np.int64]:
        """Uncompressed bytes of each block, `(blocks,)`, without a lag's overlap."""
        ...

    @property
    def reach(self) -> int:
        """Most steps that any step has before it in its trajectory: longer lags have no pair."""
        ...

    def predecessor(self, block: int) -> int | None:
        """The block whose last steps come just before `block`'s first; None where none does."""
        ...

    def spans(
        self, block: int, *, lag: int, piece_steps: int | None, continued: bool
    ) -> Iterator[Span]:
        """The block cut into spans, in step order.

        Args:
            block: Index of the block.
            lag: The longest lag: how many earlier steps the block's first step needs.
            piece_steps: Steps that are read at once; None: as many as make about 16 MB.
            continued: The reader has just read the predecessor, so that its last `lag` steps
                need not be read again.
        """
        ...

    def outline(self, *, lag: int, piece_steps: int | None) -> Outline:
        """What reading all blocks takes; arguments as in `spans`."""
        ...

    def read(self, span: Span) -> Piece:
        """Reads one span. Safe to call from several threads at once.

        Raises:
            InputError: if its bytes are damaged, or will never be had.
            ReadError: if they cannot be had now, though it was tried several times.
        """
        ...

    def place(self, span: Span, step: int) -> str:
        """File (or array) and time of the span's `step`-th step, for messages."""
        ...

    def describe(self, block: int, lag: int) -> bytes:
        """What metadata say of a block and of the `lag` steps before it, `Source.identity` apart.

        Its steps' positions, ages and times, or its files' names and shapes: the same bytes while
        the block has the same values.
        """
        ...

    def paths(self, block: int, lag: int) -> Iterable[str]:
        """Paths of the local files that hold a block and the `lag` steps before it, in order.

        A file may be absent, where that means something. None where the store is remote.
        """
        ...


class Source(Protocol):
    """A store that has been opened, checked and cut into blocks, from metadata alone."""

    @property
    def path(self) -> str:
        """The store's path as the user gave it."""
        ...

    @property
    def layout(self) -> str:
        """The layout's name."""
        ...

    @property
    def remote(self) -> bool:
        """Whether each read waits for a server far away, so that many are needed at once."""
        ...

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups in a fixed order, `state` first."""
        ...

    @property
    def series(self) -> tuple[Series, ...]:
        """All series, in a fixed order."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know about the store, one line each."""
        ...

    @property
    def identity(self) -> Mapping[str, object]:
        """Metadata that decide which values are read, as JSON, less `extent`.

        What was asked for is under the option's name in `StoreOptions`. Of stores with the same
        identity `Series.describe` tells whether a block is the same.
        """
        ...

    @property
    def extent(self) -> Mapping[str, object]:
        """The same of what changes when a store grows at its end: lengths, times, files."""
        ...
