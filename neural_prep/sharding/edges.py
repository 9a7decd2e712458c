"""What lies beyond the ends of a dimension: each way of padding as a map to global indices."""

from __future__ import annotations

import torch
from torch import Tensor

from neural_prep.sharding.halo import FILL

EDGES = ("constant", "reflect", "replicate", "circular")


def beyond(positions: Tensor, size: int, edge: str) -> Tensor:
    """The global index that each position of a padded dimension takes its values from.

    Args:
        positions: int64, 0 for the dimension's first element; may lie beyond its ends.
        size: The dimension's global size.
        edge: One of `constant` (`FILL` beyond the ends), `reflect` (the end is not repeated),
            `replicate` and `circular`.

    >>> positions = torch.arange(-2, 5)
    >>> beyond(positions, 3, "reflect").tolist(), beyond(positions, 3, "circular").tolist()
    ([2, 1, 0, 1, 2, 1, 0], [1, 2, 0, 1, 2, 0, 1])
    """
    if size == 0 or edge == "constant":
        inside = (positions >= 0) & (positions < size)
        return torch.where(inside, positions, FILL)
    if edge == "replicate":
        return positions.clamp(0, size - 1)
    if edge == "circular":
        return positions % size
    assert edge == "reflect", edge
    period = max(2 * (size - 1), 1)
    folded = positions % period
    return torch.where(folded < size, folded, period - folded)


def nearest_alike(positions: Tensor, size: int, dilation: int) -> Tensor:
    """For positions beyond an end the nearest element that lies a multiple of `dilation` away.

    Any window with that dilation which covers the position covers that element too, so that a
    maximum, and which of several equal ones comes first, is the same as without padding. `FILL`
    where the dimension has no such element.

    >>> nearest_alike(torch.arange(-3, 7), 5, 2).tolist()
    [1, 0, 1, 0, 1, 2, 3, 4, 3, 4]
    """
    first = positions % dilation
    last = size - 1 - (size - 1 - positions) % dilation
    found = torch.where(positions < 0, first, torch.where(positions >= size, last, positions))
    return torch.where((found >= 0) & (found < size), found, FILL)
