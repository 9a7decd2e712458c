"""Other shapes of the same elements: `view` where pieces stay what they are, `reshape` always."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.layout import Layout
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import sharded, sharded_alike
from neural_prep.sharding.reshaping import full_shape, plan_reshape
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local


@sharded("reshape")
def reshape(input: ShardTensor, *shape: Any, **kwargs: Any) -> ShardTensor:
    """Any shape; where the pieces don't allow it the tensor is cut otherwise first."""
    return _reshape(input, _sizes(shape, kwargs.get("shape")), "reshape")


@sharded("reshape_as")
def reshape_as(input: ShardTensor, other: Tensor) -> Tensor:
    """The shape of another tensor."""
    return _as_sharded(_reshape, input, other, "reshape")


@sharded("view")
def view(input: ShardTensor, *shape: Any, **kwargs: Any) -> Tensor:
    """Another shape of the same pieces, or their bytes as another dtype of the same width."""
    dtype = kwargs.get("dtype", shape[0] if shape else None)
    if not isinstance(dtype, torch.dtype):
        return _view(input, _sizes(shape, kwargs.get("size")), "view")
    if dtype.itemsize != input.dtype.itemsize:
        raise refusal("view", input.sharding, f"as {dtype} changes its shape")
    return from_local(to_local(input).view(dtype), input.sharding)


@sharded("view_as")
def view_as(input: ShardTensor, other: Tensor) -> Tensor:
    """The shape of another tensor."""
    return _as_sharded(_view, input, other, "view_as")


@sharded("flatten")
def flatten(input: ShardTensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Joins dimensions."""
    shape = torch.empty(input.shape, device="meta").flatten(start_dim, end_dim).shape
    return _reshape(input, shape, "flatten")


@sharded("ravel")
def ravel(input: ShardTensor) -> Tensor:
    """Joins all dimensions."""
    return _reshape(input, (prod(input.shape),), "ravel")


@sharded("unflatten")
def unflatten(input: ShardTensor, dim: int, sizes: Any) -> Tensor:
    """Divides a dimension into several."""
    meta = torch.empty(input.shape, device="meta")
    shape = torch.unflatten(meta, dim, sizes).shape
    return _reshape(input, shape, "unflatten")


@sharded("squeeze")
def squeeze(input: ShardTensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Leaves out dimensions of size 1: of the whole tensor, not of a piece."""
    meta = torch.empty(input.shape, device="meta")
    shape = meta.squeeze().shape if dim is None else meta.squeeze(dim).shape
    asked = range(input.ndim) if dim is None else _as_tuple(dim)
    gone = {each % max(input.ndim, 1) for each in asked}
    gone = {each for each in gone if input.ndim and input.shape[each] == 1}
    kept = [each for each in range(input.ndim) if each not in gone]
    return _with_dims(input, shape, {old: new for new, old in enumerate(kept)})


@sharded("unsqueeze")
def unsqueeze(input: ShardTensor, dim: int) -> Tensor:
    """Puts in a dimension of size 1."""
    shape = torch.empty(input.shape, device="meta").unsqueeze(dim).shape
    place = dim % (input.ndim + 1)
    return _with_dims(input, shape, {old: old + (old >= place) for old in range(input.ndim)})


@sharded_alike("atleast_1d", "atleast_2d", "atleast_3d")
def at_least(function: Any, *tensors: Any) -> Any:
    """Puts in dimensions of size 1 where there are fewer."""
    if len(tensors) != 1:
        return tuple(at_least(function, tensor) for tensor in tensors)
    if isinstance(tensors[0], list | tuple):
        return tuple(at_least(function, tensor) for tensor in tensors[0])
    (input,) = tensors
    if not isinstance(input, ShardTensor):
        return function(input)
    shape = function(torch.empty(input.shape, device="meta")).shape
    if len(shape) == input.ndim:
        return input
    shift = int(input.ndim == 1)  # a vector becomes the second dimension, others stay in front
    return _with_dims(input, shape, {old: old + shift for old in range(input.ndim)})


def _reshape(input: ShardTensor, shape: Any, name: str) -> ShardTensor:
    shape = full_shape(input.shape, shape)
    plan = plan_reshape(input.sharding, input.shape, shape)
    local = to_local(input.redistribute(plan.needed))
    return from_local(local.reshape(plan.result.local_shape(shape)), plan.result)


def _view(input: ShardTensor, shape: Any, name: str) -> Tensor:
    shape = full_shape(input.shape, shape)
    plan = plan_reshape(input.sharding, input.shape, shape)
    if plan.needed != input.sharding:
        raise refusal(
            name,
            input.sharding,
            f"from {list(input.shape)} to {list(shape)} would leave pieces that are not "
            "consecutive; use reshape, which moves data",
        )
    return _reshape(input, shape, name)


def _as_sharded(change: Any, input: Any, other: Tensor, name: str) -> Tensor:
    """A change of an ordinary tensor to a sharded one's shape leaves it ordinary."""
    if not isinstance(input, ShardTensor):
        return input.reshape(other.shape)  # type: ignore[no-any-return]
    return change(input, other.shape, name)  # type: ignore[no-any-return]


def _with_dims(input: ShardTensor, shape: Any, dims: dict[int, int]) -> Tensor:
    """Puts in or leaves out dimensions of size 1; what is left out is made whole first."""
    layout = input.sharding
    for axis, cut in layout.cut_axes():
        if cut.dim not in dims:
            layout = layout.with_cut(axis, None)
    local = to_local(input.redistribute(layout))
    result: Layout = layout.with_dims(dims)
    return from_local(local.reshape(result.local_shape(shape)), result)


def _sizes(shape: tuple[Any, ...], named: Any) -> tuple[int, ...]:
    """Sizes, whether given one by one or together."""
    if named is not None:
        shape = (named,)
    if len(shape) == 1 and not isinstance(shape[0], int):
        return tuple(shape[0])
    return tuple(int(size) for size in shape)


def _as_tuple(dim: int | tuple[int, ...]) -> tuple[int, ...]:
    return (dim,) if isinstance(dim, int) else tuple(dim)
