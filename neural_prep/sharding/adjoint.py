"""Moves and sums with gradients: each function's backward is its adjoint, and is differentiable.

Nothing is checked here: callers know all sizes. All ranks of a group call the same functions in the
same order, whatever their pieces; backward runs them in reverse, also for empty pieces.

Two conventions meet here. For a bare collective inner products are summed over ranks; inside
`ShardTensor` a replicated value is one value, whose gradient is whole on every rank. Hence the
pairs: `sum_over` (adjoint: itself), `reduce` (sum forward, nothing backward) and `enter` (nothing
forward, sum backward); `gather` (backward: its own slice) and `split` (backward: gather).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from neural_prep.sharding.transport import add_up, move


def apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    """The result of a function with one, without what torch's `apply` does for its transforms."""
    if torch._C._are_functorch_transforms_active():  # `torch.func`: it raises torch's error
        result: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    else:
        result = super(torch.autograd.Function, function).apply(*args)  # type: ignore[misc]
    return result


def exchange(
    tensor: Tensor,
    send: Sequence[int],
    receive: Sequence[int],
    dim: int,
    group: ProcessGroup | None,
) -> Tensor:
    """Sends consecutive slices along `dim` to each rank; adjoint: sends them back.

    Args:
        tensor: This rank's, `sum(send)` long along `dim`.
        send: Length of each rank's slice.
        receive: Length of each rank's slice for this one.
        dim: The dimension.
        group: The ranks.

    Returns:
        What all ranks have sent, joined along `dim` in their order.
    """
    return apply(_Exchange, tensor, tuple(send), tuple(receive), dim, group)


def sum_over(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """The sum over ranks; gradients are summed too."""
    return apply(_Sum, tensor, group, True, True)


def reduce(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """The sum over ranks as one value: its gradient, equal on all ranks, is every summand's."""
    return apply(_Sum, tensor, group, True, False)


def enter(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """A value that all ranks have enters work that is divided among them: gradients are summed."""
    return apply(_Sum, tensor, group, False, True)


def gather(tensor: Tensor, sizes: Sequence[int], dim: int, group: ProcessGroup | None) -> Tensor:
    """Joins pieces along `dim` into one value on every rank; backward takes this rank's slice."""
    return apply(_Gather, tensor, tuple(sizes), dim, group)


def split(tensor: Tensor, sizes: Sequence[int], dim: int, group: ProcessGroup | None) -> Tensor:
    """This rank's slice of a value that all ranks have; backward joins all slices' gradients."""
    return apply(_Split, tensor, tuple(sizes), dim, group)


def join_pieces(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joins tensors as `torch.cat` does, but for the gradients of empty vectors.

    There torch gives zeros without a graph, and second derivatives would not reach what sent them.
    """
    if tensors[0].ndim != 1:
        return torch.cat(list(tensors), dim)
    return torch.cat([each.unsqueeze(0) for each in tensors], 1).squeeze(0)


def connected(
    shape: Sequence[int],
    like: Tensor,
    *inputs: Tensor,
    curved: bool = False,
    once: BaseException | None = None,
) -> Tensor:
    """An empty tensor that depends on the inputs, whose gradients are zeros.

    A rank without any work still takes part in the collectives of backward.

    Args:
        shape: Of the result, with no elements, or zeros that other ranks' values are added to.
        like: Has the dtype.
        inputs: What real work would depend on.
        curved: Whether torch's gradient of an input depends on that input, too, if only with a
            derivative of zero; else on the others alone, as where the work is linear in each.
        once: What torch raises of second derivatives where there is work, if it does.
    """
    return apply(_Connected, tuple(shape), like.dtype, (curved, once), *inputs)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        send: tuple[int, ...],
        receive: tuple[int, ...],
        dim: int,
        group: ProcessGroup | None,
    ) -> Tensor:
        ctx.call = (receive, send, dim, group)
        return move(tensor.movedim(dim, 0), send, receive, group).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return apply(_Exchange, grad, *ctx.call), None, None, None, None


class _Sum(torch.autograd.Function):
    """Sums forward, backward, or both."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, group: ProcessGroup | None, forward: bool, backward: bool
    ) -> Tensor:
        ctx.call = (group, backward, forward)
        return add_up(tensor, group) if forward else tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return apply(_Sum, grad, *ctx.call), None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, sizes: tuple[int, ...], dim: int, group: ProcessGroup | None
    ) -> Tensor:
        ctx.call = (sizes, dim, group)
        count = len(sizes)
        if count == 1:
            return tensor.clone()
        pieces = tensor.movedim(dim, 0)
        own = len(pieces)
        copies = pieces.expand(count, *pieces.shape).reshape(count * own, *pieces.shape[1:])
        return move(copies, [own] * count, sizes, group).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return apply(_Split, grad, *ctx.call), None, None, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, sizes: tuple[int, ...], dim: int, group: ProcessGroup | None
    ) -> Tensor:
        ctx.call = (sizes, dim, group)
        rank = dist.get_rank(group)
        return tensor.narrow(dim, sum(sizes[:rank]), sizes[rank]).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return apply(_Gather, grad, *ctx.call), None, None, None


class _Connected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        options: tuple[bool, BaseException | None],
        *inputs: Tensor,
    ) -> Tensor:
        ctx.inputs = inputs  # their values are not used: they may be changed in place meanwhile
        ctx.options = options
        return torch.zeros(shape, dtype=dtype, device=inputs[0].device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # The gradients of real work depend on these, and so second derivatives reach them.
        curved, once = ctx.options
        zeros = []
        for place, each in enumerate(ctx.inputs):
            others = [other for at, other in enumerate(ctx.inputs) if curved or at != place]
            if once is None:
                zeros.append(connected(each.shape, each, grad, *others, curved=curved))
            else:
                zeros.append(apply(_Raise, once, each.shape, each.dtype, grad, *others))
        return None, None, None, *zeros


class _Raise(torch.autograd.Function):
    """Zeros without a derivative."""

    @staticmethod
    def forward(
        ctx: Any, error: BaseException, shape: Sequence[int], dtype: torch.dtype, *inputs: Tensor
    ) -> Tensor:
        ctx.error = error
        return torch.zeros(shape, dtype=dtype, device=inputs[0].device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        raise ctx.error
