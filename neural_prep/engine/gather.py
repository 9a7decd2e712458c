"""Brings all ranks' merged nodes to every rank, and finishes the tree.

A rank's blocks are contiguous, so its nodes are few: at most two on each level of the tree of a
series that it has a part of, and one of a series that it has all of. They travel as one padded
float64 vector: for each node its series, level, index and record. Where all ranks' vectors would
take much memory they travel in several, each with some columns of the records: a merge takes every
column by itself, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from neural_prep.engine.plan import Plan
from neural_prep.stats.blocks import Node
from neural_prep.stats.moments import Record
from neural_prep.stats.tree import MergeTree

MOST_BYTES = 64_000_000  # of all ranks' vectors; Lightning has them in memory twice
_HEADER = 3  # series, level, index
_MOMENTS = 8


def gather_nodes(
    plan: Plan, trees: Sequence[MergeTree], all_gather: Callable[[torch.Tensor], torch.Tensor]
) -> list[Record]:
    """The record of each series over all ranks.

    Args:
        plan: The plan that every rank has.
        trees: This rank's nodes, one tree for each series.
        all_gather: Lightning's: a tensor to `(ranks, ...)`, or to itself where there is one rank.

    Raises:
        ValueError: if a block is missing or came twice.
    """
    ranks = all_gather(torch.zeros(1)).numel()
    sent = plan.nodes(ranks)
    shapes = [(_MOMENTS, *plan.record_shape(series)) for series in range(len(trees))]
    records = [np.empty((_MOMENTS, kinds * variables)) for _, kinds, variables in shapes]
    for strips in _strips([record.shape[1] for record in records], _strip_width(sent)):
        length = max(_packed_size(nodes, strips) for nodes in sent)
        padded = np.full(length, -1.0)
        own = pack(trees, strips)
        padded[: own.size] = own
        gathered = all_gather(torch.from_numpy(padded)).reshape(ranks, length).cpu().numpy()
        for series, root in _merge(gathered, trees, strips):
            records[series][:, strips[series]] = root[:, 0]
    return [record.reshape(shape) for record, shape in zip(records, shapes, strict=True)]


def _strip_width(sent: Sequence[Mapping[int, int]]) -> int:
    """Columns of each record that travel at once, given how many nodes of which series ranks send.

    >>> _strip_width([{0: 2, 1: 10}] * 4096)
    19
    """
    nodes = max(sum(each.values()) for each in sent)
    numbers = MOST_BYTES // 8 // len(sent) // max(nodes, 1)
    return max((numbers - _HEADER) // _MOMENTS, 1)


def _strips(columns: Sequence[int], width: int) -> Iterator[list[slice]]:
    """Ranges of each series' columns that travel at once; empty for those that have no more.

    >>> list(_strips([3, 1], 2))
    [[slice(0, 2, None), slice(0, 1, None)], [slice(2, 3, None), slice(1, 1, None)]]
    """
    for first in range(0, max(columns, default=0), width):
        yield [slice(min(first, size), min(first + width, size)) for size in columns]


def _width(strip: slice) -> int:
    return int(strip.stop - strip.start)


def _packed_size(nodes: Mapping[int, int], strips: Sequence[slice]) -> int:
    """How many numbers a rank sends."""
    widths = {series: _width(strips[series]) for series in nodes}
    return sum(
        count * (_HEADER + _MOMENTS * widths[series])
        for series, count in nodes.items()
        if widths[series]
    )


def pack(trees: Sequence[MergeTree], strips: Sequence[slice]) -> NDArray[np.float64]:
    """What a rank sends of these columns, before it is padded."""
    parts = [
        np.concatenate(([series, *node], record.reshape(_MOMENTS, -1)[:, strip].reshape(-1)))
        for series, (tree, strip) in enumerate(zip(trees, strips, strict=True))
        for node, record in sorted(tree.nodes.items())
        if _width(strip)
    ]
    return np.concatenate([np.empty(0), *parts])


def _merge(
    gathered: NDArray[np.float64], trees: Sequence[MergeTree], strips: Sequence[slice]
) -> Iterator[tuple[int, Record]]:
    """Each series' merged record `(8, 1, columns)` from all ranks' vectors `(ranks, length)`."""
    merged = [MergeTree(tree.blocks) for tree in trees]
    for packed in gathered:
        for series, node, record in _unpack(packed, strips):
            merged[series].add(node, record)
    for series, tree in enumerate(merged):
        if _width(strips[series]):
            yield series, tree.root()


def _unpack(
    packed: NDArray[np.float64], strips: Sequence[slice]
) -> Iterator[tuple[int, Node, Record]]:
    at = 0
    while at < packed.size and packed[at] >= 0.0:
        series, level, index = (int(number) for number in packed[at : at + _HEADER])
        width = _width(strips[series])
        begin, at = at + _HEADER, at + _HEADER + _MOMENTS * width
        yield series, (level, index), packed[begin:at].reshape(_MOMENTS, 1, width).copy()
