"""Pixel and channel shuffles: elements in another order, which move where a cut is in the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from neural_prep.sharding.halo import Fetch, fetch, plan_fetch
from neural_prep.sharding.layout import Cut
from neural_prep.sharding.ops.reshaping import reshape
from neural_prep.sharding.ops.shapes import permute
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local


@sharded("pixel_shuffle")
def _pixel_shuffle(input: ShardTensor, upscale_factor: int) -> Tensor:
    """`(..., C * r * r, H, W)` to `(..., C, H * r, W * r)`."""
    _check(torch.pixel_shuffle, input, upscale_factor, -1)
    r, (*batch, channels, height, width) = upscale_factor, input.shape
    blocks = (*batch, channels // r**2, r, r, height, width)
    result = (*batch, channels // r**2, height * r, width * r)
    return _reorder(input, blocks, (0, 3, 1, 4, 2), result)


@sharded("pixel_unshuffle")
def _pixel_unshuffle(input: ShardTensor, downscale_factor: int) -> Tensor:
    """`(..., C, H * r, W * r)` to `(..., C * r * r, H, W)`."""
    _check(torch.pixel_unshuffle, input, downscale_factor, -3)
    r, (*batch, channels, height, width) = downscale_factor, input.shape
    blocks = (*batch, channels, height // r, r, width // r, r)
    result = (*batch, channels * r**2, height // r, width // r)
    return _reorder(input, blocks, (0, 2, 4, 1, 3), result)


def _reorder(
    input: ShardTensor, blocks: Sequence[int], order: Sequence[int], shape: Sequence[int]
) -> Tensor:
    """Divides the last three dimensions into five, and joins them in another order."""
    divided = reshape(input, blocks)
    assert isinstance(divided, ShardTensor)
    first = len(blocks) - len(order)
    moved = permute(torch.permute, divided, (*range(first), *(first + dim for dim in order)))
    return reshape(moved, shape)


@sharded("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(input: ShardTensor, groups: int) -> Tensor:
    """`(N, C, ...)`, whose groups of channels are interleaved."""
    _check(torch.channel_shuffle, input, groups, 0)
    local, layout = to_local(input), input.sharding
    axis = layout.axis_of(1)
    cut = Cut(1, (input.shape[1],)) if axis is None else layout.cuts[axis]
    assert cut is not None
    plan = _interleave(cut.sizes, groups, 0 if axis is None else layout.rank(axis))
    group = None if axis is None else layout.group(axis)
    return from_local(fetch(local, plan, 1, group), layout)


@lru_cache(maxsize=1024)
def _interleave(sizes: tuple[int, ...], groups: int, rank: int) -> Fetch:
    """Who sends which channels; every rank keeps as many as it has."""
    order = torch.arange(sum(sizes)).reshape(groups, sum(sizes) // groups).T.flatten()
    return plan_fetch(sizes, torch.split(order, list(sizes)), rank)


def _check(function: Callable[..., Tensor], input: Tensor, factor: int, dim: int) -> None:
    """Raises what torch raises, of a tensor without elements: empty along a dimension."""
    shape = [0 if each == dim % input.ndim else n for each, n in enumerate(input.shape)]
    function(torch.empty(shape, dtype=input.dtype), factor)
