"""Transposed convolutions: each rank fetches the rows that reach its outputs, and cuts them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.channels import divide_channels
from neural_prep.sharding.convolving import Local, check, convolve_local, each_dim
from neural_prep.sharding.halo import Fetch, fetch, plan_fetch
from neural_prep.sharding.layout import Cut
from neural_prep.sharding.operands import layout_of, operand
from neural_prep.sharding.registry import sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in
from neural_prep.sharding.windows import shares

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
        spread = _Spread(
            cut.total, shape[cut.dim], weight.shape[2 + dim], steps[dim], spacing[dim], pads[dim]
        )
        plan = _plan(cut.sizes, spread, work.rank(axis))
        local = fetch(local, plan.fetch, cut.dim, work.group(axis))
        result = result.with_cut(axis, Cut(cut.dim, plan.sizes))
        pads[dim] = extra[dim] = 0
        place = 2 * (count - 1 - dim)
        crop[place : place + 2] = plan.more

    def run(offset: Tensor | None) -> Tensor:
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


@dataclass(frozen=True, slots=True)
class _Spread:
    """How inputs spread over outputs along one dimension.

    Attributes:
        size: Number of inputs.
        count: Number of outputs.
        kernel: Outputs that an input reaches.
        stride: From the first output of an input to that of the next.
        dilation: From one output of an input to its next.
        before: How many outputs of the first input are cut off.
    """

    size: int
    count: int
    kernel: int
    stride: int
    dilation: int
    before: int

    @property
    def reach(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    def middles(self) -> Tensor:
        """For each output an input in whose middle it lies."""
        outputs = torch.arange(self.count) + self.before - (self.reach - 1) // 2
        return torch.div(outputs, self.stride, rounding_mode="floor")

    def inputs(self, first: int, count: int) -> range:
        """The inputs that reach any of consecutive outputs."""
        if count == 0:
            return range(0)
        start = -((self.reach - 1 - first - self.before) // self.stride)
        stop = (first + count - 1 + self.before) // self.stride + 1
        return range(max(start, 0), min(stop, self.size))

    def more(self, inputs: range, first: int, count: int) -> tuple[int, int]:
        """What to add before and after that which these inputs reach; negative: to cut off."""
        start = inputs.start * self.stride - self.before
        stop = (inputs.stop - 1) * self.stride - self.before + self.reach
        return start - first, first + count - stop


@dataclass(frozen=True, slots=True)
class _Plan:
    sizes: tuple[int, ...]
    fetch: Fetch
    more: tuple[int, int]


@lru_cache(maxsize=1024)
def _plan(sizes: tuple[int, ...], spread: _Spread, rank: int) -> _Plan:
    share = shares(sizes, spread.middles())
    firsts = list(accumulate(share, initial=0))[:-1]
    ranges = [spread.inputs(first, own) for first, own in zip(firsts, share, strict=True)]
    wanted = [torch.tensor(list(each), dtype=torch.int64) for each in ranges]
    more = spread.more(ranges[rank], firsts[rank], share[rank]) if len(ranges[rank]) else (0, 0)
    return _Plan(share, plan_fetch(sizes, wanted, rank), more)
