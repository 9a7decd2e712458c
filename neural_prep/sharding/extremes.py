"""The greatest and least of a sharded tensor, where they are, and who gets their gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from neural_prep.sharding.adjoint import apply, enter
from neural_prep.sharding.reduction import Reduction

NOWHERE = torch.iinfo(torch.int64).max  # the index of what a rank without elements gives


def extreme(whole: Reduction, *, greatest: bool) -> Tensor:
    """The greatest, or least, element, without gradient; NaN where any is."""
    if whole.is_empty:
        part = whole.local.new_full(whole.shape, _identity(whole.local.dtype, greatest))
    else:
        part = _extreme(whole.local.detach(), whole.dims, greatest)
    return whole.join(part, lambda parts: _extreme(parts, (0,), greatest)[0])


def shared(whole: Reduction, value: Tensor, *, among_nan: bool) -> Tensor:
    """An extreme whose gradient all elements that are equal to it share, on whatever rank.

    Args:
        whole: What was reduced.
        value: Its extreme.
        among_nan: Whether the NaNs share where it is NaN; else the gradient is NaN there, of all.
    """
    if not _needs_gradient(whole.local):
        return value
    equal = whole.local == value
    if among_nan:
        equal |= whole.local.isnan() & value.isnan()
    count = whole.add(equal.sum(whole.dims, True, dtype=value.dtype))
    if not among_nan:
        equal |= value.isnan()
        count = torch.where(value.isnan(), value, count)
    return _credit(whole, value, equal, count)


def first_extreme(whole: Reduction, *, greatest: bool) -> tuple[Tensor, Tensor]:
    """The extreme along one dimension and the lowest index of it, which gets its gradient."""
    (dim,) = whole.dims
    start = whole.starts[dim]
    value, index = _first(whole, greatest)
    if not _needs_gradient(whole.local):
        return value, index
    shape = [-1 if each == dim else 1 for each in range(whole.local.ndim)]
    places = torch.arange(start, start + whole.local.shape[dim], device=index.device)
    chosen = places.reshape(shape) == index
    return _credit(whole, value, chosen, torch.ones_like(value)), index


def first_of_all(whole: Reduction, *, greatest: bool) -> Tensor:
    """The lowest flat index of the extreme of the whole tensor, `(1, 1, ...)`."""
    return _first(whole, greatest)[1]


def without_gradient(whole: Reduction, value: Tensor) -> Tensor:
    """A value whose gradient is zero, where the piece has one."""
    if not _needs_gradient(whole.local):
        return value
    nothing = torch.zeros_like(whole.local, dtype=torch.bool)
    return _credit(whole, value, nothing, torch.ones_like(value))


def _first(whole: Reduction, greatest: bool) -> tuple[Tensor, Tensor]:
    """The joined extreme of one dimension or all, and its lowest global index."""
    value, index = _first_here(whole, greatest)
    for axis in whole.axes:
        values, indices = whole.stack(value, axis), whole.stack(index, axis)
        value = _extreme(values, (0,), greatest)[0]
        found = (values == value) | ((values != values) & (value != value))
        index = torch.where(found, indices, NOWHERE).amin(0)
    return value, index


def _first_here(whole: Reduction, greatest: bool) -> tuple[Tensor, Tensor]:
    local = whole.local.detach()
    if whole.is_empty:
        nothing = local.new_full(whole.shape, _identity(local.dtype, greatest))
        return nothing, torch.full_like(nothing, NOWHERE, dtype=torch.int64)
    if len(whole.dims) == 1:
        (dim,) = whole.dims
        value, index = local.max(dim, True) if greatest else local.min(dim, True)
        return value, index + whole.starts[dim]
    flat = local.reshape(-1)
    index = flat.argmax() if greatest else flat.argmin()
    return flat[index].reshape(whole.shape), _global_index(whole, index).reshape(whole.shape)


def _global_index(whole: Reduction, index: Tensor) -> Tensor:
    """The flat index in the whole tensor of an element with this flat index in the piece."""
    shape = whole.layout.global_shape(whole.local.shape)
    places = torch.unravel_index(index, whole.local.shape)
    found = torch.zeros_like(index)
    for place, start, size in zip(places, whole.starts, shape, strict=True):
        found = found * size + place + start
    return found


def _extreme(tensor: Tensor, dims: tuple[int, ...], greatest: bool) -> Tensor:
    return tensor.amax(dims, True) if greatest else tensor.amin(dims, True)


def _identity(dtype: torch.dtype, greatest: bool) -> float | bool:
    """What is not greater, or less, than anything."""
    if dtype == torch.bool:
        return not greatest
    if dtype.is_floating_point:
        return float("-inf") if greatest else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if greatest else limits.max


def _needs_gradient(local: Tensor) -> bool:
    """The same on all ranks: they have pieces of one tensor."""
    return local.requires_grad and torch.is_grad_enabled()


def _credit(whole: Reduction, value: Tensor, chosen: Tensor, count: Tensor) -> Tensor:
    groups = [whole.layout.group(axis) for axis in whole.axes]
    return apply(_Credit, whole.local, value, chosen, count, groups)


class _Credit(torch.autograd.Function):
    """A value that is known already; its gradient goes to the elements that were chosen."""

    @staticmethod
    def forward(
        ctx: Any,
        local: Tensor,
        value: Tensor,
        chosen: Tensor,
        count: Tensor,
        groups: list[ProcessGroup],
    ) -> Tensor:
        ctx.save_for_backward(chosen, count)
        ctx.groups = groups
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        chosen, count = ctx.saved_tensors
        for group in ctx.groups:
            grad = enter(grad, group)
        return torch.where(chosen, grad / count, torch.zeros_like(grad)), None, None, None, None
