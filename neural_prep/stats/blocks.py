"""Exact cover: which blocks a rank takes, and the fixed binary tree that merges them.

Node (level, index) of the tree holds blocks [index * 2^level, (index + 1) * 2^level); where blocks
end early, a node without a right sibling passes up as it is. The tree depends on the number of
blocks alone, so any split into runs gives the same bits, and a block that is appended changes no
node to its left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from neural_prep.stats.moments import Record, merge

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


class MergeTree:
    """Merges blocks' records as they come, in any order, to the nodes of the fixed tree."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.nodes: dict[Node, Record] = {}

    def add(self, node: Node, record: Record) -> None:
        """Adds a node's record and merges upwards as far as siblings are there.

        Raises:
            ValueError: if the node was added before; `root` finds one that lies below another.
        """
        level, index = node
        while 1 << level < self.blocks:
            sibling = (level, index ^ 1)
            if index & 1 == 0 and (index + 1) << level >= self.blocks:
                pass  # nothing to the right, ever
            elif sibling in self.nodes:
                other = self.nodes.pop(sibling)
                record = merge(other, record) if index & 1 else merge(record, other)
            else:
                break
            level, index = level + 1, index >> 1
        if (level, index) in self.nodes:
            raise ValueError(f"blocks of node {node} were counted twice")
        self.nodes[level, index] = record

    def root(self) -> Record:
        """The record of all blocks.

        Raises:
            ValueError: if a block is missing, or came twice.
        """
        if len(self.nodes) != 1 or 1 << next(iter(self.nodes))[0] < self.blocks:
            raise ValueError(f"{self.blocks} blocks don't merge to one: {sorted(self.nodes)}")
        return next(iter(self.nodes.values()))
