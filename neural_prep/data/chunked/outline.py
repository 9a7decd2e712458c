"""What reading an array's blocks takes, counted from its block plan without walking through it.

Legend: S steps of a run, W rows of a run, G groups of runs that blocks are made of, B blocks of a
group along its steps, P parts of the grid.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from neural_prep.data.chunked.cuts import BlockPlan


@lru_cache(maxsize=16)  # arrays that are cut alike share their plan
def count_pieces(plan: BlockPlan, rows: tuple[int, ...]) -> NDArray[np.int64]:
    """Pieces of each block, `(blocks,)`.

    Args:
        plan: The blocks.
        rows: Most rows in a piece of each part, `(P,)`.
    """
    wanted = plan.row_sizes > 0
    index = np.arange(len(wanted))
    first = wanted.copy()  # a piece begins with a stretch of wanted rows, or a block
    first[1:] &= ~wanted[:-1] | (index[1:] % plan.rows == 0)
    offset = index - np.maximum.accumulate(np.where(first, index, 0))
    by_runs = np.add.reduceat(plan.run_sizes > 0, np.arange(0, len(plan.run_sizes), plan.runs))
    counts = np.empty((len(by_runs) * plan.blocks_per_run, len(rows)), np.int64)  # (G * B, P)
    for size in set(rows):
        begins = (wanted & (offset % size == 0)).astype(np.int64)
        along = np.add.reduceat(begins, np.arange(0, len(wanted), plan.rows))  # (B,)
        counts[:, np.array(rows) == size] = np.multiply.outer(by_runs, along).reshape(-1, 1)
    return _of_blocks(plan, counts)


@lru_cache(maxsize=16)
def count_again(plan: BlockPlan, lag: int) -> NDArray[np.int64]:
    """Stored bytes of the earlier steps that each block's lags need, `(blocks,)`.

    Args:
        plan: The blocks.
        lag: The longest lag.
    """
    wanted = np.zeros(plan.blocks_per_run * plan.rows, np.bool_)
    wanted[: len(plan.row_sizes)] = plan.row_sizes > 0
    first = wanted.reshape(-1, plan.rows).argmax(axis=1)  # (B,), each block's first wanted row
    begin = (first + np.arange(plan.blocks_per_run) * plan.rows) * plan.chunk
    context = np.clip(plan.age[begin], 0, lag)
    # Several runs in one block begin with their own starts, and so need no earlier steps.
    entries = np.add.reduceat(plan.run_sizes, np.arange(0, len(plan.run_sizes), plan.runs))
    fields = np.multiply.outer(entries, context).ravel()  # (G * B,)
    points = plan.grid.points * plan.point_nbytes
    return _of_blocks(plan, np.multiply.outer(fields, points))


def count_rows(plan: BlockPlan) -> int:
    """Rows of chunks that are read of all runs: objects, for each chunk of the grid."""
    return int(np.count_nonzero(plan.row_sizes)) * int(np.count_nonzero(plan.run_sizes))


def _of_blocks(plan: BlockPlan, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of counts of all blocks that there could be `(G * B, P)`, those of the plan."""
    count = len(plan.block_nbytes) // len(plan.grid.points)
    return counts[plan.first : plan.first + count].ravel()
