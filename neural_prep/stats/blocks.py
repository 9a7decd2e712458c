"""Exact cover: which blocks a rank takes, and which nodes of the fixed tree they make.

Node (level, index) of the tree holds blocks [index * 2^level, (index + 1) * 2^level). No arithmetic
is imported here: plans are made where nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Node = tuple[int, int]


def split_runs(nbytes: NDArray[np.int64], ranks: int) -> list[range]:
    """Contiguous runs of blocks, one for each rank, with about the same bytes; runs may be empty.

    A block goes to the rank in whose share of all bytes its middle lies. Blocks without bytes
    count as one byte.

    Args:
        nbytes: `(B,)`, bytes of each block.
        ranks: Number of runs.

    Raises:
        ValueError: if `ranks` is not positive.

    >>> split_runs(np.full(10, 8), 3)
    [range(0, 3), range(3, 7), range(7, 10)]
    >>> split_runs(np.array([8]), 2)
    [range(0, 0), range(0, 1)]
    """
    if ranks < 1:
        raise ValueError(f"cannot split blocks among {ranks} ranks; give at least 1")
    sizes = np.maximum(nbytes, 1).astype(np.int64)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if ends.size else 0
    # Python's integers: bytes times ranks may pass 2^63.
    shares = [2 * total * rank // ranks for rank in range(1, ranks)]
    cuts = [0, *np.searchsorted(2 * ends - sizes, shares).tolist(), sizes.size]
    return [range(first, stop) for first, stop in pairwise(cuts)]


def subtrees(run: range) -> Iterator[Node]:
    """The fewest whole nodes that cover a run, in order: at most two on each level.

    >>> list(subtrees(range(3, 9)))
    [(0, 3), (2, 1), (0, 8)]
    """
    first = run.start
    while first < run.stop:
        level = (first & -first).bit_length() - 1 if first else (run.stop).bit_length()
        while first + (1 << level) > run.stop:
            level -= 1
        yield level, first >> level
        first += 1 << level


def nodes_of(run: range, blocks: int) -> int:
    """How many nodes a run makes in a tree of `blocks` blocks: one where it holds all of them.

    At the tree's right end nodes pass up until they meet a sibling, so blocks that are not there
    count as part of the run.

    >>> [nodes_of(run, 6) for run in (range(1, 4), range(5, 6), range(6))]
    [2, 1, 1]
    """
    if run.stop < blocks:
        return sum(1 for _ in subtrees(run))
    whole = range(run.start, 1 << (blocks - 1).bit_length())
    return sum(1 for level, index in subtrees(whole) if index << level < blocks)
