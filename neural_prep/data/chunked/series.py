"""One zarr array as series of blocks, read in pieces of whole chunks so that none is read twice.

Legend: T steps of a piece, O and I outer and inner variables, N grid points; an *axis* is an index
into an array's dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_prep.data.chunked.arrays import Axes, DataArray
from neural_prep.data.chunked.cuts import BlockPlan, plan_blocks, stretches
from neural_prep.data.chunked.files import chunk_files
from neural_prep.data.chunked.outline import count_again, count_pieces, count_rows
from neural_prep.data.chunked.region import read_region
from neural_prep.data.source import Outline, Piece, Span
from neural_prep.data.timelines.timeline import Timeline

_PIECE_BYTES = 16_000_000
_ROWS_IN_BLOCK = (
    8  # that many rows of a series at least make a block, so that a lag's overlap stays small
)


@dataclass(frozen=True, slots=True)
class ChunkedSeries:
    """Consecutive variables of one array that share chunk bounds; implements `Series`.

    Attributes:
        group: Name of the group that the variables belong to.
        columns: For each variable that is read, its position in the group; -1: not used.
        data: The array.
        plan: Its blocks.
        cut: The range of the first variable axis that is read; one variable where there is none.
        lenient: Whether chunks that cannot be decoded count as missing.
    """

    group: str
    columns: tuple[int, ...]
    data: DataArray
    plan: BlockPlan
    cut: slice
    lenient: bool = False

    @property
    def block_nbytes(self) -> NDArray[np.int64]:
        """Stored bytes of each block, without a lag's overlap."""
        return self.plan.block_nbytes

    @property
    def reach(self) -> int:
        """Most steps of a trajectory before any of its steps; see `Series.reach`."""
        return self.plan.reach

    def predecessor(self, block: int) -> int | None:
        """The block with the same part just before in the same run."""
        return self.plan.predecessor(block)

    def spans(
        self, block: int, *, lag: int, piece_steps: int | None, continued: bool
    ) -> Iterator[Span]:
        """Spans of whole rows; before them, the earlier steps that the block's first lags need."""
        part = self.plan.part(block)
        pieces = list(self.plan.pieces(block, self._piece_rows(part, piece_steps)))
        if not pieces:
            return
        begin = pieces[0][0]
        context = min(lag, int(self.plan.age[begin % len(self.plan.age)]))
        if context > 0 and not continued:
            nbytes = self.plan.nbytes(begin - context, begin, part)
            yield Span(block, begin - context, begin, context, part, last=False, nbytes=nbytes)
        for first, stop in pieces:
            nbytes = self.plan.nbytes(first, stop, part)
            yield Span(block, first, stop, 0, part, last=stop == pieces[-1][1], nbytes=nbytes)

    def outline(self, *, lag: int, piece_steps: int | None) -> Outline:
        """What reading all blocks takes; see `Series.outline`."""
        plan, parts = self.plan, range(len(self.plan.grid.points))
        rows = tuple(self._piece_rows(part, piece_steps) for part in parts)
        most = min(plan.rows, len(plan.row_sizes))
        return Outline(
            objects=count_rows(plan) * self._objects_in_row,
            pieces=count_pieces(plan, rows),
            again=count_again(plan, lag),
            apart=len(parts),
            growth=self._growth,
            piece_nbytes=max(
                min(rows[part], most) * self._row_nbytes(part) for part in {0, parts[-1]}
            ),
            step_nbytes=sum(map(self._row_nbytes, parts)) // plan.chunk,
        )

    def read(self, span: Span) -> Piece:
        """Reads the chunks of one span.

        Raises:
            InputError: if a chunk cannot be decoded, or will never be read.
            ReadError: if a chunk cannot be read now, though it was tried several times.
        """
        run, first = divmod(span.first, len(self.plan.age))
        steps = slice(first, first + span.stop - span.first)
        whole = self._whole_chunks(steps) if span.context else steps
        selection = self._selection(run, whole, span.part)
        found = read_region(self.data, selection, lenient=self.lenient)
        values = self.data.coding.to_floats(self._arrange(found.values, run))
        if found.corrupt:
            values[self._arrange(found.lost, run)] = np.nan
        values = values[steps.start - whole.start : steps.stop - whole.start]
        return Piece(span, values, self.plan.age[steps], found.corrupt)

    def place(self, span: Span, step: int) -> str:
        """The array, its store, and the step's time."""
        run, index = divmod(span.first + step, len(self.plan.age))
        times = [] if self.data.time is None else [self.data.time.times.label(index)]
        if self.data.run is not None:
            chosen = np.flatnonzero(self.plan.chosen[self._run(run)]) + self._run(run).start
            labels = [self.data.run.times.label(int(entry)) for entry in (chosen[0], chosen[-1])]
            times.insert(0, " to ".join(dict.fromkeys(labels)))
        return self.data.place + (f" at {' '.join(times)}" if times else "")

    def describe(self, block: int, lag: int) -> bytes:
        """Positions, ages and times of the block's steps; see `Series.describe`."""
        parts: list[NDArray[Any]] = []
        for first, stop in self._stretches(block, lag):
            run, begin = divmod(first, len(self.plan.age))
            steps = slice(begin, begin + stop - first)
            # No lag asks whether a step is older than the longest of them.
            parts += [np.array([first, stop]), np.minimum(self.plan.age[steps], lag)]
            if self.data.time is not None:
                parts.append(self.data.time.times.positions[steps])
            if self.data.run is not None:
                entries = self._run(run)
                parts += [self.plan.chosen[entries], self.data.run.times.positions[entries]]
        return b"".join(part.tobytes() for part in parts)

    def paths(self, block: int, lag: int) -> Iterator[str]:
        """Files of the chunks that are read for the block; see `Series.paths`."""
        part, selections = self.plan.part(block), []
        for first, stop in self._stretches(block, lag):
            run, begin = divmod(first, len(self.plan.age))
            selections.append(self._selection(run, slice(begin, begin + stop - first), part))
        return chunk_files(self.data.stored, selections)

    def _stretches(self, block: int, lag: int) -> list[tuple[int, int]]:
        """First and one past the last position of all that is read for a block, pieces joined."""
        found = list(self.plan.pieces(block, self.plan.rows))
        context = min(lag, int(self.plan.age[found[0][0] % len(self.plan.age)])) if found else 0
        return [(found[0][0] - context, found[0][0]), *found] if context > 0 else found

    @property
    def _growth(self) -> int:
        """Bytes in memory for each byte stored."""
        return max(1, self.data.coding.floating.itemsize // self.data.coding.stored.itemsize)

    def _row_nbytes(self, part: int) -> int:
        """Bytes in memory of one row of a part."""
        points = int(self.plan.grid.points[part])
        return self.plan.chunk * self._run_entries * points * self.plan.point_nbytes * self._growth

    def _piece_rows(self, part: int, piece_steps: int | None) -> int:
        """Rows that are read at once."""
        if piece_steps is not None:
            return -(-piece_steps // self.plan.chunk)
        return max(1, _PIECE_BYTES // self._row_nbytes(part))

    @property
    def _run_entries(self) -> int:
        return int(self.plan.run_sizes.max())

    @property
    def _objects_in_row(self) -> int:
        """Chunks or shards that hold one row of all parts of the grid."""
        axes, stored = self.data.axes, self.data.stored
        counts = [
            -(-size // chunk) for size, chunk in zip(stored.shape, stored.chunks, strict=True)
        ]
        if axes.variables:
            chunk = stored.chunks[axes.variables[0]]
            counts[axes.variables[0]] = -(-self.cut.stop // chunk) - self.cut.start // chunk
        return prod(count for axis, count in enumerate(counts) if axis not in (axes.time, axes.run))

    def _whole_chunks(self, steps: slice) -> slice:
        """The steps of all chunks that hold some of these.

        A chunk of which a part can be decoded is as bad as it is where all of it is read.
        """
        axis = self.data.axes.time
        chunk = 1 if axis is None else self.data.stored.array.chunks[axis]
        stop = -(-steps.stop // chunk) * chunk
        return slice(steps.start // chunk * chunk, min(stop, len(self.plan.age)))

    def _run(self, run: int) -> slice:
        first = run * self.plan.run_chunk
        return slice(first, min(first + self.plan.run_chunk, len(self.plan.chosen)))

    def _selection(self, run: int, steps: slice, part: int) -> tuple[slice, ...]:
        """The array's range along each axis."""
        axes = self.data.axes
        ndim = len(self.data.stored.shape)
        selection = [slice(None)] * ndim
        for axis, along in zip(axes.grid(ndim), self.plan.grid.ranges(part), strict=True):
            selection[axis] = along
        if axes.time is not None:
            selection[axes.time] = steps
        if axes.run is not None:
            selection[axes.run] = self._run(run)
        if axes.variables:
            selection[axes.variables[0]] = self.cut
        return tuple(selection)

    def _arrange(self, stored: NDArray[Any], run: int) -> NDArray[Any]:
        """What was read as `(T, O, N, I)`, a view where the stored order allows."""
        axes = self.data.axes
        if axes.run is not None and not (chosen := self.plan.chosen[self._run(run)]).all():
            stored = np.compress(chosen, stored, axis=axes.run)
        if axes.time is None:
            stored = stored[np.newaxis]
        order, inner = _memory_order(axes, stored.ndim - (axes.time is None))
        shape = (stored.shape[order[0]], len(self.columns), -1)
        return stored.transpose(order).reshape(
            (shape[0], 1, -1, shape[1]) if inner else (*shape, 1)
        )


def cut_array(
    data: DataArray,
    group: str,
    columns: Sequence[int],
    block_bytes: int,
    *,
    lenient: bool = False,
) -> list[ChunkedSeries]:
    """Cuts an array along its first variable axis into series, and each of them into blocks.

    Args:
        data: The array.
        group: Name of the group that its variables belong to.
        columns: For each of its variables, as stored, its position in the group; -1: not used.
        block_bytes: Uncompressed bytes that a block aims at.
        lenient: Whether chunks that cannot be decoded count as missing.

    Returns:
        The series that hold at least one used variable.
    """
    shape, chunks, axes = data.stored.shape, data.stored.chunks, data.axes
    grid = axes.grid(len(shape))
    itemsize = data.stored.dtype.itemsize
    time_chunk = 1 if axes.time is None else chunks[axes.time]
    run_chunk = 1 if axes.run is None else chunks[axes.run]
    row = time_chunk * run_chunk * prod(shape[axis] for axis in grid) * itemsize
    series = []
    inner = prod(shape[axis] for axis in axes.variables[1:])
    for cut in _cut_variables(data, columns, row, block_bytes):
        used = tuple(columns[cut.start * inner : cut.stop * inner])
        plan = _plan(
            data.time,
            data.run,
            time_chunk,
            run_chunk,
            tuple(shape[axis] for axis in grid),
            tuple(chunks[axis] for axis in grid),
            len(used) * itemsize,
            block_bytes,
        )
        series.append(ChunkedSeries(group, used, data, plan, cut, lenient))
    return series


def _cut_variables(
    data: DataArray, columns: Sequence[int], row_nbytes: int, block_bytes: int
) -> list[slice]:
    """Ranges of the first variable axis that are read together.

    A range holds whole chunks, none of them without a used variable, and as many of them as keep
    its rows small against a block; at least one.
    """
    if not data.axes.variables:
        return [slice(0, 1)] if columns[0] >= 0 else []
    axis = data.axes.variables[0]
    size, chunk = data.stored.shape[axis], data.stored.chunks[axis]
    inner = data.variables // size
    used = np.array(columns).reshape(size, inner).max(axis=1) >= 0
    used = np.logical_or.reduceat(used, np.arange(0, size, chunk))
    width = max(1, block_bytes // _ROWS_IN_BLOCK // (row_nbytes * inner * chunk))
    return [
        slice(at * chunk, min(min(at + width, stop) * chunk, size))
        for first, stop in stretches(used)
        for at in range(first, stop, width)
    ]


@lru_cache(maxsize=16)
def _plan(
    time: Timeline | None,
    run: Timeline | None,
    chunk: int,
    run_chunk: int,
    sizes: tuple[int, ...],
    chunks: tuple[int, ...],
    point_nbytes: int,
    block_bytes: int,
) -> BlockPlan:
    """One plan for all arrays that are cut alike: 300 of them with 400,000 steps each take 3 GB."""
    age = np.zeros(1, np.int64) if time is None else time.age
    chosen = None if run is None else run.age >= 0
    return plan_blocks(age, chosen, chunk, run_chunk, (sizes, chunks), point_nbytes, block_bytes)


def _memory_order(axes: Axes, ndim: int) -> tuple[tuple[int, ...], bool]:
    """Order of the axes that puts steps first, and whether variables come after the grid.

    Variables stay before or after the grid where they are stored so, which saves a copy; where the
    two alternate, variables go first. A field without time has got one more axis, in front.
    """
    shift = axes.time is None
    variables = [axis + shift for axis in axes.variables]
    first = 0 if axes.time is None else axes.time
    grid = [
        axis + shift
        for axis in range(ndim)
        if axis not in axes.variables and (shift or axis != first)
    ]
    inner = bool(variables) and bool(grid) and min(variables) > max(grid)
    return (first, *(grid + variables if inner else variables + grid)), inner
