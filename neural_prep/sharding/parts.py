"""Adaptive windows in parts: which rows of each window a rank has, and where its parts go.

Window `i` of `m` over `n` rows is `floor(i * n / m)` to `ceil((i + 1) * n / m)`, as torch has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from neural_prep.sharding.halo import Fetch, plan_fetch
from neural_prep.sharding.windows import shares


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of windows, all made equally long by repeating each one's last row.

    Attributes:
        count: Number of windows.
        width: Rows of each.
        rows: All windows' rows, one after the other; None: all rows there are, in order.
        mask: `(count, width)`, False for repeated rows; None: there are none.
    """

    count: int
    width: int
    rows: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(cls, starts: Tensor, stops: Tensor, size: int) -> Table:
        """Windows from `starts` to `stops`, none of them empty, over `size` rows."""
        count = len(starts)
        lengths = stops - starts
        width = int(lengths.max()) if count else 1
        steps = torch.arange(width)
        rows = (starts[:, None] + torch.minimum(steps, lengths[:, None] - 1)).flatten()
        mask = steps < lengths[:, None]
        in_order = len(rows) == size and bool((rows == torch.arange(size)).all())
        return cls(count, width, None if in_order else rows, None if mask.all() else mask)

    def spread(self, tensor: Tensor, dim: int) -> Tensor:
        """Puts `(count, width)` in the place of `dim`."""
        if self.rows is not None:
            tensor = tensor.index_select(dim, self.rows.to(tensor.device))
        return tensor.reshape(*tensor.shape[:dim], self.count, self.width, *tensor.shape[dim + 1 :])


@dataclass(frozen=True, slots=True)
class Parts:
    """One rank's part of adaptive pooling along a cut dimension.

    Attributes:
        sizes: How many windows each rank has the result of.
        counts: Of how many windows each rank has rows.
        own: This rank's rows of those windows.
        lengths: How many rows each of those windows has in all.
        fetch: How parts of windows get to where results are; None: all of them go to all ranks.
        joined: The parts of each window, in what was fetched.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    own: Table
    lengths: Tensor
    fetch: Fetch | None
    joined: Table


@lru_cache(maxsize=1024)
def table_of(size: int, count: int) -> Table:
    """Adaptive windows over a dimension that is not cut."""
    return Table.of(*_windows(size, count), size)


@lru_cache(maxsize=1024)
def plan_parts(sizes: tuple[int, ...], count: int, rank: int) -> Parts:
    """Divides adaptive windows among ranks.

    Args:
        sizes: Every rank's part of the input, of which there is some.
        count: Number of windows, at least 1.
        rank: Whose part of the plan is asked for.
    """
    starts, stops = _windows(sum(sizes), count)
    ends = list(accumulate(sizes, initial=0))
    met = [
        torch.nonzero((starts < high) & (stops > low) & (low < high))[:, 0]
        for low, high in pairwise(ends)
    ]
    low, high = ends[rank], ends[rank + 1]
    mine = met[rank]
    own = Table.of(starts[mine].clamp(min=low) - low, stops[mine].clamp(max=high) - low, high - low)
    counts = tuple(map(len, met))
    windows = torch.cat(met)  # of which window each part is
    order = torch.argsort(windows, stable=True)  # parts window by window, in order of ranks
    parts_of = torch.bincount(windows, minlength=count)
    share = shares(sizes, (starts + stops - 1) // 2)
    firsts = list(accumulate(share, initial=0))
    before = torch.tensor([0, *parts_of.cumsum(0).tolist()])
    if count == 1:
        share, firsts = (1,) * len(sizes), [0] * (len(sizes) + 1)
    wanted = [
        order[int(before[first]) : int(before[first + own])]
        for first, own in zip(firsts, share, strict=False)
    ]
    first = firsts[rank]
    begins = before[first : first + share[rank]] - before[first]
    lengths = parts_of[first : first + share[rank]]
    return Parts(
        sizes=share,
        counts=counts,
        own=own,
        lengths=(stops - starts)[mine],
        fetch=None if count == 1 else plan_fetch(sizes=counts, wanted=wanted, rank=rank),
        joined=Table.of(begins, begins + lengths, len(wanted[rank])),
    )


def _windows(size: int, count: int) -> tuple[Tensor, Tensor]:
    """First row of each window, and the one after its last."""
    numbers = torch.arange(count)
    return numbers * size // count, -(-((numbers + 1) * size) // count)
