"""Cuts a sharded tensor otherwise: one mesh axis after the other, each in one exchange."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from neural_prep.sharding.adjoint import exchange, gather, join_pieces, split
from neural_prep.sharding.halo import Fetch, fetch, plan_fetch
from neural_prep.sharding.layout import Cut, Layout


def relayout(local: Tensor, before: Layout, after: Layout) -> Tensor:
    """This rank's piece of the same global tensor in another layout.

    Args:
        local: Its piece now.
        before: The layout now.
        after: Another one of the same mesh and the same global shape.

    Raises:
        ValueError: if mesh or shape are others.
    """
    if after == before:
        return local
    shape = before.global_shape(local.shape)
    if after.mesh != before.mesh:
        raise ValueError("redistribute: the layout is of another mesh")
    for _, cut in after.cut_axes():
        if cut.dim >= len(shape) or cut.total != shape[cut.dim]:
            raise ValueError(
                f"redistribute: {list(cut.sizes)} of dim {cut.dim} add up to {cut.total}, but the "
                f"shape is {list(shape)}"
            )
    now = before
    for axis in _order(before, after):
        target = after.cuts[axis]
        if target is not None and now.axis_of(target.dim) not in (None, axis):
            target = None  # two axes change places: it is cut again below
        local, now = _recut(local, now, axis, target), now.with_cut(axis, target)
    for axis, target in enumerate(after.cuts):
        local, now = _recut(local, now, axis, target), now.with_cut(axis, target)
    return local


def _order(before: Layout, after: Layout) -> list[int]:
    """The axes that change, those first whose new dimension is not cut by another one."""
    changing = [axis for axis in range(len(after.cuts)) if before.cuts[axis] != after.cuts[axis]]

    def waits(axis: int) -> bool:
        cut = after.cuts[axis]
        return cut is not None and before.axis_of(cut.dim) not in (None, axis)

    return sorted(changing, key=waits)


def _recut(local: Tensor, layout: Layout, axis: int, target: Cut | None) -> Tensor:
    """This rank's piece once one axis cuts otherwise."""
    now, group, rank = layout.cuts[axis], layout.group(axis), layout.rank(axis)
    if now == target:
        return local
    if now is None:
        assert target is not None
        return split(local, target.sizes, target.dim, group)
    if target is None:
        return gather(local, now.sizes, now.dim, group)
    if now.dim == target.dim:
        return fetch(local, _moves(now.sizes, target.sizes, rank), now.dim, group)
    return _transpose(local, now, target, rank, group)


@lru_cache(maxsize=1024)
def _moves(before: tuple[int, ...], after: tuple[int, ...], rank: int) -> Fetch:
    """Who sends what where a dimension's sizes change."""
    cut = Cut(0, after)
    wanted = [
        torch.arange(start, start + size) for start, size in zip(cut.starts, after, strict=True)
    ]
    return plan_fetch(before, wanted, rank)


def _transpose(local: Tensor, now: Cut, target: Cut, rank: int, group: ProcessGroup) -> Tensor:
    """Joins one dimension and cuts another: every rank sends a block to every other."""
    blocks = torch.split(local, list(target.sizes), target.dim)
    shapes = [_block_shape(local.shape, now, target, source, rank) for source in range(len(blocks))]
    joined = join_pieces([block.reshape(-1) for block in blocks])
    counts = [prod(shape) for shape in shapes]
    received = exchange(joined, [block.numel() for block in blocks], counts, 0, group)
    parts = torch.split(received, counts)
    found = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    return torch.cat(found, now.dim)


def _block_shape(
    local: Sequence[int], now: Cut, target: Cut, source: int, rank: int
) -> tuple[int, ...]:
    """The shape of what `source` sends to `rank`."""
    shape = list(local)
    shape[now.dim], shape[target.dim] = now.sizes[source], target.sizes[rank]
    return tuple(shape)
