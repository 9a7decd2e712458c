"""The fixed binary tree that merges blocks' records.

Node (level, index) holds blocks [index * 2^level, (index + 1) * 2^level); where blocks end early, a
node without a right sibling passes up as it is. The tree depends on the number of blocks alone, so
any split into runs gives the same bits, and a block that is appended changes no node to its left.
"""

from __future__ import annotations

from neural_prep.stats.blocks import Node
from neural_prep.stats.moments import Record, merge


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
