"""Gated linear units: halves of a dimension, each rank with the same part of both."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from neural_prep.sharding.halo import Fetch, fetch, plan_fetch
from neural_prep.sharding.layout import Cut
from neural_prep.sharding.registry import sharded_alike
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local


@sharded_alike("glu")
def glu(function: Callable[..., Tensor], input: ShardTensor, dim: int = -1) -> ShardTensor:
    """The first half times the sigmoid of the second; a cut of both is one of the result."""
    rehearse(function, input, dim)
    layout, local, dim = input.sharding, to_local(input), dim % input.ndim
    axis = layout.axis_of(dim)
    if axis is not None:
        cut, rank = layout.cuts[axis], layout.rank(axis)
        assert isinstance(cut, Cut)
        sizes = halves(cut.sizes)
        local = fetch(local, _plan(cut.sizes, sizes, rank), dim, layout.group(axis))
        layout = layout.with_cut(axis, Cut(dim, sizes))
    value, gate = local.chunk(2, dim) if local.shape[dim] else (local, local)
    return from_local(value * gate.sigmoid(), layout)


def halves(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes of half as many elements, each rank with about half of its own.

    >>> halves((5, 0, 7))
    (2, 0, 4)
    """
    ends = [end // 2 for end in accumulate(sizes, initial=0)]
    return tuple(stop - start for start, stop in pairwise(ends))


@lru_cache(maxsize=1024)
def _plan(before: tuple[int, ...], after: tuple[int, ...], rank: int) -> Fetch:
    """Who sends what, so that each rank has its part of the first half, then of the second."""
    own = [
        torch.arange(start, start + size)
        for start, size in zip(Cut(0, after).starts, after, strict=True)
    ]
    return plan_fetch(before, [torch.cat([each, each + sum(after)]) for each in own], rank)
