"""Sorting and what needs an order: with the dimension whole, as another one is cut instead.

`topk` moves each rank's own candidates alone. Of all elements at once, as of vectors, every rank
has all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.along import (
    along_dim,
    kept_dims,
    of_one_element,
    on_whole,
    reduced_on_whole,
    whole_along,
)
from neural_prep.sharding.layout import Cut, Layout, split_sizes
from neural_prep.sharding.operands import operand
from neural_prep.sharding.registry import name_of
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local

Function = Callable[..., Any]


@along_dim("sort")
def _sort(
    function: Function,
    result: torch.dtype,
    input: ShardTensor,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = None,
    out: None = None,
) -> Any:
    """Always stable: what torch gives otherwise depends on sizes."""
    of_one_element(lambda piece: torch.sort(piece, dim=dim), input)
    place = dim % input.ndim

    def compute(piece: Tensor) -> Any:
        return torch.sort(piece, stable=True, dim=place, descending=descending)

    return on_whole(input, place, compute)


@along_dim("argsort")
def _argsort(
    function: Function,
    result: torch.dtype,
    input: ShardTensor,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool = False,
) -> Any:
    return _sort(torch.sort, input.dtype, input, dim, descending)[1]


@along_dim("msort")
def _msort(function: Function, result: torch.dtype, input: ShardTensor, *, out: None = None) -> Any:
    return _sort(torch.sort, result, input, 0)[0]


@along_dim("topk")
def _topk(
    function: Function,
    result: torch.dtype,
    input: ShardTensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    out: None = None,
) -> Any:
    """The greatest of what is greatest in each piece; cut evenly along the dimension."""
    of_one_element(lambda piece: torch.topk(piece, 1, dim), input)
    place, layout = dim % input.ndim, input.sharding
    axis = layout.axis_of(place)
    if axis is None:
        values, indices = torch.topk(to_local(input), k, place, largest, sorted)
        return torch.return_types.topk((from_local(values, layout), from_local(indices, layout)))
    cut, rank = layout.cuts[axis], layout.rank(axis)
    assert isinstance(cut, Cut)
    best, indices = torch.topk(to_local(input), min(k, cut.sizes[rank]), place, largest, False)
    counts = tuple(min(k, size) for size in cut.sizes)
    layout = layout.with_cut(axis, Cut(place, counts))
    candidates = whole_along(from_local(best, layout), place)
    sources = whole_along(from_local(indices + cut.start(rank), layout), place)
    values, chosen = torch.topk(to_local(candidates), k, place, largest, sorted)
    indices = to_local(sources).gather(place, chosen)
    target = layout.with_cut(axis, Cut(place, split_sizes(k, len(counts))))
    values, indices = (
        from_local(each, candidates.sharding).redistribute(target) for each in (values, indices)
    )
    return torch.return_types.topk((values, indices))


@along_dim("kthvalue")
def _kthvalue(
    function: Function,
    result: torch.dtype,
    input: ShardTensor,
    k: int,
    dim: int = -1,
    keepdim: bool = False,
    *,
    out: None = None,
) -> Any:
    of_one_element(lambda piece: torch.kthvalue(piece, 1, dim), input)
    place = dim % input.ndim

    def compute(piece: Tensor) -> Any:
        return torch.kthvalue(piece, k, place, keepdim)

    return reduced_on_whole(input, place, keepdim, compute)


@along_dim("median", "nanmedian", "mode")
def _median(
    function: Function,
    result: torch.dtype,
    input: ShardTensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    out: None = None,
) -> Any:
    """Along a dimension; medians also of all elements."""
    if dim is None and name_of(function) != "mode":
        whole = input.redistribute(Layout.replicated(input.sharding.mesh))
        return from_local(function(to_local(whole)), whole.sharding)
    dim = -1 if dim is None else dim
    of_one_element(lambda piece: function(piece, dim), input)
    place = dim % input.ndim

    def compute(piece: Tensor) -> Any:
        return function(piece, place, keepdim)

    return reduced_on_whole(input, place, keepdim, compute)


@along_dim("quantile", "nanquantile")
def _quantile(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: None = None,
) -> Any:
    options = {"keepdim": keepdim, "interpolation": interpolation}
    shape, _ = rehearse(function, input, q, dim, **options)
    if not isinstance(input, ShardTensor):
        assert isinstance(q, ShardTensor)
        input = from_local(input, Layout.replicated(q.sharding.mesh))
    mesh = input.sharding.mesh
    if dim is None or input.ndim == 0:
        dim = None
        moved = input.redistribute(Layout.replicated(mesh))
        target = layout = moved.sharding
    else:
        place, new = dim % input.ndim, q.ndim if isinstance(q, Tensor) else 0
        moved = whole_along(input, place)
        kept = {a: b + new for a, b in kept_dims(input.ndim, place, keepdim).items()}
        layout, target = moved.sharding.with_dims(kept), input.sharding.with_dims(kept)
    if isinstance(q, Tensor):
        q = operand(q, Layout.replicated(mesh), moved.sharding)
    local = to_local(moved)
    # Quantiles out of range are found here: torch does not take empty pieces.
    sample = of_one_element(lambda piece: function(piece, q), input)
    if local.numel():
        found = function(local, q, dim, **options)
    else:
        inputs = [each for each in (local, q) if isinstance(each, Tensor)]
        found = connected(layout.local_shape(shape), sample, *inputs)
    return from_local(found, layout).redistribute(target)
