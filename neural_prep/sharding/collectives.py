"""Differentiable collectives for uneven pieces, as bare adjoints: inner products sum over ranks.

Every rank of the group calls the same function; sizes and shapes are compared first, so that all
raise or none does. Pieces may be empty and tensors need not be contiguous. Floating-point and
complex tensors have gradients, defined on every rank and zero where a rank's input did not matter;
integers and booleans go forward only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from neural_prep.sharding.adjoint import exchange, join_pieces, reduce, sum_over
from neural_prep.sharding.agreement import (
    check_agreement,
    check_count,
    check_other_dims,
    check_pieces,
    check_root,
    check_total,
    compare,
    dim_of,
    taking_part,
)
from neural_prep.sharding.halo import FILL, fetch, plan_fetch
from neural_prep.sharding.transport import sum_rows

Edge = Literal["none", "zeros", "circular"]
_EDGES = get_args(Edge)


def scatter_v(
    tensor: Tensor,
    sizes: Sequence[int],
    dim: int = 0,
    src: int = 0,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Cuts one rank's tensor along `dim` and gives every rank its piece; adjoint: `gather_v`.

    Args:
        tensor: On `src` `(..., sum(sizes), ...)`; on other ranks any tensor of the same dtype,
            whose gradient is zero.
        sizes: Every rank's part of `dim`.
        dim: The dimension that is cut.
        src: The rank, within the group, that has the tensor.
        group: The ranks; None: all.

    Returns:
        `(..., sizes[rank], ...)`.

    Raises:
        ValueError: on all ranks, if arguments don't fit.
    """
    found = compare("scatter_v", tensor, dim, group, sizes=tuple(sizes), root=src)
    ranks, rank = len(found), dist.get_rank(group)
    check_agreement("scatter_v", found, "sizes", "root", "dtype")
    check_root("scatter_v", src, ranks)
    source = found[src]
    dim = dim_of("scatter_v", found, src)
    check_count("scatter_v", sizes, ranks)
    check_total("scatter_v", found, src, dim, sum(sizes))
    tensor = taking_part(tensor, found)
    mine = tensor if rank == src else _nothing_of(tensor, source.shape, dim)
    send = sizes if rank == src else [0] * ranks
    receive = [sizes[rank] if r == src else 0 for r in range(ranks)]
    return exchange(mine, send, receive, dim, group)


