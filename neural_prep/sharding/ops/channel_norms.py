"""Batch and instance normalisation: statistics for each channel, of the whole tensor.

Running statistics are plain buffers, whole on every rank and updated in place, alike on all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.layout import Layout
from neural_prep.sharding.normalising import (
    checked,
    of_channels,
    on_piece,
    scaled_by_channel,
    standardised,
)
from neural_prep.sharding.operands import layout_of
from neural_prep.sharding.redistribute import relayout
from neural_prep.sharding.reduction import Reduction
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.transport import summed_in

Running = tuple[Tensor | None, Tensor | None]


@sharded_alike("batch_norm")
def _batch_norm(function: Callable[..., Any], *args: Any, **kwargs: Any) -> ShardTensor:
    if function is torch.batch_norm:
        return _batch_norm(F.batch_norm, *_as_functional(*args, **kwargs))
    return _functional_batch_norm(*args, **kwargs)


@sharded_alike("instance_norm")
def _instance_norm(function: Callable[..., Any], *args: Any, **kwargs: Any) -> ShardTensor:
    if function is torch.instance_norm:
        return _instance_norm(F.instance_norm, *_as_functional(*args, **kwargs))
    return _functional_instance_norm(*args, **kwargs)


def _as_functional(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> tuple[Any, ...]:
    """The arguments of `torch.batch_norm` in the order of `torch.nn.functional`'s."""
    return input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps


def _functional_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ShardTensor:
    running, parameters = (running_mean, running_var), (weight, bias)
    arguments = (*running, *parameters, training, momentum, eps)
    shard, result = checked(F.batch_norm, input, *arguments)
    if not training or shard.numel() == 0:
        return _with_given(shard, running, parameters, eps)
    dims = (0, *range(2, shard.ndim))
    return _with_own(shard, dims, running, parameters, momentum, eps, result)


def _functional_instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ShardTensor:
    running, parameters = (running_mean, running_var), (weight, bias)
    arguments = (*running, *parameters, use_input_stats, momentum, eps)
    shard, result = checked(F.instance_norm, input, *arguments)
    if not use_input_stats or shard.numel() == 0:
        return _with_given(shard, running, parameters, eps)
    dims = tuple(range(2, shard.ndim))
    return _with_own(shard, dims, running, parameters, momentum, eps, result)


def _with_given(
    shard: ShardTensor, running: Running, parameters: Running, eps: float
) -> ShardTensor:
    """Normalised by statistics that are known: nothing is mixed."""
    layout = shard.sharding
    mean, variance, *others = (of_channels(each, layout) for each in (*running, *parameters))
    local = on_piece(F.batch_norm, to_local(shard), mean, variance, *others, False, 0.0, eps)
    return from_local(local, layout)


def _with_own(
    shard: ShardTensor,
    dims: tuple[int, ...],
    running: Running,
    parameters: Running,
    momentum: float,
    eps: float,
    result: torch.dtype,
) -> ShardTensor:
    """Normalised by the tensor's own statistics, which update the running ones."""
    layout = shard.sharding
    scale, shift = (of_channels(each, layout) for each in parameters)
    whole = Reduction.of(shard, dims)
    if not whole.axes and running == (None, None) and 0 not in dims:
        local = on_piece(F.instance_norm, whole.local, None, None, scale, shift, True, 0.0, eps)
        return from_local(local, layout)
    whole = whole.on(whole.local.to(summed_in(result)))
    local, mean, variance = standardised(whole, eps)
    unbiased = variance * (whole.count / max(whole.count - 1, 1))
    for buffer, statistic in zip(running, (mean, unbiased), strict=True):
        if buffer is not None:
            _update(buffer, _over_batch(statistic.detach(), whole), layout, momentum)
    return from_local(scaled_by_channel(local, scale, shift).to(result), layout)


def _over_batch(statistic: Tensor, whole: Reduction) -> Tensor:
    """The mean of each instance's statistics: `(C,)`, cut as channels are."""
    if 0 in whole.dims:
        return statistic.reshape(-1)
    batch = Reduction(statistic, whole.layout, (0,))
    total = batch.add(statistic.sum(0, keepdim=True)).reshape(-1)
    return total / whole.layout.global_shape(whole.local.shape)[0]


def _update(buffer: Tensor, statistic: Tensor, layout: Layout, momentum: float) -> None:
    if not layout_of(buffer, layout).is_replicated:
        raise refusal("a running statistic", layout_of(buffer, layout), "cannot be updated")
    whole = relayout(statistic, layout.with_dims({1: 0}), Layout.replicated(layout.mesh))
    with torch.no_grad():
        to_local(buffer).mul_(1 - momentum).add_(whole.to(buffer.dtype), alpha=momentum)
