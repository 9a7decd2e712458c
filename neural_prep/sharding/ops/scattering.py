"""Values put into rows and elements by index: they are sent to the ranks that have these.

All values for one element meet where it is, so that what is done with them is torch's own, ties and
zeros included. The result is cut as the input is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding import advanced
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.rows import Put, check_range, put_elements, put_rows, viewed, with_dim
from neural_prep.sharding.shard_tensor import ShardTensor, from_local
from neural_prep.sharding.trial import try_out

Function = Callable[..., Tensor]


@sharded("index_add")
def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """Adds values to rows."""
    return _rows(torch.index_add, input, dim, index, source, sums=True, alpha=alpha)


@sharded("index_copy")
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Values instead of rows."""
    return _rows(torch.index_copy, input, dim, index, source)


@sharded("index_reduce")
def index_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Products, means and extremes of values for each row."""
    options = {"include_self": include_self}
    return _rows(torch.index_reduce, input, dim, index, source, reduce, **options)


@sharded("index_fill")
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """One value in all rows that the index has: a mask of these says where."""
    try_out(torch.index_fill, input, dim, index, value)
    place, size = dim % max(input.ndim, 1), _size(input, dim)
    _check(torch.index_fill, input, dim, index, 0, from_end=True)
    index = with_dim(index)
    index = torch.where(index < 0, index + size, index)

    def fill(piece: Tensor, dim: int, rows: Tensor, values: Tensor | None) -> Tensor:
        return piece.index_fill(dim, rows, True)

    none = torch.zeros(size, dtype=torch.bool, device=input.device)
    if isinstance(input, ShardTensor) and input.ndim:
        layout = input.sharding.with_dims({place: 0})
        local = layout.local_shape([size])
        none = from_local(none.new_zeros(local), layout)
    mask = put_rows(none, 0, index, None, fill)
    mask = mask.redistribute(none.sharding if isinstance(none, ShardTensor) else _whole(mask))
    shaped = mask.reshape([1 if each != place else size for each in range(input.ndim)])
    return torch.masked_fill(
        input, shaped, value.to(input.dtype) if isinstance(value, Tensor) else value
    )


@sharded("scatter")
def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Any = None,
    *,
    value: Any = None,
    reduce: str | None = None,
) -> Tensor:
    """Values, or one, instead of elements; or added to them, or multiplied with them."""
    options: dict[str, Any] = {} if reduce is None else {"reduce": reduce}
    return _elements(torch.scatter, input, dim, index, value if src is None else src, **options)


@sharded("scatter_add")
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Adds values to elements."""
    return _elements(torch.scatter_add, input, dim, index, src, sums=True)


@sharded("scatter_reduce")
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Sums, products, means and extremes of values for each element."""
    options = {"include_self": include_self}
    sums = reduce == "sum"
    return _elements(torch.scatter_reduce, input, dim, index, src, reduce, sums=sums, **options)


@sharded("index_put")
def index_put(
    input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Values instead of elements by tensors of integers or a mask, or added to them."""
    found = advanced.put(input, tuple(indices), values, accumulate=accumulate)
    return _cut_as(found, input)


@sharded("put")
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Values instead of elements by their place in the whole tensor, row after row."""
    flat, places, values = (
        viewed(torch.Tensor.reshape, each, (-1,)) for each in (input, index, source)
    )
    try_out(torch.put, flat, places, values, accumulate)
    count = input.numel()

    def use(wrong: Tensor) -> Tensor:
        return torch.zeros(count).put(wrong, torch.zeros(1))

    check_range(places, count, use, from_end=True)
    found = advanced.put(flat, (places,), values, accumulate=accumulate)
    return _cut_as(_in_shape(found, input), input)


def _rows(
    function: Function,
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *args: Any,
    sums: bool = False,
    **options: Any,
) -> Tensor:
    """Puts values into rows by torch's own function."""
    try_out(function, input, dim, index, source, *args, **options)
    _check(function, input, dim, index, source, *args, **options)
    rows, index, source = with_dim(input), with_dim(index), with_dim(source)
    put = _putting(function, source, *args, **options)
    found = put_rows(rows, dim % rows.ndim, index.long(), source, put, sums=sums)
    return _in_shape(found, input)


def _elements(
    function: Function,
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Any,
    *args: Any,
    sums: bool = False,
    **options: Any,
) -> Tensor:
    """Puts values, or one, into elements by torch's own function."""
    try_out(function, input, dim, index, src, *args, **options)
    _check(function, input, dim, index, src, *args, **options)
    rows, index = with_dim(input), with_dim(index)
    if index.numel() == 0:  # which torch takes whatever its other sizes are
        index = torch.zeros([0] * rows.ndim, dtype=torch.int64, device=input.device)
    values = with_dim(src) if isinstance(src, Tensor) else None
    put = _putting(function, src, *args, **options)
    found = put_elements(rows, dim % rows.ndim, index.long(), values, put, sums=sums)
    return _in_shape(found, input)


def _putting(function: Function, value: Any, *args: Any, **options: Any) -> Put:
    """What is done with a piece; without values it is done with the one that is given."""

    def put(piece: Tensor, dim: int, rows: Tensor, values: Tensor | None) -> Tensor:
        given = value if values is None else values
        return function(piece, dim, rows, given, *args, **options)

    return put


def _check(
    function: Function,
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Any,
    *args: Any,
    from_end: bool = False,
    **options: Any,
) -> None:
    """Raises what torch raises of the index on all ranks where it is out of range on any."""
    size, ndim = _size(input, dim), max(input.ndim, 1)
    small, place = [1] * ndim, dim % ndim
    of_elements = index.ndim == ndim and "scatter" in function.__name__

    def use(wrong: Tensor) -> Tensor:
        rows = torch.zeros([*small[:place], size, *small[place + 1 :]])
        value = torch.zeros(small) if isinstance(source, Tensor) else source
        where = wrong.reshape(small) if of_elements else wrong
        return function(rows, place, where, value, *args, **options)

    check_range(index, size, use, from_end=from_end)


def _in_shape(found: Tensor, input: Tensor) -> Tensor:
    """The result in the input's shape."""
    if found.shape == input.shape:
        return found
    return viewed(torch.Tensor.reshape, found, input.shape)


def _size(input: Tensor, dim: int) -> int:
    return input.shape[dim] if input.ndim else 1


def _whole(tensor: ShardTensor) -> Layout:
    return Layout.replicated(tensor.sharding.mesh)


def _cut_as(found: Tensor, input: Tensor) -> Tensor:
    """The result cut as the input is, unless every rank has it whole."""
    if not isinstance(input, ShardTensor) or not isinstance(found, ShardTensor):
        return found
    if input.sharding.is_replicated:
        return found
    return found.redistribute(input.sharding)
