"""Bytes and sums between ranks, without gradients: what the backends have in common.

Pieces of uneven length travel by `all_to_all_single` with split sizes, which both gloo and NCCL
have; gloo's list forms fail on them. Whatever is only moved is sent as bytes, so that every dtype
is. Sums of 16-bit floats are formed in 32 bits, of complex numbers part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

_SUMMED_IN = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which numbers of another are added up.

    >>> summed_in(torch.bfloat16), summed_in(torch.float64)
    (torch.float32, torch.float64)
    """
    return _SUMMED_IN.get(dtype, dtype)


def move(
    pieces: Tensor, send: Sequence[int], receive: Sequence[int], group: ProcessGroup | None
) -> Tensor:
    """Sends consecutive rows to each rank, and returns what all ranks have sent here.

    Args:
        pieces: `(sum(send), ...)`; dimensions after the first are the same on all ranks.
        send: Rows for each rank.
        receive: Rows from each rank.
        group: The ranks.

    Returns:
        `(sum(receive), ...)`, in order of ranks.
    """
    return start_move(pieces, send, receive, group)()


def start_move(
    pieces: Tensor, send: Sequence[int], receive: Sequence[int], group: ProcessGroup | None
) -> Callable[[], Tensor]:
    """Like `move`, but work goes on meanwhile: what it returns waits for the rows."""
    pieces = pieces.resolve_conj().resolve_neg().contiguous()
    shape = (sum(receive), *pieces.shape[1:])
    row = prod(pieces.shape[1:]) * pieces.element_size()
    if dist.get_world_size(group) == 1:
        return pieces.reshape(shape).clone
    sent = _as_bytes(pieces)
    received = torch.empty(sum(receive) * row, dtype=torch.uint8, device=pieces.device)
    under_way = dist.all_to_all_single(
        received,
        sent,
        [count * row for count in receive],
        [count * row for count in send],
        group,
        async_op=True,
    )

    def finish() -> Tensor:
        under_way.wait()
        assert sent.numel() == sum(send) * row  # kept until here, for it was being read
        return received.view(pieces.dtype).reshape(shape)

    return finish


def _as_bytes(tensor: Tensor) -> Tensor:
    """A contiguous tensor's memory."""
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:  # of a lone element, which counts as contiguous whatever its stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def add_up(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """The sum over all ranks, with the same bits on each of them; the argument is not changed.

    Of booleans the sum is their disjunction.
    """
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    if dist.get_world_size(group) == 1 or tensor._is_zerotensor():
        tensor = tensor.clone()
    if dist.get_world_size(group) == 1:
        return tensor
    if tensor.dtype == torch.bool:
        return add_up(tensor.to(torch.uint8), group) > 0
    total = tensor.to(summed_in(tensor.dtype), copy=True)
    if total.is_complex():
        dist.all_reduce(torch.view_as_real(total), group=group)
    else:
        dist.all_reduce(total, group=group)
    return total.to(tensor.dtype)


def sum_rows(tensor: Tensor) -> Tensor:
    """The sum over the first dimension, in its order."""
    total = tensor.sum(0, dtype=_SUMMED_IN.get(tensor.dtype))
    return total.to(tensor.dtype) if tensor.dtype != torch.bool else total > 0


def greatest(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """The greatest over all ranks, element by element; NaN where any is."""
    tensor = tensor.detach().contiguous()
    if dist.get_world_size(group) == 1:
        return tensor.clone()
    count = dist.get_world_size(group)
    rows = tensor.reshape(1, -1)
    found = move(rows.expand(count, -1), [1] * count, [1] * count, group)
    return found.amax(0).reshape(tensor.shape)
