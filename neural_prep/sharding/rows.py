"""Takes rows or elements of a sharded tensor by global index, or puts values there.

What an index has an element for each row of has its own dimensions; where it has one for each
element, it has the dimensions of what is indexed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.contractions import Label
from neural_prep.sharding.items import divide_items, leading
from neural_prep.sharding.layout import Cut
from neural_prep.sharding.registry import name_of, run_version
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.transport import greatest

# Puts values into rows of a piece along a dimension: given the piece, the dimension, `(M,)` rows
# and the values, which have M along that dimension; or, by element, rows and values with all
# dimensions.
Put = Callable[[Tensor, int, Tensor, Tensor | None], Tensor]


def take_rows(input: Tensor, dim: int, index: Tensor) -> ShardTensor:
    """Rows of `dim`, whose place the index's dimensions take; cut as the index is.

    Args:
        input: What rows are taken of; this or the index is sharded.
        dim: Not negative.
        index: Of any shape, int64, not negative and in range.
    """
    own = _own_labels(index)
    work = divide_items(input, dim, [(index, own)], puts=False)
    piece, places = work.indexed(input), work.piece(index, own)
    if work.axis is None:
        found = piece.index_select(dim, places.reshape(-1))
    else:
        found = work.take(piece.movedim(dim, 0), places.reshape(-1)).movedim(0, dim)
    found = found.reshape([*piece.shape[:dim], *places.shape, *piece.shape[dim + 1 :]])
    return from_local(found, work.layout(_in_place_of(dim, own, input.ndim)))


def take_elements(input: Tensor, dim: int, index: Tensor) -> ShardTensor:
    """As `torch.gather`; arguments as for `take_rows`, but the index has all dimensions."""
    labels = _in_place_of(dim, ["item"], input.ndim)
    work = divide_items(input, dim, [(index, labels)], puts=False, by_element=True)
    piece, places = work.indexed(input), work.piece(index, labels)
    if work.axis is None:
        found = piece.gather(dim, places)
    else:
        flat, width = _flat(piece, dim)
        found = work.take(flat, work.flat_index(places, piece.shape), width)
        found = _unflat(found, tuple(places.shape), dim)
    return from_local(found, work.layout(labels))


def put_rows(
    input: Tensor,
    dim: int,
    index: Tensor,
    values: Tensor | None,
    put: Put,
    *,
    sums: bool = False,
) -> ShardTensor:
    """Puts values into rows of `dim`; the result is cut as the input is.

    Along an axis that cuts the index or values, but not the input, the result is cut along `dim`,
    or as the values are.

    Args:
        input: What values are put into; this, the index or the values are sharded.
        dim: Not negative.
        index: Of any shape, int64, not negative and in range.
        values: The index's dimensions in the place of `dim`.
        put: What is done.
        sums: Whether values for one row may be added up before.
    """
    own = _own_labels(index)
    labels = _in_place_of(dim, own, input.ndim)
    items = [(index, own)] if values is None else [(index, own), (values, labels)]
    work = divide_items(input, dim, items, puts=True)
    piece, places = work.indexed(input), work.piece(index, own).reshape(-1)
    if values is not None:
        values = work.piece(values, labels)
        after = values.shape[dim + index.ndim :]
        values = values.reshape(*values.shape[:dim], len(places), *after)
    if work.axis is None:
        return from_local(put(piece, dim, places, values), work.input)
    moved = None if values is None else values.movedim(dim, 0)
    rows, arrived = work.put(places, moved, sums=sums)
    return from_local(put(piece.movedim(dim, 0), 0, rows, arrived).movedim(0, dim), work.input)


def put_elements(
    input: Tensor,
    dim: int,
    index: Tensor,
    values: Tensor | None,
    put: Put,
    *,
    sums: bool = False,
) -> ShardTensor:
    """As `put_rows`, of an index that has all dimensions; values have its shape or are longer."""
    labels = _in_place_of(dim, ["item"], input.ndim)
    values = None if values is None else first_of(values, tuple(index.shape))
    items = [(each, labels) for each in (index, values) if each is not None]
    work = divide_items(input, dim, items, puts=True, by_element=True)
    piece, places = work.indexed(input), work.piece(index, labels)
    own = None if values is None else work.piece(values, labels)
    if work.axis is None:
        return from_local(put(piece, dim, places, own), work.input)
    flat, width = _flat(piece, dim)
    elements = work.flat_index(places, piece.shape)
    moved = None if own is None else own.movedim(dim, 0).reshape(-1)
    rows, arrived = work.put(elements, moved, sums=sums, width=width)
    return from_local(_unflat(put(flat, 0, rows, arrived), piece.shape, dim), work.input)


def bounds(index: Tensor) -> tuple[int, int]:
    """The least and the greatest element, on all ranks alike; 0 and -1 if there is none."""
    local = to_local(index)
    found = local.new_tensor([-1, 0])  # the greatest one, and the distance of the least below zero
    if local.numel():
        found = torch.stack([local.max(), -local.min()])
    if isinstance(index, ShardTensor):
        for axis, _ in index.sharding.cut_axes():
            found = greatest(found, index.sharding.group(axis))
    highest, below = found.tolist()
    return -below, highest


def check_range(
    index: Tensor, size: int, use: Callable[[Tensor], Any], *, from_end: bool = False
) -> None:
    """Raises on all ranks what torch raises, where an index on any of them is out of range.

    Args:
        index: Sharded, or ordinary.
        size: How many rows there are.
        use: Uses an index, `(1,)`, as torch does.
        from_end: Whether negative ones count from the end.
    """
    least, greatest_one = bounds(index)
    if greatest_one < size and least >= (-size if from_end else 0):
        return
    wrong = greatest_one if greatest_one >= size else least
    use(torch.tensor([wrong]))
    raise IndexError(f"index {wrong} is out of range; there are {size} elements")


def first_of(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The part of a tensor that begins where it does and has at most this shape."""
    sizes = [min(size, wanted) for size, wanted in zip(tensor.shape, shape, strict=True)]
    if not isinstance(tensor, ShardTensor):
        for dim, size in enumerate(sizes):
            tensor = tensor.narrow(dim, 0, size)
        return tensor
    local, layout = to_local(tensor), tensor.sharding
    for axis, cut in layout.cut_axes():
        parts = leading(cut.sizes, sizes[cut.dim])
        layout = layout.with_cut(axis, Cut(cut.dim, parts))
    for dim, size in enumerate(layout.local_shape(sizes)):
        local = local.narrow(dim, 0, size)
    return from_local(local, layout)


