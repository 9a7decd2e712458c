"""Lays out what is broadcast together: the first operand's cuts, as the result's dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.operands import operand
from neural_prep.sharding.shard_tensor import ShardTensor

Cuts = tuple[Cut | None, ...]


def broadcast_shape(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """The global shape of all tensors together.

    Raises:
        RuntimeError: if they don't fit, as torch words it.
    """
    shapes = [tensor.shape for tensor in tensors]
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def broadcast_pieces(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Layout]:
    """Every operand's piece, and the layout of the result.

    Along each mesh axis it is cut as the first operand that is; a cut dimension of size 1 that is
    broadcast counts as whole.

    Raises:
        RuntimeError: if shapes don't fit, as torch words it.
    """
    layouts = [each.sharding if isinstance(each, ShardTensor) else None for each in tensors]
    known = [layout for layout in layouts if layout is not None]
    cuts, wanted = _plan(
        tuple(tuple(tensor.shape) for tensor in tensors),
        tuple(None if layout is None else layout.cuts for layout in layouts),
    )
    layout = _layout(cuts, known)
    pieces = [
        operand(tensor, _layout(each, known), layout)
        for tensor, each in zip(tensors, wanted, strict=True)
    ]
    return pieces, layout


def broadcast_piece(tensor: Tensor, shape: Sequence[int], layout: Layout) -> Tensor:
    """This rank's piece of an operand, for work on a result of this shape and layout."""
    shift = len(shape) - tensor.ndim
    full = [dim for dim in range(tensor.ndim) if tensor.shape[dim] == shape[dim + shift]]
    return operand(tensor, layout.with_dims({dim + shift: dim for dim in full}), layout)


@lru_cache(maxsize=4096)
def _plan(
    shapes: tuple[tuple[int, ...], ...], operands: tuple[Cuts | None, ...]
) -> tuple[Cuts, tuple[Cuts, ...]]:
    """The cuts of the result, and those that each operand needs."""
    shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    axes = len(next(cuts for cuts in operands if cuts is not None))
    found: list[Cut | None] = [None] * axes
    for own, cuts in zip(shapes, operands, strict=True):
        for axis, cut in enumerate(cuts or ()):
            if cut is None or found[axis] is not None:
                continue
            dim = cut.dim + len(shape) - len(own)
            taken = any(other is not None and other.dim == dim for other in found)
            if not taken and cut.total == shape[dim]:
                found[axis] = Cut(dim, cut.sizes)
    return tuple(found), tuple(tuple(_cut_of(own, shape, cut) for cut in found) for own in shapes)


def _cut_of(own: Sequence[int], shape: Sequence[int], cut: Cut | None) -> Cut | None:
    """The result's cut as an operand's, where it has the whole of that dimension."""
    if cut is None:
        return None
    dim = cut.dim + len(own) - len(shape)
    return Cut(dim, cut.sizes) if dim >= 0 and own[dim] == cut.total else None


def _layout(cuts: Cuts, known: Sequence[Layout]) -> Layout:
    """A layout of the operands' mesh; one that is there already costs nothing."""
    found = next((layout for layout in known if layout.cuts == cuts), None)
    return found or Layout(known[0].mesh, cuts)
