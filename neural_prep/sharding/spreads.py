"""How inputs spread over outputs along a cut dimension: the adjoint of windows.

An output belongs to the rank that has the input in whose middle it lies; each rank fetches the
inputs that reach its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from neural_prep.sharding.halo import Fetch, plan_fetch
from neural_prep.sharding.windows import shares


@dataclass(frozen=True, slots=True)
class Spread:
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
        """From an input's first output to its last, both counted."""
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
class SpreadPlan:
    """One rank's part of an operation along a cut dimension.

    Attributes:
        sizes: How many outputs each rank computes.
        fetch: How this rank gets the inputs that reach its own.
        more: What to add before and after that which they reach; negative: to cut off.
    """

    sizes: tuple[int, ...]
    fetch: Fetch
    more: tuple[int, int]


@lru_cache(maxsize=1024)
def plan_spread(sizes: tuple[int, ...], spread: Spread, rank: int) -> SpreadPlan:
    """Shares outputs out among ranks.

    Args:
        sizes: Every rank's part of the inputs.
        spread: How inputs spread.
        rank: Whose part of the plan is asked for.
    """
    share = shares(sizes, spread.middles())
    firsts = list(accumulate(share, initial=0))[:-1]
    ranges = [spread.inputs(first, own) for first, own in zip(firsts, share, strict=True)]
    wanted = [torch.tensor(list(each), dtype=torch.int64) for each in ranges]
    more = spread.more(ranges[rank], firsts[rank], share[rank]) if len(ranges[rank]) else (0, 0)
    return SpreadPlan(share, plan_fetch(sizes, wanted, rank), more)
