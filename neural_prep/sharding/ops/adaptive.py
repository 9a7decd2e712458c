"""Adaptive pooling: ranks pool their own rows of each window, and only those parts travel.

The whole of a global average is one row from each rank. Parts of a window go to the rank that has
its middle; of a single window to all ranks, so that the result is replicated along that axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected, gather
from neural_prep.sharding.along import cast_by_autocast
from neural_prep.sharding.halo import fetch
from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.parts import Parts, Table, plan_parts, table_of
from neural_prep.sharding.pooled import spatial_dims
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import name_of, sharded_alike
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.transport import summed_in

_DIMS = (1, 2, 3)


@sharded_alike(*(f"adaptive_avg_pool{count}d" for count in _DIMS))
def _adaptive_avg_pool(
    function: Callable[..., Tensor],
    input: ShardTensor,
    output_size: int | Sequence[int | None],
) -> ShardTensor:
    """`(N, C, ...)` or `(C, ...)`: first dimensions that are not cut, then those that are."""
    shape, _ = rehearse(function, input, output_size)
    _refuse_nothing(function, input, shape)
    input = cast_by_autocast(input, lambda one: function(one, 1))
    _, dtype = rehearse(function, input, output_size)
    local, layout = to_local(input), input.sharding
    first = input.ndim - spatial_dims(function)
    target = list(shape)
    for _, cut in layout.cut_axes():
        target[cut.dim] = local.shape[cut.dim]
    if 0 in target:
        local = connected(target, local, local, curved=True)
    else:
        local = function(local, target[first:])
    local = local.to(summed_in(dtype))
    for axis, cut in layout.cut_axes():
        if cut.dim >= first:
            parts = plan_parts(cut.sizes, shape[cut.dim], layout.rank(axis))
            local = _add_rows(local, cut.dim, parts.own, 1.0 / parts.lengths.double())
            local, layout = _collect(local, layout, axis, parts)
            local = _add_rows(local, cut.dim, parts.joined, None)
    return from_local(local.to(dtype), layout)


@sharded_alike(
    *(f"adaptive_max_pool{count}d" for count in _DIMS),
    *(f"adaptive_max_pool{count}d_with_indices" for count in _DIMS),
)
def _adaptive_max_pool(
    function: Callable[..., Any],
    input: ShardTensor,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
) -> Any:
    """`(N, C, ...)` or `(C, ...)`, the last dimension first.

    In this order the first of equal maxima is torch's: the one with the lowest flat index.
    """
    python = isinstance(function, FunctionType)  # torch's built-in ones always return both
    both = return_indices or not python or name_of(function).endswith("_with_indices")
    count = spatial_dims(function)
    shape, _ = rehearse(function, input, output_size)
    _refuse_nothing(function, input, shape)
    input = cast_by_autocast(input, lambda one: _first(function(one, 1)))
    first = input.ndim - count
    values, layout = to_local(input), input.sharding
    if all(cut.dim < first for _, cut in layout.cut_axes()):
        return _pool_whole(function, values, layout, shape, both=both)
    places = _flat_indices(input, first) if both else None
    for dim in reversed(range(first, input.ndim)):
        axis = layout.axis_of(dim)
        if axis is None:
            table = table_of(input.shape[dim], shape[dim])
            values, places = _greatest(values, places, dim, first, table)
            continue
        cut = layout.cuts[axis]
        assert cut is not None
        parts = plan_parts(cut.sizes, shape[dim], layout.rank(axis))
        values, places = _greatest(values, places, dim, first, parts.own)
        if places is not None:
            places, _ = _collect(places, layout, axis, parts)
        values, layout = _collect(values, layout, axis, parts)
        values, places = _greatest(values, places, dim, first, parts.joined)
    result = from_local(values, layout)
    return result if places is None else (result, from_local(places, layout))


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result  # type: ignore[no-any-return]


def _pool_whole(
    function: Callable[..., Any],
    local: Tensor,
    layout: Layout,
    shape: Sequence[int],
    *,
    both: bool,
) -> Any:
    """Maxima where no dimension that is pooled is cut."""
    piece, count = layout.local_shape(shape), spatial_dims(function)
    pool = getattr(torch.nn.functional, f"adaptive_max_pool{count}d")
    if 0 in piece:
        places = torch.empty(piece, dtype=torch.int64, device=local.device)
        found = (connected(piece, local, local, curved=True), places)
    else:
        found = pool(local, shape[-count:], return_indices=True)
    result = from_local(found[0], layout)
    return (result, from_local(found[1], layout)) if both else result


def _collect(local: Tensor, layout: Layout, axis: int, parts: Parts) -> tuple[Tensor, Layout]:
    """Brings each window's parts together."""
    cut = layout.cuts[axis]
    assert cut is not None
    if parts.fetch is None:
        found = gather(local, parts.counts, cut.dim, layout.group(axis))
        return found, layout.with_cut(axis, None)
    found = fetch(local, parts.fetch, cut.dim, layout.group(axis))
    return found, layout.with_cut(axis, Cut(cut.dim, parts.sizes))


