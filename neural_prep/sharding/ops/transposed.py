"""Transposed convolutions: each rank fetches the rows that reach its outputs, and cuts them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.channels import divide_channels
from neural_prep.sharding.convolving import Local, check, convolve_local, each_dim
from neural_prep.sharding.halo import fetch
from neural_prep.sharding.layout import Cut
from neural_prep.sharding.operands import layout_of, operand
from neural_prep.sharding.registry import sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in
from neural_prep.sharding.spreads import Spread, plan_spread

Sizes = int | Sequence[int]


@sharded_alike("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(
    function: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> ShardTensor:
    """`(N, C, ...)` or `(C, ...)`, cut along any dimensions."""
    count = weight.ndim - 2
    steps, spacing = each_dim(stride, count), each_dim(dilation, count)
    pads, extra = list(each_dim(padding, count)), list(each_dim(output_padding, count))
    shape = _check(function, (input, weight, bias), steps, pads, extra, groups, spacing)
    channel = input.ndim - count - 1

    like = next(shards_in((input, weight, bias)))
    layout = layout_of(input, like.sharding)
    channels = divide_channels(layout, channel, weight.shape[1] * groups, groups)
    work, result = channels.layout, channels.output_layout()
    local = operand(input, work, work)
    filters = operand(weight, channels.weight_layout(transposed=True), work)
    offset = None
    if bias is not None:
        offset = operand(bias, channels.bias_layout(), channels.bias_work())

    crop = [0, 0] * count
    for axis, cut in work.cut_axes():
        dim = cut.dim - channel - 1
        if dim < 0:
            continue
        spread = Spread(
            cut.total, shape[cut.dim], weight.shape[2 + dim], steps[dim], spacing[dim], pads[dim]
        )
        plan = plan_spread(cut.sizes, spread, work.rank(axis))
        local = fetch(local, plan.fetch, cut.dim, work.group(axis))
        result = result.with_cut(axis, Cut(cut.dim, plan.sizes))
        pads[dim] = extra[dim] = 0
        place = 2 * (count - 1 - dim)
        crop[place : place + 2] = plan.more

    def run(local: Tensor, filters: Tensor, offset: Tensor | None) -> Tensor:
        found = function(local, filters, offset, steps, pads, extra, channels.groups, spacing)
        return F.pad(found, crop) if any(crop) else found

    piece = result.local_shape(shape)
    late = max(crop) > 0  # where no row reaches, there is only the bias
    call = Local(run, piece, local, filters, offset, channels, late)
    return from_local(convolve_local(call), result)


def _check(
    function: Callable[..., Tensor],
    tensors: tuple[Tensor, Tensor, Tensor | None],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """The output's global shape; what torch refuses only where there is something to compute."""
    options = (stride, padding, output_padding, groups, dilation)
    shape = check(function, *tensors, *options)
    for more, step, spacing in zip(output_padding, stride, dilation, strict=True):
        if more >= step and more >= spacing:
            raise RuntimeError(
                "output padding must be smaller than either stride or dilation, but got "
                f"output_padding: {more} stride: {step} dilation: {spacing}"
            )
    return shape