def gather_v(
    tensor: Tensor,
    sizes: Sequence[int],
    dim: int = 0,
    dst: int = 0,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Joins all ranks' pieces along `dim` on one rank; adjoint: `scatter_v`.

    Args:
        tensor: This rank's piece, `(..., sizes[rank], ...)`.
        sizes: Every rank's part of `dim`.
        dim: The dimension.
        dst: The rank, within the group, that receives.
        group: The ranks; None: all.

    Returns:
        `(..., sum(sizes), ...)` on `dst`; elsewhere a tensor that is empty along `dim` and takes
        part in backward like any other.

    Raises:
        ValueError: on all ranks, if arguments don't fit.
    """
    found = compare("gather_v", tensor, dim, group, sizes=tuple(sizes), root=dst)
    ranks, rank = len(found), dist.get_rank(group)
    check_agreement("gather_v", found, "sizes", "root", "dtype")
    check_root("gather_v", dst, ranks)
    dim = check_pieces("gather_v", found, sizes)
    send = [sizes[rank] if r == dst else 0 for r in range(ranks)]
    receive = sizes if rank == dst else [0] * ranks
    return exchange(taking_part(tensor, found), send, receive, dim, group)


def all_gather_v(
    tensor: Tensor, sizes: Sequence[int], dim: int = 0, group: ProcessGroup | None = None
) -> Tensor:
    """Joins all ranks' pieces along `dim` on every rank; adjoint: `reduce_scatter_v`.

    Args:
        tensor: This rank's piece, `(..., sizes[rank], ...)`.
        sizes: Every rank's part of `dim`.
        dim: The dimension.
        group: The ranks; None: all.

    Returns:
        `(..., sum(sizes), ...)`.

    Raises:
        ValueError: on all ranks, if arguments don't fit.
    """
    found = compare("all_gather_v", tensor, dim, group, sizes=tuple(sizes))
    check_agreement("all_gather_v", found, "sizes", "dtype")
    dim = check_pieces("all_gather_v", found, sizes)
    ranks, own, tensor = len(found), tensor.shape[dim], taking_part(tensor, found)
    return exchange(join_pieces([tensor] * ranks, dim), [own] * ranks, sizes, dim, group)


def reduce_scatter_v(
    tensor: Tensor, sizes: Sequence[int], dim: int = 0, group: ProcessGroup | None = None
) -> Tensor:
    """Sums all ranks' tensors and gives every rank its piece; adjoint: `all_gather_v`.

    Summands are added in order of ranks; of 16-bit floats in 32 bits.

    Args:
        tensor: `(..., sum(sizes), ...)`.
        sizes: Every rank's part of `dim`.
        dim: The dimension.
        group: The ranks; None: all.

    Returns:
        `(..., sizes[rank], ...)`.

    Raises:
        ValueError: on all ranks, if arguments don't fit.
    """
    found = compare("reduce_scatter_v", tensor, dim, group, sizes=tuple(sizes))
    check_agreement("reduce_scatter_v", found, "sizes", "dtype", "shape")
    ranks, rank = len(found), dist.get_rank(group)
    dim = dim_of("reduce_scatter_v", found, rank)
    check_count("reduce_scatter_v", sizes, ranks)
    check_total("reduce_scatter_v", found, rank, dim, sum(sizes))
    own, tensor = sizes[rank], taking_part(tensor, found)
    pieces = exchange(tensor, sizes, [own] * ranks, dim, group).movedim(dim, 0)
    return sum_rows(pieces.reshape(ranks, own, *pieces.shape[1:])).movedim(0, dim)


def all_reduce_v(
    tensor: Tensor,
    group: ProcessGroup | None = None,
    backward: Literal["sum", "identity"] = "sum",
) -> Tensor:
    """The sum over all ranks, with the same bits on each.

    Args:
        tensor: The same shape on every rank.
        group: The ranks; None: all.
        backward: `sum`, the adjoint; or `identity`, where what follows is the same on all ranks and
            counts once.

    Raises:
        ValueError: on all ranks, if shapes differ; or if `backward` is neither.
    """
    found = compare("all_reduce_v", tensor, 0, group, mode=backward)
    check_agreement("all_reduce_v", found, "shape", "dtype", "mode")
    if backward not in ("sum", "identity"):
        raise ValueError(f"all_reduce_v: backward is {backward!r}; expected 'sum' or 'identity'")
    tensor = taking_part(tensor, found)
    return sum_over(tensor, group) if backward == "sum" else reduce(tensor, group)


def all_to_all_v(
    tensor: Tensor,
    send_sizes: Sequence[int],
    recv_sizes: Sequence[int],
    dim: int = 0,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Sends a slice along `dim` to each rank; adjoint: sends them back.

    Args:
        tensor: `(..., sum(send_sizes), ...)`.
        send_sizes: Length of the slice for each rank.
        recv_sizes: Length of the slice from each rank.
        dim: The dimension.
        group: The ranks; None: all.

    Returns:
        `(..., sum(recv_sizes), ...)`, in order of ranks.

    Raises:
        ValueError: on all ranks, if arguments don't fit.
    """
    name = "all_to_all_v"
    found = compare(name, tensor, dim, group, sizes=tuple(send_sizes), received=tuple(recv_sizes))
    check_agreement(name, found, "dtype")
    dim = check_other_dims(name, found)
    for rank, each in enumerate(found):
        check_count(name, each.sizes, len(found))
        check_count(name, each.received, len(found))
        check_total(name, found, rank, dim, sum(each.sizes))
    for i, sender in enumerate(found):
        for j, receiver in enumerate(found):
            if sender.sizes[j] != receiver.received[i]:
                raise ValueError(
                    f"{name}: rank {i} sends {sender.sizes[j]} to rank {j}, which expects "
                    f"{receiver.received[i]} from it"
                )
    return exchange(taking_part(tensor, found), send_sizes, recv_sizes, dim, group)


def indexed_all_to_all_v(
    tensor: Tensor,
    indices: Sequence[Tensor | Sequence[int]],
    sizes: Sequence[Sequence[int]],
    dim: int = 0,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Sends chosen elements along `dim` to each rank; adjoint: adds them where they came from.

    Args:
        tensor: This rank's.
        indices: For each rank the indices along `dim` that it is sent, in any order, also more than
            once.
        sizes: `sizes[i][j]` is how many rank i sends to rank j.
        dim: The dimension.
        group: The ranks; None: all.

    Returns:
        What all ranks have sent here, joined along `dim` in their order.

    Raises:
        ValueError: on all ranks, if arguments don't fit.
    """
    name = "indexed_all_to_all_v"
    lists = [torch.as_tensor(each, dtype=torch.int64).reshape(-1).cpu() for each in indices]
    joined = torch.cat(lists) if lists else torch.empty(0, dtype=torch.int64)
    ends = (int(joined.min()), int(joined.max())) if len(joined) else (0, -1)
    found = compare(
        name,
        tensor,
        dim,
        group,
        sizes=tuple(map(len, lists)),
        matrix=tuple(map(tuple, sizes)),
        ends=ends,
    )
    check_agreement(name, found, "matrix", "dtype")
    dim = check_other_dims(name, found)
    ranks, rank = len(found), dist.get_rank(group)
    check_count(name, sizes, ranks)
    for i, each in enumerate(found):
        check_count(name, sizes[i], ranks)
        if each.sizes != tuple(sizes[i]):
            raise ValueError(
                f"{name}: rank {i} sends {list(each.sizes)} elements to the ranks, but sizes say "
                f"{list(sizes[i])}"
            )
        if each.ends[0] < 0 or each.ends[1] >= each.shape[dim]:
            raise ValueError(
                f"{name}: rank {i} has {each.shape[dim]} elements along dim {dim} and is asked for "
                f"{each.ends[0] if each.ends[0] < 0 else each.ends[1]}; expected 0 to "
                f"{each.shape[dim] - 1}"
            )
    chosen = taking_part(tensor, found).index_select(dim, joined.to(tensor.device))
    return exchange(chosen, sizes[rank], [row[rank] for row in sizes], dim, group)


def halo_exchange(
    tensor: Tensor,
    before: int,
    after: int,
    dim: int,
    edge: Edge = "none",
    group: ProcessGroup | None = None,
) -> Tensor:
    """Puts neighbours' rows around this rank's piece; adjoint: adds them to their owners'.

    A halo that is wider than a neighbour's piece comes from several ranks; an empty piece gets its
    halo too.

    Args:
        tensor: This rank's piece; pieces may differ along `dim`.
        before: Rows from lower indices.
        after: Rows from higher indices.
        dim: The dimension that is cut over the group.
        edge: What lies beyond the ends: nothing, so that the ranks there get less; zeros; or the
            other end.
        group: The ranks, in order of their pieces; None: all.

    Returns:
        `(..., before + rows + after, ...)`; less at the ends where `edge` is none.

    Raises:
        ValueError: on all ranks, if arguments don't fit.
    """
    name = "halo_exchange"
    found = compare(name, tensor, dim, group, halo=(before, after, edge))
    check_agreement(name, found, "halo", "dtype")
    if edge not in _EDGES:
        raise ValueError(f"{name}: edge is {edge!r}; expected one of {', '.join(_EDGES)}")
    if before < 0 or after < 0:
        raise ValueError(f"{name}: widths {before} and {after}; expected none below 0")
    dim = check_other_dims(name, found)
    sizes = [each.shape[dim] for each in found]
    if edge == "circular" and sum(sizes) == 0 and before + after > 0:
        raise ValueError(f"{name}: nothing to go round: dim {dim} is empty on all ranks")
    wanted = []
    for rank, size in enumerate(sizes):
        start = sum(sizes[:rank])
        wanted.append(_within(torch.arange(start - before, start + size + after), sizes, edge))
    plan = plan_fetch(sizes, wanted, dist.get_rank(group))
    return fetch(taking_part(tensor, found), plan, dim, group)


def _within(indices: Tensor, sizes: Sequence[int], edge: Edge) -> Tensor:
    """Indices beyond the ends as the edge has them."""
    total = sum(sizes)
    if edge == "circular":
        return indices % max(total, 1)
    inside = (indices >= 0) & (indices < total)
    return indices[inside] if edge == "none" else torch.where(inside, indices, FILL)


def _nothing_of(tensor: Tensor, shape: Sequence[int], dim: int) -> Tensor:
    """No element of a tensor, in the shape of another's empty slice: its gradient is zero."""
    return tensor.reshape(-1)[:0].reshape(*shape[:dim], 0, *shape[dim + 1 :])
