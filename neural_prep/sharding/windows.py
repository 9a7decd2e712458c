"""Windows along a cut dimension: which rank computes which output, and what it fetches for it.

Output `o` reads the positions `o * stride - before + dilation * k` for `k < kernel`. It belongs to
the rank that has the input in its window's middle, so that a "same" convolution keeps the cut, a
strided one stays balanced, and only halos travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from neural_prep.sharding.edges import beyond, nearest_alike
from neural_prep.sharding.halo import Fetch, plan_fetch


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows along one dimension.

    Attributes:
        size: The dimension's global size.
        count: Number of windows, which is the output's size.
        kernel: Positions in a window.
        stride: From one window to the next.
        dilation: From one position in a window to the next.
        before: Positions of the first window that lie before the dimension.
        edge: What lies beyond the ends: one of `edges.EDGES`; or `alike`, for maxima.
    """

    size: int
    count: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    edge: str = "constant"

    @property
    def reach(self) -> int:
        """From a window's first position to its last, both counted."""
        return (self.kernel - 1) * self.dilation + 1

    def starts(self) -> Tensor:
        """Each window's first position."""
        return torch.arange(self.count) * self.stride - self.before

    def rows(self, first: int, count: int) -> Tensor:
        """Where all positions of consecutive windows take their values from."""
        if count == 0:
            return torch.empty(0, dtype=torch.int64)
        start = first * self.stride - self.before
        positions = torch.arange(start, start + (count - 1) * self.stride + self.reach)
        if self.edge == "alike":
            return nearest_alike(positions, self.size, self.dilation)
        return beyond(positions, self.size, self.edge)


@dataclass(frozen=True, slots=True)
class Plan:
    """One rank's part of an operation along a cut dimension.

    Attributes:
        sizes: How many outputs each rank computes.
        first: This rank's first output.
        rows: The global index of each input that it fetches.
        fetch: How it gets them.
    """

    sizes: tuple[int, ...]
    first: int
    rows: Tensor
    fetch: Fetch


def shares(sizes: Sequence[int], middles: Tensor) -> tuple[int, ...]:
    """How many outputs each rank computes: those whose middle it has.

    Args:
        sizes: Every rank's part of the input.
        middles: For each output an index of the input, not descending; those beyond the ends belong
            to the rank at that end.

    >>> shares((3, 0, 2), torch.tensor([-1, 0, 2, 3, 5]))
    (3, 0, 2)
    """
    ends = torch.tensor(list(accumulate(sizes)))
    middles = middles.clamp(0, max(int(ends[-1]) - 1, 0))
    owners = torch.bucketize(middles, ends, right=True).clamp(max=len(sizes) - 1)
    return tuple(torch.bincount(owners, minlength=len(sizes)).tolist())


@lru_cache(maxsize=1024)
def plan_windows(sizes: tuple[int, ...], windows: Windows, rank: int) -> Plan:
    """Shares windows out among ranks.

    Args:
        sizes: Every rank's part of the input.
        windows: All windows.
        rank: Whose part of the plan is asked for.
    """
    share = shares(sizes, windows.starts() + (windows.reach - 1) // 2)
    firsts = list(accumulate(share, initial=0))
    wanted = [windows.rows(first, own) for first, own in zip(firsts, share, strict=False)]
    return Plan(share, firsts[rank], wanted[rank], plan_fetch(sizes, wanted, rank))
