"""Convolutions: each rank fetches the rows that its own outputs read, then runs torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.channels import divide_channels
from neural_prep.sharding.convolving import Local, check, convolve_local, each_dim
from neural_prep.sharding.halo import fetch
from neural_prep.sharding.layout import Cut
from neural_prep.sharding.operands import layout_of, operand
from neural_prep.sharding.registry import sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in
from neural_prep.sharding.windows import Windows, plan_windows

Sizes = int | Sequence[int]


@sharded_alike("conv1d", "conv2d", "conv3d")
def _convolution(
    function: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> ShardTensor:
    """`(N, C, ...)` or `(C, ...)`, cut along any dimensions; stands for `torch.conv1d` to `3d`."""
    shape = check(function, input, weight, bias, stride, padding, dilation, groups)
    count = weight.ndim - 2
    channel = input.ndim - count - 1
    steps, spacing = each_dim(stride, count), each_dim(dilation, count)
    pads = _pads(padding, weight.shape[2:], spacing)

    like = next(shards_in((input, weight, bias)))
    channels = divide_channels(layout_of(input, like.sharding), channel, weight.shape[0], groups)
    work, result = channels.layout, channels.output_layout()
    local = operand(input, work, work)
    filters = operand(weight, channels.weight_layout(transposed=False), work)
    offset = None
    if bias is not None:
        offset = operand(bias, channels.bias_layout(), channels.bias_work())

    for axis, cut in work.cut_axes():
        dim = cut.dim - channel - 1
        if dim < 0:
            continue
        windows = Windows(
            size=cut.total,
            count=shape[cut.dim],
            kernel=weight.shape[2 + dim],
            stride=steps[dim],
            dilation=spacing[dim],
            before=pads[dim][0],
        )
        plan = plan_windows(cut.sizes, windows, work.rank(axis))
        local = fetch(local, plan.fetch, cut.dim, work.group(axis))
        result = result.with_cut(axis, Cut(cut.dim, plan.sizes))
        pads[dim] = (0, 0)
    local, inner = _pad_unevenly(local, pads)

    def run(local: Tensor, filters: Tensor, offset: Tensor | None) -> Tensor:
        return function(local, filters, offset, steps, inner, spacing, channels.groups)

    call = Local(run, result.local_shape(shape), local, filters, offset, channels)
    return from_local(convolve_local(call), result)


def _pads(
    padding: str | Sizes, kernel: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """Padding before and after each dimension."""
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":  # where it is odd, there is one more after than before
        totals = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    assert not isinstance(padding, str)
    return [(each, each) for each in each_dim(padding, len(kernel))]


def _pad_unevenly(local: Tensor, pads: list[tuple[int, int]]) -> tuple[Tensor, tuple[int, ...]]:
    """Pads what is more after than before; returns the padding that is left."""
    more: list[Any] = []
    for before, after in reversed(pads):
        more += [0, after - before]
    if any(more):
        local = F.pad(local, more)
    return local, tuple(before for before, _ in pads)
