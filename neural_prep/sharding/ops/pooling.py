"""Pooling with a kernel: maxima, averages and power averages, with divisors of global windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.along import cast_by_autocast
from neural_prep.sharding.pooled import (
    Fetched,
    Pooling,
    Sizes,
    fetch_windows,
    global_indices,
    spatial_dims,
)
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import name_of, sharded_alike
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.windows import Plan

_DIMS = (1, 2, 3)


@sharded_alike(
    *(f"max_pool{count}d" for count in _DIMS),
    *(f"max_pool{count}d_with_indices" for count in _DIMS),
)
def _max_pool(
    function: Callable[..., Any],
    input: ShardTensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`(N, C, ...)` or `(C, ...)`; indices are flat ones into the whole."""
    both = return_indices or name_of(function).endswith("_with_indices")
    count = spatial_dims(function)
    pool = getattr(F, f"max_pool{count}d")
    pooling = Pooling.of(count, kernel_size, stride, padding, dilation, ceil_mode)
    options = (pooling.kernel, pooling.stride)
    shape, _ = rehearse(
        pool, input, *options, pooling.padding, pooling.dilation, ceil_mode, return_indices=both
    )
    if not input.is_floating_point():  # which torch's kernels take, and say only of whole pieces
        raise refusal(name_of(function), input.sharding, "of integers is not sharded")
    _refuse_gaps(function, input, pooling)
    input = cast_by_autocast(input, lambda one: pool(one, 1))
    fetched = fetch_windows(input, shape, pooling, "alike", _lowest(input.dtype))
    local, layout = fetched.local, fetched.layout
    if 0 in (piece := layout.local_shape(shape)):
        values, places = (
            connected(piece, local, local, curved=True),
            local.new_empty(piece, dtype=torch.int64),
        )
    else:
        rest = (fetched.padding, pooling.dilation, ceil_mode)
        found = pool(local, *options, *rest, return_indices=both)
        values, places = found if both else (found, local)
    result = from_local(values, layout)
    if not both:
        return result
    first = input.ndim - count
    rows = {dim - first: plan.rows for dim, plan in fetched.plans.items()}
    places = global_indices(places, local.shape[first:], input.shape[first:], rows)
    return result, from_local(places, layout)


def _refuse_gaps(function: Callable[..., Any], input: ShardTensor, pooling: Pooling) -> None:
    """Refuses windows that may step over a whole dimension: of nothing there is no maximum."""
    first = input.ndim - len(pooling.kernel)
    for _, cut in input.sharding.cut_axes():
        dim = cut.dim - first
        if dim >= 0 and pooling.padding[dim] and cut.total < pooling.dilation[dim]:
            raise refusal(
                name_of(function),
                input.sharding,
                f"with dilation {pooling.dilation[dim]} of {cut.total} rows may have empty windows",
            )


@sharded_alike("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    function: Callable[..., Tensor],
    input: ShardTensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> ShardTensor:
    """`(N, C, ...)` or `(C, ...)`.

    A rank's windows are whole along cut dimensions, padded with zeros: torch divides by the
    kernel's size there, which is put right where the global window has another divisor.
    """
    count = spatial_dims(function)
    if not input.is_floating_point():
        raise refusal(function.__name__, input.sharding, f"and {input.dtype} is not supported")
    pooling = Pooling.of(count, kernel_size, stride, padding, 1, ceil_mode)
    more = () if count == 1 else (divisor_override,)
    sizes = (pooling.kernel, pooling.stride)
    rest = (ceil_mode, count_include_pad, *more)
    shape, _ = rehearse(function, input, *sizes, pooling.padding, *rest)
    input = cast_by_autocast(input, lambda one: function(one, 1))
    fetched = fetch_windows(input, shape, pooling, "constant", 0.0)
    piece = fetched.layout.local_shape(shape)
    if 0 in piece:
        nothing = connected(piece, fetched.local, fetched.local, curved=True)
        return from_local(nothing, fetched.layout)
    result = function(fetched.local, *sizes, fetched.padding, *rest)
    if divisor_override is None:
        result = _divide_again(result, input, fetched, pooling, count_include_pad)
    return from_local(result, fetched.layout)


def _divide_again(
    result: Tensor,
    input: Tensor,
    fetched: Fetched,
    pooling: Pooling,
    include: bool,
) -> Tensor:
    """Averages with each window's own divisor along cut dimensions."""
    first = input.ndim - len(pooling.kernel)
    for dim, plan in fetched.plans.items():
        pads = pooling.padding[dim - first]
        kernel, step = pooling.kernel[dim - first], pooling.stride[dim - first]
        covered = _covered(plan, result.shape[dim], input.shape[dim], kernel, step, pads, include)
        if (covered == kernel).all():
            continue
        ratio = (kernel / covered).to(result.dtype).to(result.device)
        result = result * ratio.reshape(-1, *(1,) * (result.ndim - 1 - dim))
    return result


def _covered(
    plan: Plan, count: int, size: int, kernel: int, stride: int, padding: int, include: bool
) -> Tensor:
    """How many positions of each window count."""
    starts = (plan.first + torch.arange(count)) * stride - padding
    low, high = (-padding, size + padding) if include else (0, size)
    covered = (starts + kernel).clamp(max=high) - starts.clamp(min=low)
    return covered.clamp(min=1).to(torch.float64)


@sharded_alike("lp_pool1d", "lp_pool2d", "lp_pool3d")
def _lp_pool(
    function: Callable[..., Tensor],
    input: ShardTensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> ShardTensor:
    """By averages of powers, as torch does it, whose body this is."""
    count = spatial_dims(function)
    kernel = (kernel_size,) * count if isinstance(kernel_size, int) else tuple(kernel_size)
    average, largest = getattr(F, f"avg_pool{count}d"), getattr(F, f"max_pool{count}d")
    infinite = norm_type in (float("inf"), -float("inf"))
    rehearse(largest if infinite else average, input, kernel, stride, ceil_mode=ceil_mode)
    local, layout = to_local(input), input.sharding
    if infinite:
        sign = 1 if norm_type > 0 else -1
        powers = from_local(sign * local.abs(), layout)
        found = _max_pool(largest, powers, kernel, stride, ceil_mode=ceil_mode)
        return from_local(sign * to_local(found), found.sharding)
    powers = from_local(local.pow(norm_type), layout)
    means = _avg_pool(average, powers, kernel, stride, 0, ceil_mode)
    result = to_local(means)
    result = torch.sign(result) * torch.relu(result.abs())
    for size in kernel:
        result = result.mul(size)
    return from_local(result.pow(1.0 / norm_type), means.sharding)


def _lowest(dtype: torch.dtype) -> float:
    """What is never a maximum."""
    return -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min
