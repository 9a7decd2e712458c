"""Greatest and least elements, and where they are: ties are the whole tensor's, not a piece's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.extremes import extreme, first_extreme, first_of_all, shared
from neural_prep.sharding.reduction import Dims, Reduction, named_as_torch, reducing, result_dtype
from neural_prep.sharding.registry import name_of, sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor

Function = Callable[..., Any]


@reducing("amax", "amin")
def _amax(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    dim: Dims = (),
    keepdim: bool = False,
    *,
    out: None = None,
) -> ShardTensor:
    whole = Reduction.of(input, dim, keepdim)
    value = extreme(whole, greatest=name_of(function) == "amax")
    return whole.finish(shared(whole, value, among_nan=False))


@reducing("aminmax")
def _aminmax(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    *,
    dim: int | None = None,
    keepdim: bool = False,
    out: None = None,
) -> Any:
    whole = Reduction.of(input, dim, keepdim)
    least, greatest = (extreme(whole, greatest=which) for which in (False, True))
    low, high = (whole.finish(shared(whole, each, among_nan=False)) for each in (least, greatest))
    return torch.return_types.aminmax((low, high))


@sharded_alike("max", "min")
def _max(function: Function, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The greatest of all, or along a dimension, or of two tensors."""
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, Tensor):
        elementwise = torch.maximum if name_of(function) == "max" else torch.minimum
        return elementwise(input, other, out=kwargs.get("out"))
    return _max_of_one(function, input, *args, **kwargs)


def _max_of_one(function: Function, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    kwargs = named_as_torch(kwargs)
    result_dtype(function, (input, *args), kwargs)
    greatest = name_of(function) == "max"
    if not args and "dim" not in kwargs:
        whole = Reduction.of(input, None, keepdim=False)
        value = extreme(whole, greatest=greatest)
        return whole.finish(shared(whole, value, among_nan=True))
    whole = _along(input, *args, **kwargs)
    value, index = first_extreme(whole, greatest=greatest)
    kind = torch.return_types.max if greatest else torch.return_types.min
    return kind((whole.finish(value), whole.finish(index)))


def _along(input: Tensor, dim: int, keepdim: bool = False, out: None = None) -> Reduction:
    return Reduction.of(input, dim, keepdim)


@reducing("argmax", "argmin")
def _argmax(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    out: None = None,
) -> ShardTensor:
    whole = Reduction.of(input, dim, keepdim)
    whole = whole.on(whole.local.detach())
    greatest = name_of(function) == "argmax"
    if dim is None:
        return whole.finish(first_of_all(whole, greatest=greatest))
    return whole.finish(first_extreme(whole, greatest=greatest)[1])
