"""Dimensions in another order, repeated or taken apart: cuts go where their dimension goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.broadcast import broadcast_shape
from neural_prep.sharding.halo import Fetch, fetch, plan_fetch
from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import name_of, sharded, sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local

_PERMUTATIONS = "permute transpose swapaxes swapdims movedim moveaxis t adjoint T mT H mH"


@sharded_alike(*_PERMUTATIONS.split())
def permute(function: Callable[..., Tensor], input: ShardTensor, *args: Any, **kwargs: Any) -> Any:
    """Dimensions in another order."""
    order = _order(function, input.ndim, args, kwargs)
    layout = input.sharding.with_dims({old: new for new, old in enumerate(order)})
    return from_local(function(to_local(input), *args, **kwargs), layout)


@sharded("expand")
def expand(input: ShardTensor, *size: Any, **kwargs: Any) -> Tensor:
    """Repeats dimensions of size 1, and new ones in front."""
    if "size" in kwargs:
        size = (kwargs["size"],)
    sizes = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    shape = torch.empty(input.shape, device="meta").expand(sizes).shape
    return _expand(input, shape)


@sharded("expand_as")
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """The shape of another tensor."""
    if not isinstance(input, ShardTensor):
        return input.expand(other.shape)
    return expand(input, other.shape)


@sharded("broadcast_to")
def broadcast_to(input: ShardTensor, size: Sequence[int]) -> Tensor:
    """Repeats dimensions of size 1, and new ones in front."""
    return expand(input, size)


@sharded("broadcast_tensors")
def broadcast_tensors(*tensors: Any) -> list[Tensor]:
    """All tensors in the shape that they have together; each keeps its own cuts."""
    found = tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    shape = broadcast_shape(found)
    return [each.expand(shape) for each in found]


@sharded("repeat")
def repeat(input: ShardTensor, *repeats: Any, **kwargs: Any) -> Tensor:
    """Copies of the tensor, side by side; along a cut dimension elements move to their place."""
    if "repeats" in kwargs:
        repeats = (kwargs["repeats"],)
    counts = tuple(repeats[0]) if len(repeats) == 1 and not isinstance(repeats[0], int) else repeats
    torch.empty(input.shape, device="meta").repeat(counts)  # raises what torch raises
    return _repeat(input, [int(count) for count in counts])


@sharded("tile")
def tile(input: ShardTensor, *dims: Any, **kwargs: Any) -> Tensor:
    """As `repeat`; missing counts are 1."""
    if "dims" in kwargs:
        dims = (kwargs["dims"],)
    counts = tuple(dims[0]) if len(dims) == 1 and not isinstance(dims[0], int) else dims
    return _repeat(input, [1] * (input.ndim - len(counts)) + [int(count) for count in counts])


@sharded("unbind")
def unbind(input: ShardTensor, dim: int = 0) -> tuple[Tensor, ...]:
    """All slices of a dimension; a cut one is made whole, so that every rank has all of them."""
    place = _dim(dim, input.ndim)
    axis = input.sharding.axis_of(place)
    if axis is not None:
        input = input.redistribute(input.sharding.with_cut(axis, None))
    layout = input.sharding.with_dims(
        {old: old - (old > place) for old in range(input.ndim) if old != place}
    )
    return tuple(from_local(piece, layout) for piece in to_local(input).unbind(place))


@sharded_alike("view_as_real", "view_as_complex")
def view_as_parts(function: Callable[..., Tensor], input: ShardTensor) -> Tensor:
    """Complex numbers as pairs and back: the pair is the last dimension."""
    pairs = name_of(function) == "view_as_complex"
    if pairs and input.sharding.axis_of(input.ndim - 1) is not None:
        raise refusal("view_as_complex", input.sharding, "needs both parts together")
    local = to_local(input)
    if local.numel():
        return from_local(function(local), input.sharding)
    like = function(local.new_zeros(local.shape))  # torch looks at strides, which mean nothing here
    return from_local(connected(like.shape, like, local), input.sharding)


def _order(
    function: Callable[..., Tensor], ndim: int, args: Sequence[Any], kwargs: dict[str, Any]
) -> list[int]:
    """Where each dimension comes from: strides of a tensor without memory tell them apart."""
    probe = torch.empty_strided([2] * ndim, [2**dim for dim in range(ndim)], device="meta")
    strides = function(probe, *args, **kwargs).stride()
    return [stride.bit_length() - 1 for stride in strides]


def _expand(input: ShardTensor, shape: Sequence[int]) -> Tensor:
    layout, shift = input.sharding, len(shape) - input.ndim
    for axis, cut in layout.cut_axes():
        if cut.total != shape[cut.dim + shift]:
            layout = layout.with_cut(axis, None)
    local = to_local(input.redistribute(layout))
    result = layout.with_dims({old: old + shift for old in range(input.ndim)})
    return from_local(local.expand(result.local_shape(shape)), result)


def _repeat(input: ShardTensor, counts: list[int]) -> Tensor:
    shift = len(counts) - input.ndim
    layout: Layout = input.sharding.with_dims({old: old + shift for old in range(input.ndim)})
    local = to_local(input).reshape(*(1,) * shift, *input._local.shape)
    for axis, cut in layout.cut_axes():
        count, counts = counts[cut.dim], [1 if d == cut.dim else c for d, c in enumerate(counts)]
        if count == 1:
            continue
        plan = _copies(cut.sizes, count, layout.rank(axis))
        local = fetch(local, plan, cut.dim, layout.group(axis))
        sizes = tuple(size * count for size in cut.sizes)
        layout = layout.with_cut(axis, Cut(cut.dim, sizes))
    return from_local(local.repeat(counts), layout)


@lru_cache(maxsize=1024)
def _copies(sizes: tuple[int, ...], count: int, rank: int) -> Fetch:
    """Who sends what where a cut dimension is repeated, every rank `count` times its size."""
    cut = Cut(0, tuple(size * count for size in sizes))
    total = max(sum(sizes), 1)
    wanted = [
        torch.arange(start, start + size) % total
        for start, size in zip(cut.starts, cut.sizes, strict=True)
    ]
    return plan_fetch(sizes, wanted, rank)


def _dim(dim: int, ndim: int) -> int:
    """A dimension counted from the front; torch's error where there is none."""
    if not -ndim <= dim < ndim:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], "
            f"but got {dim})"
        )
    return dim % ndim
