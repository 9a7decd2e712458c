"""What all normalisations share: checks of arguments, and pieces of mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.operands import operand
from neural_prep.sharding.reduction import Reduction
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import name_of
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in
from neural_prep.sharding.transport import summed_in
from neural_prep.sharding.trees import map_tensors


class _Like(NamedTuple):
    """What a function sees of a tensor when it checks its arguments."""

    size: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> _Like:
        return cls(tuple(tensor.shape), tensor.dtype)


def checked(
    function: Callable[..., Any], input: Tensor, *args: Any
) -> tuple[ShardTensor, torch.dtype]:
    """The input as a sharded tensor, and the result's dtype.

    Args:
        function: Of torch: raises what it makes of shapes and options, on every rank alike.
        input: Sharded, or an ordinary tensor where another argument is sharded.
        args: The function's other arguments.
    """
    if input.is_complex():
        layout = next(shards_in([input, *args])).sharding
        raise refusal(f"{name_of(function)} of complex numbers", layout)
    _check_dtypes(function, input, *args)
    result = _result_dtype(function, *map_tensors(_Like.of, [input, *args]))
    if isinstance(input, ShardTensor):
        return input, result
    mesh = next(shards_in(args)).sharding.mesh
    return from_local(input, Layout.replicated(mesh)), result


def _check_dtypes(function: Callable[..., Any], input: Tensor, *args: Any) -> None:
    """Raises where torch would, but on all ranks: torch does not look at empty pieces."""
    allowed = {input.dtype, summed_in(input.dtype)}
    others = [each.dtype for each in args if isinstance(each, Tensor) and each.is_floating_point()]
    autocast = torch.is_autocast_enabled(input.device.type)
    for dtype in others if input.is_floating_point() and not autocast else ():
        if dtype not in allowed:
            raise RuntimeError(
                f"{name_of(function)}: expected parameters of {input.dtype}, but got {dtype}"
            )


def on_piece(function: Callable[..., Tensor], local: Tensor, *args: Any) -> Tensor:
    """What torch's own function makes of a piece, which may be empty."""
    if local.numel():
        return function(local, *args)
    tensors = [each for each in args if isinstance(each, Tensor)]
    return connected(local.shape, local, local, *tensors, curved=True)


def standardised(whole: Reduction, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The piece with mean 0 and variance 1, the mean and the variance.

    The whole tensor's mean comes first, then squared distances from it, which do not cancel where
    the mean is large.
    """
    mean = whole.add(whole.local.sum(whole.dims, True)) / whole.count
    distance = whole.local - whole.enter(mean)
    variance = whole.add(distance.square().sum(whole.dims, True)) / whole.count
    return distance * (whole.enter(variance) + eps).rsqrt(), mean, variance


def of_channels(parameter: Tensor | None, layout: Layout) -> Tensor | None:
    """This rank's part of a tensor `(C,)` for work on its channels, dimension 1."""
    if parameter is None:
        return None
    return operand(parameter, layout.with_dims({1: 0}), layout)


def scaled_by_channel(local: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    """Times a scale and plus a shift for each channel."""
    shape = (-1, *[1] * (local.ndim - 2))
    local = local if scale is None else local * scale.reshape(shape)
    return local if shift is None else local + shift.reshape(shape)


@lru_cache(maxsize=1024)
def _result_dtype(function: Callable[..., Tensor], *args: Any) -> torch.dtype:
    """Runs a function on tensors without values, which takes milliseconds: the answer is kept."""
    given = [
        torch.empty(each.size, dtype=each.dtype, device="meta") if isinstance(each, _Like) else each
        for each in args
    ]
    return function(*given).dtype
