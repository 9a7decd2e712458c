"""Where an array's blocks begin and end, in whole chunks of its steps and, if need be, of its grid.

Nothing is listed chunk by chunk, so a plan takes milliseconds whatever the store's size. Bounds are
multiples of chunks counted from the array's start: they stay when a store grows at its end.

A time line is one *run*. Where each entry of a run dimension (a forecast's analysis time) has steps
of its own, a run is one chunk of that dimension: its entries share the ages of their steps, and
count as grid points.

Legend: S steps of a run, A entries of the run dimension, R runs, T blocks along the steps, P parts
of the grid; a *row* is one chunk along the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class GridCut:
    """The grid cut into parts: along each dimension into ranges of `lengths` points."""

    sizes: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of ranges along each dimension."""
        return tuple(
            -(-size // length) for size, length in zip(self.sizes, self.lengths, strict=True)
        )

    @cached_property
    def points(self) -> NDArray[np.int64]:
        """Grid points of each part, `(P,)`; parts count along the last dimension first."""
        points = np.ones(1, np.int64)
        for size, length in zip(self.sizes, self.lengths, strict=True):
            along = np.minimum(size - np.arange(0, size, length), length)
            points = np.multiply.outer(points, along).ravel()
        return points

    def ranges(self, part: int) -> list[slice]:
        """The range of each dimension that makes a part.

        >>> GridCut((4, 6), (4, 2)).ranges(1)
        [slice(0, 4, None), slice(2, 4, None)]
        """
        index = np.unravel_index(part, self.counts) if self.sizes else ()
        return [
            slice(int(i) * length, min((int(i) + 1) * length, size))
            for i, length, size in zip(index, self.lengths, self.sizes, strict=True)
        ]


def cut_grid(sizes: Sequence[int], chunks: Sequence[int], limit: int) -> GridCut:
    """Parts of whole chunks with at most `limit` points, or of one chunk where that has more.

    The first dimensions are cut first, so that parts are contiguous in a grid stored row by row.

    >>> cut_grid((100, 100), (10, 100), 2500).lengths
    (20, 100)
    """
    lengths = list(sizes)
    for dim, (size, chunk) in enumerate(zip(sizes, chunks, strict=True)):
        if prod(lengths) <= limit:
            break
        if chunk < size:
            lengths[dim] = chunk * max(1, limit * size // prod(lengths) // chunk)
    return GridCut(tuple(sizes), tuple(lengths))


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Blocks of one array, or of some of its variables.

    Attributes:
        age: `(S,)`: age of each step of a run; -1: not selected.
        chosen: `(A,)`: which entries of the run dimension are selected; `(1,)` where there is none.
        chunk: Steps in a row.
        run_chunk: Entries of the run dimension in a run.
        rows: Rows in a block, where a block is part of one run.
        runs: Runs in a block.
        grid: The parts that each block's rows are cut into.
        point_nbytes: Stored bytes of one grid point at one step.
    """

    age: NDArray[np.int64]
    chosen: NDArray[np.bool_]
    chunk: int
    run_chunk: int
    rows: int
    runs: int
    grid: GridCut
    point_nbytes: int

    @cached_property
    def run_sizes(self) -> NDArray[np.int64]:
        """Entries of the run dimension that each run reads, `(R,)`; 0 where none is selected."""
        starts = np.arange(0, len(self.chosen), self.run_chunk)
        sizes = np.minimum(len(self.chosen) - starts, self.run_chunk)
        return np.where(np.logical_or.reduceat(self.chosen, starts), sizes, 0)

    @cached_property
    def row_sizes(self) -> NDArray[np.int64]:
        """Steps that are read of each row of a run; 0 where none of them is selected."""
        starts = np.arange(0, len(self.age), self.chunk)
        sizes = np.minimum(len(self.age) - starts, self.chunk)
        return np.where(np.logical_or.reduceat(self.age >= 0, starts), sizes, 0)

    @cached_property
    def reach(self) -> int:
        """The greatest age of a step."""
        return int(self.age.max())

    @property
    def blocks_per_run(self) -> int:
        """Blocks along the steps of one run, or of `runs` of them."""
        return -(-len(self.row_sizes) // self.rows)

    @cached_property
    def _fields(self) -> NDArray[np.int64]:
        """Fields (steps of one entry) that each block reads, `(T,)`, from the array's start."""
        by_rows = np.add.reduceat(self.row_sizes, np.arange(0, len(self.row_sizes), self.rows))
        by_runs = np.add.reduceat(self.run_sizes, np.arange(0, len(self.run_sizes), self.runs))
        return np.multiply.outer(by_runs, by_rows).ravel()

    @cached_property
    def first(self) -> int:
        """The first block along the steps that reads anything: the plan begins with it."""
        return int(np.flatnonzero(self._fields)[0])

    @cached_property
    def block_nbytes(self) -> NDArray[np.int64]:
        """Stored bytes of each block, `(T * P,)`: parts of the first steps, then of the next."""
        last = int(np.flatnonzero(self._fields)[-1])
        points = self.grid.points * self.point_nbytes
        return np.multiply.outer(self._fields[self.first : last + 1], points).ravel()

    def part(self, block: int) -> int:
        """The part of the grid that a block covers."""
        return block % len(self.grid.points)

    def predecessor(self, block: int) -> int | None:
        """The block with the same part just before in the same run."""
        parts = len(self.grid.points)
        along = block // parts + self.first
        continues = along > self.first and along % self.blocks_per_run != 0
        return block - parts if continues else None

    def pieces(self, block: int, rows: int) -> Iterator[tuple[int, int]]:
        """First and one past the last position of a block's pieces, each of at most `rows` rows.

        Positions count steps through all runs, and a piece belongs to one run. Rows without a
        selected step are left out.
        """
        group, along = divmod(block // len(self.grid.points) + self.first, self.blocks_per_run)
        begin = along * self.rows
        wanted = list(stretches(self.row_sizes[begin : begin + self.rows] > 0))
        for run in range(group * self.runs, min((group + 1) * self.runs, len(self.run_sizes))):
            origin = run * len(self.age)
            for first, stop in wanted if self.run_sizes[run] else ():
                for row in range(begin + first, begin + stop, rows):
                    end = min(row + rows, begin + stop) * self.chunk
                    yield origin + row * self.chunk, origin + min(end, len(self.age))

    def nbytes(self, first: int, stop: int, part: int) -> int:
        """Stored bytes of the steps from `first` to `stop` of one part."""
        fields = (stop - first) * int(self.run_sizes[first // len(self.age)])
        return fields * int(self.grid.points[part]) * self.point_nbytes


def plan_blocks(
    age: NDArray[np.int64],
    chosen: NDArray[np.bool_] | None,
    chunk: int,
    run_chunk: int,
    grid: tuple[Sequence[int], Sequence[int]],
    point_nbytes: int,
    block_bytes: int,
) -> BlockPlan:
    """Packs rows into blocks of at most `block_bytes`; cuts a larger row into parts of the grid.

    Args:
        age: Age of each step of a run.
        chosen: Which entries of the run dimension are selected; None where there is none.
        chunk: Steps in a row.
        run_chunk: Entries of the run dimension in a chunk; 1 where there is none.
        grid: Sizes and chunks of the grid's dimensions.
        point_nbytes: Stored bytes of one grid point at one step.
        block_bytes: What a block aims at.
    """
    column = chunk * run_chunk * point_nbytes  # bytes of a row at one grid point
    cut = cut_grid(*grid, limit=block_bytes // column)
    rows = max(1, block_bytes // (column * prod(grid[0])))
    per_run = -(-len(age) // chunk)
    whole_runs = chosen is not None and rows >= per_run
    return BlockPlan(
        age=age,
        chosen=np.ones(1, np.bool_) if chosen is None else chosen,
        chunk=chunk,
        run_chunk=run_chunk,
        rows=per_run if whole_runs else rows,
        runs=rows // per_run if whole_runs else 1,
        grid=cut,
        point_nbytes=point_nbytes,
    )


def stretches(wanted: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """First and one past the last index of each unbroken stretch of True.

    >>> list(stretches(np.array([True, True, False, True])))
    [(0, 2), (3, 4)]
    """
    padded = np.concatenate(([False], wanted, [False]))
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    for first, stop in edges.reshape(-1, 2):
        yield int(first), int(stop)
