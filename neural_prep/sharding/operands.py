"""Brings a function's tensors to the pieces that a sharded version computes with."""

from __future__ import annotations

from torch import Tensor

from neural_prep.sharding.adjoint import enter, reduce
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.redistribute import relayout
from neural_prep.sharding.shard_tensor import ShardTensor, to_local


def layout_of(tensor: Tensor, like: Layout) -> Layout:
    """A tensor's layout; an ordinary one is replicated over the same mesh."""
    return tensor.sharding if isinstance(tensor, ShardTensor) else Layout.replicated(like.mesh)


def operand(tensor: Tensor, target: Layout, work: Layout) -> Tensor:
    """This rank's piece of a tensor for work that is divided over ranks.

    Along the mesh axes on which the work is divided and the tensor is not, every rank uses all of
    it for its own part: there gradients are summed. Along other axes all ranks do the same.

    Args:
        tensor: Sharded in any way, or ordinary.
        target: How the work needs it.
        work: Which axes divide the work: those along which this cuts anything.
    """
    local = relayout(to_local(tensor), layout_of(tensor, target), target)
    for axis, _ in work.cut_axes():
        if target.cuts[axis] is None:
            local = enter(local, work.group(axis))
    return local


def reduce_over(partial: Tensor, work: Layout, *axes: int) -> Tensor:
    """The sum of all ranks' parts, one value from then on: its gradient is every part's."""
    for axis in axes:
        partial = reduce(partial, work.group(axis))
    return partial
