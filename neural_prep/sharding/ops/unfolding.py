"""Blocks of an image as columns and back: each rank has the blocks around its own rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.halo import fetch
from neural_prep.sharding.layout import Cut
from neural_prep.sharding.ops.reshaping import reshape
from neural_prep.sharding.pooled import Pooling, fetch_windows
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.spreads import Spread, plan_spread

Sizes = int | Sequence[int]


@sharded(F.unfold, "im2col")
def _unfold(
    input: ShardTensor,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """`(N, C, H, W)` or `(C, H, W)` to `(N, C * kernel, blocks)` or without `N`."""
    shape, _ = rehearse(F.unfold, input, kernel_size, dilation, padding, stride)
    F.unfold(torch.zeros(1, 1, 1, 1, dtype=input.dtype), 1)  # raises where torch lacks a kernel
    pooling = Pooling.of(2, kernel_size, stride, padding, dilation, ceil_mode=False)
    channel, taps = input.ndim - 3, pooling.kernel[0] * pooling.kernel[1]
    whole = (*input.shape[: channel + 1], *_blocks(input.shape[-2:], pooling))
    fetched = fetch_windows(input, whole, pooling, "constant", 0.0)
    local, layout = fetched.local, fetched.layout
    for axis, cut in layout.cut_axes():
        if cut.dim == channel:
            channels = tuple(size * taps for size in cut.sizes)
            layout = layout.with_cut(axis, Cut(channel, channels))
    columns = (
        *input.shape[:channel],
        shape[channel],
        *whole[-2:],
    )  # (N, C * taps, rows, columns)
    piece = layout.local_shape(columns)
    if 0 in piece:
        found = connected(piece, local, local)
    else:
        options = (pooling.kernel, pooling.dilation, fetched.padding, pooling.stride)
        found = F.unfold(local, *options).reshape(piece)
    return reshape(from_local(found, layout), shape)


@sharded(F.fold, "col2im")
def _fold(
    input: ShardTensor,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """`(N, C * kernel, blocks)` or without `N` to `(N, C, H, W)`: what overlaps is added up."""
    shape, _ = rehearse(F.fold, input, output_size, kernel_size, dilation, padding, stride)
    F.fold(torch.zeros(1, 1, 1, dtype=input.dtype), 1, 1)  # raises where torch lacks a kernel
    pooling = Pooling.of(2, kernel_size, stride, padding, dilation, ceil_mode=False)
    channel, taps = input.ndim - 2, pooling.kernel[0] * pooling.kernel[1]
    before = (*shape[: channel + 1], taps, *_blocks(shape[-2:], pooling))
    columns = reshape(input, before)  # (N, C, kernel, rows, columns)
    assert isinstance(columns, ShardTensor)
    axis = columns.sharding.axis_of(channel + 1)  # of a single channel, its taps are cut
    if axis is not None:
        columns = columns.redistribute(columns.sharding.with_cut(axis, None))

    local, layout = to_local(columns), columns.sharding
    result = layout.with_dims({dim: dim for dim in range(channel + 1)})
    sizes, pads, crop = list(shape[-2:]), list(pooling.padding), [0, 0, 0, 0]
    for axis, cut in layout.cut_axes():
        dim = cut.dim - channel - 2
        if dim < 0:
            continue
        kernel, step, spacing = pooling.kernel[dim], pooling.stride[dim], pooling.dilation[dim]
        spread = Spread(cut.total, sizes[dim], kernel, step, spacing, pads[dim])
        plan = plan_spread(cut.sizes, spread, layout.rank(axis))
        local = fetch(local, plan.fetch, cut.dim, layout.group(axis))
        result = result.with_cut(axis, Cut(cut.dim - 1, plan.sizes))
        sizes[dim], pads[dim] = (local.shape[cut.dim] - 1) * step + spread.reach, 0
        crop[2 - 2 * dim : 4 - 2 * dim] = plan.more
    piece = result.local_shape(shape)
    if 0 in local.shape or 0 in piece:
        return from_local(connected(piece, local, local), result)
    joined = local.flatten(channel, channel + 1).flatten(-2)
    options = (pooling.kernel, pooling.dilation, (pads[0], pads[1]), pooling.stride)
    found = F.fold(joined, (sizes[0], sizes[1]), *options)
    return from_local(F.pad(found, crop) if any(crop) else found, result)


def _blocks(size: Sequence[int], pooling: Pooling) -> tuple[int, ...]:
    """Number of blocks along both dimensions."""
    rows = zip(size, pooling.kernel, pooling.stride, pooling.padding, pooling.dilation, strict=True)
    return tuple(
        (n + 2 * pads - spacing * (kernel - 1) - 1) // step + 1
        for n, kernel, step, pads, spacing in rows
    )
