"""Casts, and new tensors like others: the pieces are cast, or made, where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.layout import Layout
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import has_function, name_of, sharded, sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.trees import map_tensors

_CASTS = (
    "to type_as double float half bfloat16 int long short char byte bool cfloat cdouble chalf cpu "
    "cuda"
)
_LIKE = "zeros_like ones_like full_like empty_like"
_NEW = "new_zeros new_ones new_full new_empty new_tensor"


@sharded_alike(*filter(has_function, _CASTS.split()), always=True)
def cast(function: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Another dtype; the tensor itself where nothing changes, as torch has it."""
    args, kwargs = _pieces(args), _pieces(kwargs)
    if not isinstance(input, ShardTensor):  # a plain tensor becomes what a sharded one is
        return function(input, *args, **kwargs)
    wanted = function(input._local.new_empty(0), *args, **kwargs)
    _check_device(function, input, wanted)
    if wanted.dtype == input.dtype and not _copies(args, kwargs):
        return input
    return from_local(function(to_local(input), *args, **kwargs), input.sharding)


@sharded("contiguous", always=True)
def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself: how a piece lies in memory is its rank's own matter."""
    return input


@sharded("type")
def as_type(input: ShardTensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The cast by a dtype or its name; without one, the name."""
    if dtype is None:
        return input._local.type()
    wanted = input._local.new_empty(0).type(dtype)
    return cast(torch.Tensor.to, input, wanted.device, wanted.dtype)


@sharded_alike(*_LIKE.split())
def like(function: Callable[..., Tensor], input: ShardTensor, *args: Any, **kwargs: Any) -> Tensor:
    """A new tensor cut as another one is."""
    requires_grad = kwargs.pop("requires_grad", False)
    few = input._local.new_empty([min(size, 2) for size in input.shape])
    # Raises on all ranks alike: whether a value fits torch looks at unless there is one element.
    local = function(few, *args, **kwargs)
    if input._local.numel():
        local = function(input._local, *args, **kwargs)
    else:
        local = local.new_empty(input._local.shape)
    _check_device(function, input, local)
    return from_local(local, input.sharding).requires_grad_(requires_grad)


@sharded_alike(*_NEW.split())
def new(function: Callable[..., Tensor], input: ShardTensor, *args: Any, **kwargs: Any) -> Tensor:
    """A new tensor of any shape, which every rank has whole."""
    requires_grad = kwargs.pop("requires_grad", False)
    local = function(input._local, *args, **kwargs)
    _check_device(function, input, local)
    layout = Layout.replicated(input.sharding.mesh)
    return from_local(local, layout).requires_grad_(requires_grad)


def _check_device(function: Callable[..., Tensor], input: ShardTensor, result: Tensor) -> None:
    if result.device != input.device:
        raise refusal(name_of(function), input.sharding, f"would leave the mesh's {input.device}")


def _pieces(tree: Any) -> Any:
    """Tensors that only lend their dtype and device."""
    return map_tensors(lambda each: each._local if isinstance(each, ShardTensor) else each, tree)


def _copies(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether `to` is asked for a copy, by name or after `non_blocking`."""
    flags = [each for each in args if isinstance(each, bool)]
    return bool(kwargs.get("copy")) or flags[1:] == [True]
