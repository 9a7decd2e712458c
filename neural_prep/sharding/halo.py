"""Fetches what a rank needs of a cut dimension by global index, from however many ranks hold it.

Halos, padding, strides out of phase with the cut and slices are all lists of global indices: who
needs what follows from sizes that every rank knows, so nothing is asked. A `Fetch` is worked out
once for each kind of call and kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from neural_prep.sharding.adjoint import exchange, join_pieces

FILL = -1  # an index that no rank holds


@dataclass(frozen=True, slots=True)
class Fetch:
    """One rank's part of an exchange by index.

    Attributes:
        kept: Own elements that it needs itself: they are not sent.
        send: Own elements for each other rank, in order of ranks.
        send_sizes: How many each rank is sent.
        receive_sizes: How many each rank sends.
        order: Where each wanted element lies in what was kept, then received; None: in order.
        filled: Places of the result that are filled; None: there are none.
        size: Length of the result.
        silent: Whether no rank sends anything.
        layers: Filled places, received elements, the kept ones, received elements and filled places
            again, where the result is these one after the other; else None.
    """

    kept: Tensor | range
    send: Tensor
    send_sizes: tuple[int, ...]
    receive_sizes: tuple[int, ...]
    order: Tensor | None
    filled: Tensor | None
    size: int
    silent: bool
    layers: tuple[int, int, int, int, int] | None


def plan_fetch(sizes: Sequence[int], wanted: Sequence[Tensor], rank: int) -> Fetch:
    """Works out what a rank sends and receives.

    Args:
        sizes: Every rank's part of the dimension.
        wanted: For each rank the global indices that it needs, int64, in any order and as often as
            it likes; `FILL` where nothing is.
        rank: Which rank's part is asked for.
    """
    starts = torch.tensor(list(accumulate(sizes, initial=0)))
    owners = [torch.bucketize(each, starts[1:], right=True) for each in wanted]
    for each, owner in zip(wanted, owners, strict=True):
        owner[each == FILL] = FILL
    others = [r for r in range(len(sizes)) if r != rank]
    send = [wanted[r][owners[r] == rank] - starts[rank] for r in others]
    counts = {r: len(each) for r, each in zip(others, send, strict=True)}
    mine = owners[rank]
    sources = [rank, *others]
    places = torch.cat([torch.nonzero(mine == source)[:, 0] for source in sources])
    present = torch.nonzero(mine != FILL)[:, 0]
    order = torch.empty(len(mine), dtype=torch.int64)
    order[places] = torch.arange(len(places))
    order = order[present]
    kept = wanted[rank][mine == rank] - starts[rank]
    return Fetch(
        kept=_as_range(kept),
        send=torch.cat(send) if send else torch.empty(0, dtype=torch.int64),
        send_sizes=tuple(counts.get(r, 0) for r in range(len(sizes))),
        receive_sizes=tuple(0 if r == rank else int((mine == r).sum()) for r in range(len(sizes))),
        order=None if torch.equal(order, torch.arange(len(order))) else order,
        filled=None if len(present) == len(mine) else torch.nonzero(mine == FILL)[:, 0],
        size=len(mine),
        silent=all(bool(((owner == r) | (owner == FILL)).all()) for r, owner in enumerate(owners)),
        layers=_layers(order, present, len(kept), len(mine)),
    )


def fetch(
    tensor: Tensor, plan: Fetch, dim: int, group: ProcessGroup | None, *, fill: float = 0.0
) -> Tensor:
    """The elements along `dim` that this rank wants; gradients go back to who holds them.

    Args:
        tensor: This rank's piece.
        plan: What is wanted.
        dim: The dimension that is cut.
        group: The ranks that it is cut over.
        fill: The value of places that no rank holds.
    """
    found = _take(tensor, plan.kept, dim)
    if plan.layers is not None:
        return _fetch_layers(tensor, found, plan, dim, group, fill)
    if not plan.silent:
        sent = tensor.index_select(dim, plan.send.to(tensor.device))
        received = exchange(sent, plan.send_sizes, plan.receive_sizes, dim, group)
        found = join_pieces([found, received], dim)
    if plan.order is not None:
        found = found.index_select(dim, plan.order.to(tensor.device))
    if plan.filled is None:
        return found
    return _fill(found, plan, dim, fill)


def _layers(
    order: Tensor, present: Tensor, kept: int, size: int
) -> tuple[int, int, int, int, int] | None:
    """How many elements each layer of a halo has: one copy then puts them together."""
    count = len(order)
    first = int(present[0]) if count else 0
    if not torch.equal(present, torch.arange(first, first + count)):
        return None
    before = int((order < kept).nonzero()[0, 0]) if kept else count
    received = torch.arange(kept, count)
    expected = torch.cat([received[:before], torch.arange(kept), received[before:]])
    if not torch.equal(order, expected):
        return None
    return first, before, kept, count - kept - before, size - first - count


def _fetch_layers(
    tensor: Tensor,
    kept: Tensor,
    plan: Fetch,
    dim: int,
    group: ProcessGroup | None,
    fill: float,
) -> Tensor:
    """`fetch` where the result is layer after layer: indexing would copy it up to three times."""
    assert plan.layers is not None
    first, before, _, after, last = plan.layers
    layers = [kept]
    if not plan.silent:
        sent = tensor.index_select(dim, plan.send.to(tensor.device))
        received = exchange(sent, plan.send_sizes, plan.receive_sizes, dim, group)
        # Empty ones too: backward must reach the exchange on every rank.
        layers = [received.narrow(dim, 0, before), kept, received.narrow(dim, before, after)]
    filled = [
        [kept.new_full((*kept.shape[:dim], count, *kept.shape[dim + 1 :]), fill)] if count else []
        for count in (first, last)
    ]
    layers = [*filled[0], *layers, *filled[1]]
    return layers[0] if len(layers) == 1 else join_pieces(layers, dim)


def _as_range(indices: Tensor) -> Tensor | range:
    """Consecutive indices as a range, which takes no copy."""
    count = len(indices)
    first = int(indices[0]) if count else 0
    if torch.equal(indices, torch.arange(first, first + count)):
        return range(first, first + count)
    return indices


def _take(tensor: Tensor, indices: Tensor | range, dim: int) -> Tensor:
    if isinstance(indices, range):
        return tensor.narrow(dim, indices.start, len(indices))
    return tensor.index_select(dim, indices.to(tensor.device))


def _fill(found: Tensor, plan: Fetch, dim: int, value: float) -> Tensor:
    """Puts filled places between those that were found."""
    assert plan.filled is not None
    held = torch.ones(plan.size, dtype=torch.bool)
    held[plan.filled] = False
    shape = (*found.shape[:dim], plan.size, *found.shape[dim + 1 :])
    result = found.new_full(shape, value)
    return result.index_copy(dim, torch.nonzero(held)[:, 0].to(found.device), found)