def _add_rows(local: Tensor, dim: int, table: Table, factors: Tensor | None) -> Tensor:
    """The sum of each window's rows, times its factor."""
    shape = (*local.shape[:dim], table.count, *local.shape[dim + 1 :])
    if 0 in shape:
        return connected(shape, local, local)
    rows = table.spread(local, dim)  # (..., count, width, ...)
    if table.mask is not None:
        ones = (1,) * (local.ndim - 1 - dim)
        rows = torch.where(table.mask.to(local.device).reshape(*table.mask.shape, *ones), rows, 0)
    total = rows.sum(dim + 1)
    if factors is None:
        return total
    factors = factors.to(total.dtype).to(total.device)
    return total * factors.reshape(-1, *(1,) * (local.ndim - 1 - dim))


def _greatest(
    values: Tensor, places: Tensor | None, dim: int, first: int, table: Table
) -> tuple[Tensor, Tensor | None]:
    """The maximum of each window's rows, and where it is, by torch's own pooling.

    Windows of fewer rows repeat their last one, which changes neither.
    """
    shape = (*values.shape[:dim], table.count, *values.shape[dim + 1 :])
    if 0 in shape:
        none = None if places is None else places.new_empty(shape)
        return connected(shape, values, values, curved=True), none
    rows = table.spread(values, dim).flatten(dim, dim + 1)
    pool = getattr(torch.nn.functional, f"adaptive_max_pool{values.ndim - first}d")
    found, chosen = pool(rows, shape[first:], return_indices=True)
    if places is None:
        return found, None
    places = table.spread(places, dim).flatten(dim, dim + 1).flatten(first)
    return found, places.gather(first, chosen.flatten(first)).reshape(shape)


def _flat_indices(input: ShardTensor, first: int) -> Tensor:
    """Each element's flat global index in the pooled dimensions."""
    layout, shape = input.sharding, to_local(input).shape
    result, step = torch.zeros((), dtype=torch.int64, device=input.device), 1
    for dim in reversed(range(first, input.ndim)):
        axis = layout.axis_of(dim)
        cut = None if axis is None else layout.cuts[axis]
        start = 0 if axis is None or cut is None else cut.start(layout.rank(axis))
        place = torch.arange(start, start + shape[dim], device=input.device)
        result = result + (place * step).reshape(-1, *(1,) * (input.ndim - 1 - dim))
        step *= input.shape[dim]
    return result.expand(shape)


def _refuse_nothing(
    function: Callable[..., Any],
    input: ShardTensor,
    shape: Sequence[int],
) -> None:
    """Refuses what has windows without rows, or no windows."""
    count = spatial_dims(function)
    if 0 in (*shape[-count:], *input.shape[-count:]):
        raise refusal(
            name_of(function), input.sharding, f"from {list(input.shape)} to {list(shape)}"
        )
