"""Group normalisation, of groups that may reach over several ranks.

N batch, C channels (dim 1) of which this rank has c, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.normalising import (
    checked,
    of_channels,
    on_piece,
    scaled_by_channel,
)
from neural_prep.sharding.reduction import Reduction
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.shard_tensor import ShardTensor, from_local
from neural_prep.sharding.transport import summed_in


@dataclass(frozen=True, slots=True)
class _Groups:
    """The groups that a rank's channels belong to.

    Attributes:
        first: The first group.
        count: How many groups it has a part of.
        before: Channels of the first group that other ranks have.
        size: Channels of a group.
        total: How many groups there are.
    """

    first: int
    count: int
    before: int
    size: int
    total: int

    @classmethod
    def of(cls, start: int, channels: int, size: int, total: int) -> _Groups:
        first, before = divmod(start, size)
        return cls(first, -(-(before + channels) // size), before, size, total)

    def sum(self, values: Tensor) -> Tensor:
        """Sums of channels' values (N, c) by group (N, G); no sum has another group's NaN in it."""
        after = self.count * self.size - self.before - values.shape[1]
        whole = F.pad(values, (self.before, after))
        sums = whole.reshape(len(values), self.count, self.size).sum(2)
        return F.pad(sums, (self.first, self.total - self.first - self.count))

    def spread(self, values: Tensor, channels: int) -> Tensor:
        """Each channel's group's value: (N, G) to (N, c)."""
        own = values.narrow(1, self.first, self.count)[..., None]
        each = own.expand(-1, -1, self.size).reshape(len(values), self.count * self.size)
        return each.narrow(1, self.before, channels)


@sharded("group_norm")
def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> ShardTensor:
    shard, result = checked(F.group_norm, input, num_groups, weight, bias, eps)
    layout = shard.sharding
    scale, shift = of_channels(weight, layout), of_channels(bias, layout)
    whole = Reduction.of(shard, range(1, shard.ndim))
    if not whole.axes:
        local = on_piece(F.group_norm, whole.local, num_groups, scale, shift, eps)
        return from_local(local, layout)
    whole = whole.on(whole.local.to(summed_in(result)))
    local = _normalised(whole, num_groups, shard.shape[1] // num_groups, eps)
    return from_local(scaled_by_channel(local, scale, shift).to(result), layout)


def _normalised(whole: Reduction, total: int, size: int, eps: float) -> Tensor:
    local = whole.local
    channels = local.shape[1]
    groups = _Groups.of(whole.starts[1], channels, size, total)
    count = whole.count // total

    def mean(values: Tensor) -> Tensor:
        sums = groups.sum(values.sum(tuple(range(2, values.ndim))) if values.ndim > 2 else values)
        means = whole.enter(whole.add(sums) / count)
        return groups.spread(means, channels).reshape(*local.shape[:2], *[1] * (local.ndim - 2))

    distance = local - mean(local)
    return distance * (mean(distance.square()) + eps).rsqrt()
