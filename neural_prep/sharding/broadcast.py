"""Lays out what is broadcast together: the first operand's cuts, as the result's dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.operands import operand
from neural_prep.sharding.shard_tensor import ShardTensor


def broadcast_shape(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """The global shape of all tensors together.

    Raises:
        RuntimeError: if they don't fit, as torch words it.
    """
    shapes = [tensor.shape for tensor in tensors]
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def broadcast_layout(tensors: Sequence[Tensor], shape: Sequence[int]) -> Layout:
    """How a result of this shape is cut: along each mesh axis as the first operand that is.

    A cut dimension of size 1 that is broadcast counts as whole.
    """
    shards = [tensor for tensor in tensors if isinstance(tensor, ShardTensor)]
    layout = Layout.replicated(shards[0].sharding.mesh)
    for shard in shards:
        for axis, cut in shard.sharding.cut_axes():
            dim = cut.dim + len(shape) - shard.ndim
            free = layout.cuts[axis] is None and layout.axis_of(dim) is None
            if free and cut.total == shape[dim]:
                layout = layout.with_cut(axis, Cut(dim, cut.sizes))
    return layout


def broadcast_piece(tensor: Tensor, shape: Sequence[int], layout: Layout) -> Tensor:
    """This rank's piece of an operand, for work on a result of this shape and layout."""
    shift = len(shape) - tensor.ndim
    full = [dim for dim in range(tensor.ndim) if tensor.shape[dim] == shape[dim + shift]]
    return operand(tensor, layout.with_dims({dim + shift: dim for dim in full}), layout)
