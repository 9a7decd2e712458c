"""Brings all ranks' merged nodes to every rank, in one gather, and finishes the tree.

A rank's blocks are contiguous, so its nodes are few: at most two on each level of a series' tree.
They travel as one padded float64 vector: for each node its series, level, index and record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from neural_prep.engine.plan import Plan, Run
from neural_prep.stats.blocks import Node, subtrees
from neural_prep.stats.moments import Record
from neural_prep.stats.tree import MergeTree

_HEADER = 3  # series, level, index


def gather_nodes(
    plan: Plan, trees: list[MergeTree], all_gather: Callable[[torch.Tensor], torch.Tensor]
) -> list[Record]:
    """The record of each series over all ranks.

    Args:
        plan: The plan that every rank has.
        trees: This rank's nodes, one tree for each series.
        all_gather: Lightning's: a tensor to `(ranks, ...)`, or to itself where there is one rank.

    Raises:
        ValueError: if a block is missing or came twice.
    """
    shapes = [_record_shape(plan, series) for series in range(len(trees))]
    own = _pack(trees)
    ranks = all_gather(torch.zeros(1)).numel()
    length = max(_packed_size(runs, shapes) for runs in plan.all_runs(ranks))
    padded = np.full(length, -1.0)
    padded[: own.size] = own
    gathered = all_gather(torch.from_numpy(padded)).reshape(ranks, length).cpu().numpy()
    merged = [MergeTree(tree.blocks) for tree in trees]
    for rank in range(ranks):
        for series, node, record in _unpack(gathered[rank], shapes):
            merged[series].add(node, record)
    return [tree.root() for tree in merged]


def _record_shape(plan: Plan, series: int) -> tuple[int, int, int]:
    return (8, *plan.record_shape(series))


def _packed_size(runs: tuple[Run, ...], shapes: list[tuple[int, int, int]]) -> int:
    """How many numbers a rank sends at most: merging leaves no more than its runs' subtrees."""
    return sum(
        (_HEADER + int(np.prod(shapes[run.series]))) * sum(1 for _ in subtrees(run.blocks))
        for run in runs
    )


def _pack(trees: list[MergeTree]) -> NDArray[np.float64]:
    parts = [
        np.concatenate(([series, *node], record.reshape(-1)))
        for series, tree in enumerate(trees)
        for node, record in sorted(tree.nodes.items())
    ]
    return np.concatenate([np.empty(0), *parts])


def _unpack(
    packed: NDArray[np.float64], shapes: list[tuple[int, int, int]]
) -> Iterator[tuple[int, Node, Record]]:
    at = 0
    while at < packed.size and packed[at] >= 0.0:
        series, level, index = (int(number) for number in packed[at : at + _HEADER])
        size = int(np.prod(shapes[series]))
        record = packed[at + _HEADER : at + _HEADER + size].reshape(shapes[series])
        yield series, (level, index), record.copy()
        at += _HEADER + size
