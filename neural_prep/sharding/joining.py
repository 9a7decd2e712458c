"""Joins sharded tensors along a dimension: which layout the result gets, and every operand for it.

Where an operand is cut along another dimension the result is, too, and nothing else moves. Else the
result is cut along the dimension itself: each rank has as many elements as all operands give it
together, so that balance stays, and an element moves only as far as those before it make it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected, join_pieces
from neural_prep.sharding.layout import Cut, Layout, split_sizes
from neural_prep.sharding.operands import layout_of, operand
from neural_prep.sharding.region import meet
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local


def join(
    tensors: Sequence[Tensor], dim: int, shape: Sequence[int], dtype: torch.dtype
) -> ShardTensor:
    """All tensors along one dimension, one after the other.

    Args:
        tensors: At least one of them sharded. Those of shape `(0,)` are left out, as torch does.
        dim: The dimension, not negative.
        shape: The result's global shape.
        dtype: The result's dtype.
    """
    mesh = next(shards_in(list(tensors))).sharding.mesh
    joined = [each for each in tensors if len(each.shape) == len(shape)]
    lengths = [each.shape[dim] for each in joined]
    layouts = [layout_of(each, Layout.replicated(mesh)) for each in joined]
    result = join_layout(layouts, lengths, dim)
    pieces = []
    for each, first in zip(joined, accumulate(lengths[:-1], initial=0), strict=True):
        part = part_layout(result, dim, first, each.shape[dim])
        pieces.append(operand(each, part, result).to(dtype))
    own = list(result.local_shape(shape))
    own[dim] = 0
    like = torch.empty(0, dtype=dtype, device=pieces[0].device)
    left_out = [to_local(each) for each in tensors if len(each.shape) != len(shape)]
    nothing = [connected(own, like, each) for each in left_out]
    return from_local(join_pieces([*pieces, *nothing], dim), result)


def join_layout(layouts: Sequence[Layout], lengths: Sequence[int], dim: int) -> Layout:
    """How the joined tensor is cut: along each axis as the first operand that is cut there.

    Args:
        layouts: Each operand's.
        lengths: Each operand's size along `dim`.
        dim: The dimension that they are joined along.
    """
    result = Layout.replicated(layouts[0].mesh)
    for joins in (False, True):
        for layout in layouts:
            for axis, cut in layout.cut_axes():
                taken = result.cuts[axis] is not None or result.axis_of(cut.dim) is not None
                if taken or (cut.dim == dim) != joins:
                    continue
                sizes = _summed(layouts, lengths, axis, dim) if joins else cut.sizes
                result = result.with_cut(axis, Cut(cut.dim, sizes))
    return result


def part_layout(result: Layout, dim: int, first: int, length: int) -> Layout:
    """The layout of one operand that gives each rank its part of the joined tensor."""
    axis = result.axis_of(dim)
    if axis is None:
        return result
    cut = result.cuts[axis]
    assert cut is not None
    own = range(first, first + length)
    parts = [meet(own, start, size) for start, size in zip(cut.starts, cut.sizes, strict=True)]
    return result.with_cut(axis, Cut(dim, tuple(map(len, parts))))


def _summed(
    layouts: Sequence[Layout], lengths: Sequence[int], axis: int, dim: int
) -> tuple[int, ...]:
    """What all operands give to each rank; those that are not cut here are divided evenly."""
    ranks = layouts[0].mesh.size(axis)
    parts = []
    for layout, length in zip(layouts, lengths, strict=True):
        cut = layout.cuts[axis]
        here = cut is not None and cut.dim == dim
        parts.append(cut.sizes if cut is not None and here else split_sizes(length, ranks))
    return tuple(map(sum, zip(*parts, strict=True)))
