"""Functions along one dimension: checked alike on all ranks, and computed where it is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.layout import Cut, Layout, split_sizes
from neural_prep.sharding.reduction import named_as_torch
from neural_prep.sharding.registry import Version, sharded_alike
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.trees import map_tensors


def along_dim(*names: str) -> Callable[[Version], Version]:
    """Registers a version of functions along a dimension, for arguments that torch takes.

    It is called with the function, the dtype of torch's (first) result, and the arguments.
    """

    def register(version: Version) -> Version:
        def rehearsed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            kwargs = named_as_torch(kwargs)
            _, result = rehearse(function, *args, **kwargs)
            return version(function, result, *args, **kwargs)

        sharded_alike(*names)(rehearsed)
        return version

    return register


def of_one_element(compute: Callable[[Tensor], Any], like: Tensor) -> Any:
    """What torch gives of one element: raises on all ranks where it can't compute with a dtype.

    With empty pieces it can. And it tells what autocast makes of the dtype.
    """
    return compute(torch.ones([1] * like.ndim, dtype=like.dtype, device=like.device))


def cast_by_autocast(input: ShardTensor, compute: Callable[[Tensor], Tensor]) -> ShardTensor:
    """The input in the dtype that autocast has a function's result in, or else as it is.

    Pieces that are empty or that torch's own function does not see are cast like all others.
    """
    if not torch.is_autocast_enabled(input.device.type):
        return input
    cast: ShardTensor = input.to(of_one_element(compute, input).dtype)  # type: ignore[assignment]
    return cast


def whole_along(tensor: ShardTensor, dim: int) -> ShardTensor:
    """The same tensor with one dimension whole.

    Its axis cuts the longest one of the others, so that each rank still has its share; where all of
    them are cut, or there are none, ranks along the axis have the same.
    """
    layout = tensor.sharding
    axis = layout.axis_of(dim)
    if axis is None:
        return tensor
    return tensor.redistribute(layout.with_cut(axis, _instead(tensor.shape, layout, axis)))


def on_whole(input: ShardTensor, dim: int, compute: Callable[[Tensor], Any]) -> Any:
    """What a function of a whole dimension gives, cut as the input is, whose shape it keeps."""
    of_one_element(compute, input)
    moved = whole_along(input, dim)

    def back(local: Tensor) -> Tensor:
        return from_local(local, moved.sharding).redistribute(input.sharding)

    return map_tensors(back, compute(to_local(moved)))


def reduced_on_whole(
    input: ShardTensor, dim: int, keepdim: bool, compute: Callable[[Tensor], Any]
) -> Any:
    """What a function that reduces a whole dimension gives, cut as reductions are.

    Args:
        input: What is reduced.
        dim: The dimension, not negative.
        keepdim: Whether results have it still.
        compute: The function, of pieces; its results have the dimension if `keepdim` says so.
    """
    moved = whole_along(input, dim)
    kept = kept_dims(input.ndim, dim, keepdim)
    layout = moved.sharding.with_dims(kept)
    target = input.sharding.with_dims(kept)

    def back(local: Tensor) -> Tensor:
        return from_local(local, layout).redistribute(target)

    return map_tensors(back, compute(to_local(moved)))


def kept_dims(ndim: int, dim: int, keepdim: bool) -> dict[int, int]:
    """Where each dimension is once one has been reduced.

    >>> kept_dims(3, 1, False), kept_dims(3, 1, True)
    ({0: 0, 2: 1}, {0: 0, 2: 2})
    """
    kept = [each for each in range(ndim) if each != dim]
    return {each: each if keepdim else place for place, each in enumerate(kept)}


def _instead(shape: Sequence[int], layout: Layout, axis: int) -> Cut | None:
    """The cut that an axis makes instead of its own."""
    free = [dim for dim, size in enumerate(shape) if size > 1 and layout.axis_of(dim) is None]
    if not free:
        return None
    dim = max(free, key=lambda each: shape[each])
    return Cut(dim, split_sizes(shape[dim], layout.mesh.size(axis)))