def with_dim(tensor: Tensor) -> Tensor:
    """A number as a tensor with one dimension, as indexing has it."""
    return tensor if tensor.ndim else viewed(torch.Tensor.reshape, tensor, (1,))


def viewed(function: Callable[..., Tensor], tensor: Tensor, *args: Any) -> Tensor:
    """A view for work that ends in a copy, which thus does not count as a view of the tensor."""
    if not isinstance(tensor, ShardTensor):
        return function(tensor, *args)
    view: Tensor = run_version(function, name_of(function), (tensor, *args), {})
    return view


def _own_labels(index: Tensor) -> list[Label]:
    return [f"item {dim}" for dim in range(index.ndim)]


def _in_place_of(dim: int, labels: Sequence[Label], ndim: int) -> list[Label]:
    """The labels of all dimensions, with these in the place of one."""
    return [*range(dim), *labels, *range(dim + 1, ndim)]


def _flat(piece: Tensor, dim: int) -> tuple[Tensor, int]:
    """All elements, `dim` first; and how many there are for each row."""
    width = prod(size for each, size in enumerate(piece.shape) if each != dim)
    return piece.movedim(dim, 0).reshape(-1), width


def _unflat(elements: Tensor, shape: Sequence[int], dim: int) -> Tensor:
    """The tensor of which `_flat` gives the elements."""
    others = [size for each, size in enumerate(shape) if each != dim]
    return elements.reshape(shape[dim], *others).movedim(0, dim)
