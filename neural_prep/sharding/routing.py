"""Rows of a cut dimension by global index: ranks ask for some, or have values for some.

Which ones depends on values that the asking rank alone knows. So ranks first tell one another how
many rows they mean, then which, and then rows travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from neural_prep.sharding.adjoint import exchange
from neural_prep.sharding.transport import move


@dataclass(frozen=True, slots=True)
class Route:
    """Between the rows that one rank means, and those that it has.

    Attributes:
        rows: Rows of this rank's piece that ranks mean, in order of the ranks.
        meant: How many of them each rank means.
        sizes: How many rows of each rank this one means.
        places: For each element of the index its place among the rows that this rank means.
        order: For each of these the element of the index; None: a row is there once, whatever the
            index has.
        group: The ranks.
    """

    rows: Tensor
    meant: tuple[int, ...]
    sizes: tuple[int, ...]
    places: Tensor
    order: Tensor | None
    group: ProcessGroup | None


def plan_route(
    index: Tensor, sizes: Sequence[int], group: ProcessGroup | None, *, once: bool
) -> Route:
    """Tells ranks which rows all of them mean.

    Args:
        index: `(M,)`, int64, global rows that this rank means; all in range.
        sizes: How many rows each rank has.
        group: The ranks.
        once: Whether a row that this rank means more than once travels once.
    """
    ends = torch.tensor(list(accumulate(sizes)), device=index.device)
    if once:
        order = None
        wanted, places = torch.unique(index, return_inverse=True)  # sorted, thus in order of ranks
    else:
        order = torch.argsort(torch.bucketize(index, ends, right=True), stable=True)
        wanted = index.index_select(0, order)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=index.device)
    ranks = len(sizes)
    counts = torch.bincount(torch.bucketize(wanted, ends, right=True), minlength=ranks)
    meant = move(counts, [1] * ranks, [1] * ranks, group).tolist()
    own = counts.tolist()
    rows = move(wanted, own, meant, group) - sum(sizes[: dist.get_rank(group)])
    return Route(rows, tuple(meant), tuple(own), places, order, group)


def collect(piece: Tensor, route: Route) -> Tensor:
    """The row that each element of the index means: `(M, ...)`.

    Args:
        piece: `(rows, ...)`, this rank's; later dimensions are the same on all ranks.
        route: Which rows are meant.
    """
    sent = piece.index_select(0, route.rows)
    received = exchange(sent, route.meant, route.sizes, 0, route.group)
    return received.index_select(0, route.places)


def deliver(values: Tensor, route: Route) -> Tensor:
    """Values for rows on the ranks that have these: one for each of `route.rows`.

    Args:
        values: `(M, ...)`, one for each element of the index; added up here where a row travels
            once.
        route: Which rows are meant.
    """
    if route.order is not None:
        sent = values.index_select(0, route.order)
    else:
        sent = values.new_zeros(sum(route.sizes), *values.shape[1:])
        sent = sent.index_add(0, route.places, values)
    return exchange(sent, route.sizes, route.meant, 0, route.group)
