"""Rows and elements by index: they are sent to the ranks that ask for them, as the index is cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from neural_prep.sharding.contractions import refuse_options
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import name_of, sharded, sharded_alike
from neural_prep.sharding.rows import check_range, take_elements, take_rows, viewed, with_dim
from neural_prep.sharding.shard_tensor import shards_in
from neural_prep.sharding.trial import try_out

_OF_UNKNOWN_SIZE = (
    "nonzero nonzero_static argwhere masked_select masked_scatter unique unique_consecutive"
)


@sharded("index_select")
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Rows of a dimension."""
    try_out(torch.index_select, input, dim, index)
    size = input.shape[dim] if input.ndim else 1

    def use(wrong: Tensor) -> Tensor:
        return torch.zeros(size).index_select(0, wrong)

    check_range(index, size, use)
    found = take_rows(with_dim(input), dim % max(input.ndim, 1), with_dim(index).long())
    return found if input.ndim else viewed(torch.Tensor.reshape, found, ())


@sharded("gather")
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """An element for each of the index, whose other dimensions are the input's."""
    try_out(torch.gather, input, dim, index)
    shape = index.shape
    if sparse_grad:
        refuse_options("gather", next(shards_in([input, index])).sharding, {"sparse_grad": True})
    place, input, index = dim % max(input.ndim, 1), with_dim(input), with_dim(index)
    if index.numel() == 0:  # which torch takes whatever its other sizes are
        index = torch.zeros([0] * input.ndim, dtype=torch.int64, device=input.device)
    small, size = [1] * input.ndim, input.shape[place]

    def use(wrong: Tensor) -> Tensor:
        rows = torch.zeros([*small[:place], size, *small[place + 1 :]])
        return rows.gather(place, wrong.reshape(small))

    check_range(index, size, use)
    found = take_elements(input, place, index.long())
    return found if found.shape == shape else viewed(torch.Tensor.reshape, found, shape)


@sharded("take_along_dim")
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """As `gather`, of tensors that broadcast along other dimensions."""
    try_out(torch.take_along_dim, input, indices, dim)
    if dim is None:
        return gather(_flat(input), 0, _flat(indices))
    place = dim % input.ndim
    shapes = [[*each.shape[:place], 1, *each.shape[place + 1 :]] for each in (input, indices)]
    shared = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    rows, items = (
        [*shared[:place], each.shape[place], *shared[place + 1 :]] for each in (input, indices)
    )
    if _goes_round() and rows[place]:
        indices = indices % rows[place]
    expand = torch.Tensor.expand
    return gather(viewed(expand, input, rows), place, viewed(expand, indices, items))


@sharded("take")
def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements by their place in the whole tensor, row after row."""
    try_out(torch.take, input, index)
    count = input.numel()

    def use(wrong: Tensor) -> Tensor:
        return torch.zeros(count).take(wrong)

    check_range(index, count, use, from_end=True)
    index = torch.where(index < 0, index + count, index)
    return take_rows(_flat(input), 0, index)


@sharded_alike(*_OF_UNKNOWN_SIZE.split())
def of_unknown_size(function: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
    """Refuses what has as many elements as values say."""
    layout = next(
        shard.sharding for shard in shards_in((args, kwargs)) if not shard.sharding.is_replicated
    )
    why = "depends on how many elements other ranks choose"
    raise refusal(name_of(function), layout, why)


@lru_cache(maxsize=1)
def _goes_round() -> bool:
    """Whether indices beyond the end begin again in this version's `take_along_dim`."""
    try:
        torch.take_along_dim(torch.zeros(1), torch.ones(1, dtype=torch.int64), 0)
    except (IndexError, RuntimeError):
        return False
    return True


def _flat(tensor: Tensor) -> Tensor:
    return viewed(torch.Tensor.reshape, tensor, (-1,))
