"""Cumulative sums, products and extremes: each rank's total is carried into the ranks after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import apply, connected, gather
from neural_prep.sharding.along import along_dim, of_one_element, on_whole
from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.reduction import Reduction
from neural_prep.sharding.registry import name_of
from neural_prep.sharding.shard_tensor import ShardTensor, from_local
from neural_prep.sharding.transport import summed_in

Function = Callable[..., Any]


@along_dim("cumsum", "cumprod")
def _cumsum(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    dim: int,
    *,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> ShardTensor:
    whole = Reduction.of(input, dim)
    if not whole.axes:
        curved = name_of(function) == "cumprod"
        found = _scanned(function, whole.local, dim, curved=curved, dtype=dtype)
        return from_local(found, whole.layout)
    result = of_one_element(lambda piece: function(piece, dim, dtype=dtype), input).dtype
    # Carried in as an element before the others, so that torch's gradient is right, zeros included.
    whole = whole.on(whole.local.to(result).to(summed_in(result)))
    (dim,) = whole.dims
    kind = whole.local.dtype
    if name_of(function) == "cumsum":
        carried = _earlier(whole, whole.local.sum(dim, True, dtype=kind)).sum(0, dtype=kind)
        found = torch.cat([carried, whole.local], dim).cumsum(dim, dtype=kind)
    else:
        carried = _earlier(whole, whole.local.prod(dim, True, dtype=kind)).prod(0, dtype=kind)
        joined = torch.cat([carried, whole.local], dim)
        found = _scanned(torch.cumprod, joined, dim, curved=True, dtype=kind)
    return from_local(_without_first(found, dim).to(result), whole.layout)


@along_dim("cummax", "cummin")
def _cummax(
    function: Function, result: torch.dtype, input: Tensor, dim: int, *, out: None = None
) -> Any:
    greatest = name_of(function) == "cummax"
    scan = torch.cummax if greatest else torch.cummin
    of_one_element(lambda piece: scan(piece, dim), input)
    whole = Reduction.of(input, dim)
    values, indices = _scanned(scan, whole.local, whole.dims[0], curved=False)
    if whole.axes:
        values, indices = _carry_extremes(whole, values, indices, scan)
    kind = torch.return_types.cummax if greatest else torch.return_types.cummin
    return kind((from_local(values, whole.layout), from_local(indices, whole.layout)))


@along_dim("logcumsumexp")
def _logcumsumexp(
    function: Function, result: torch.dtype, input: Tensor, dim: int, *, out: None = None
) -> Any:
    assert isinstance(input, ShardTensor)
    whole = Reduction.of(input, dim)
    (dim,) = whole.dims
    if input.is_complex() or not whole.axes:

        def compute(piece: Tensor) -> Any:
            return _scanned(torch.logcumsumexp, piece, dim, curved=True)

        return on_whole(input, dim, compute)
    of_one_element(lambda piece: torch.logcumsumexp(piece, dim), input)
    local = whole.local.to(summed_in(result))
    found = apply(_LogCumSumExp, local, whole.layout, dim, False)
    return from_local(found.to(result), whole.layout)


def _scanned(function: Function, piece: Tensor, dim: int, *, curved: bool, **options: Any) -> Any:
    """Torch's own; but that its gradient of an empty piece has no other graph than elsewhere."""
    found = function(piece, dim, **options)
    if piece.numel() or not piece.requires_grad:
        return found
    if isinstance(found, Tensor):
        return connected(found.shape, found, piece, curved=curved)
    values, indices = found
    return connected(values.shape, values, piece, curved=curved), indices


def _earlier(whole: Reduction, total: Tensor) -> Tensor:
    """The totals of all ranks before this one, along a new first dimension."""
    (axis,) = whole.axes
    return whole.enter(whole.stack(total, axis)).narrow(0, 0, whole.layout.rank(axis))


def _without_first(tensor: Tensor, dim: int) -> Tensor:
    return tensor.narrow(dim, 1, tensor.shape[dim] - 1)


def _carry_extremes(
    whole: Reduction, values: Tensor, indices: Tensor, scan: Function
) -> tuple[Tensor, Tensor]:
    """Running extremes of the whole dimension, and the last global index of each."""
    (axis,), (dim,) = whole.axes, whole.dims
    cut, rank = whole.layout.cuts[axis], whole.layout.rank(axis)
    assert isinstance(cut, Cut)
    indices = indices + cut.start(rank)
    if size := cut.sizes[rank]:
        last, place = values.narrow(dim, size - 1, 1), indices.narrow(dim, size - 1, 1)
    else:
        last = connected(whole.shape, values, values)
        place = indices.new_zeros(whole.shape)
    lasts, places = whole.enter(whole.stack(last, axis)), whole.stack(place, axis)
    before = [each for each in range(rank) if cut.sizes[each]]
    if not before:  # takes part in backward all the same
        return torch.cat([values, lasts[0].narrow(dim, 0, 0)], dim), indices
    best, which = (each[-1] for each in _scanned(scan, lasts[before], 0, curved=False))
    place = places[before].gather(0, which[None])[0]
    # A NaN is the extreme from where it is on; of equal ones the last is.
    kept = (values >= best) if scan is torch.cummax else (values <= best)
    kept = kept | (values != values)
    return torch.where(kept, values, best), torch.where(kept, indices, place)


class _LogCumSumExp(torch.autograd.Function):
    """`torch.logcumsumexp` from either end, with torch's gradient where sums are empty, too."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, layout: Layout, dim: int, reverse: bool) -> Tensor:
        found = _log_scan(local, layout, dim, reverse)
        ctx.save_for_backward(local, found)
        ctx.call = (layout, dim, not reverse)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        local, found = ctx.saved_tensors
        size, nothing = grad.abs().log(), torch.full_like(grad, torch.finfo(grad.dtype).min)
        parts = [
            (apply(_LogCumSumExp, torch.where(chosen, size, nothing) - found, *ctx.call) + local)
            for chosen in (grad > 0, grad < 0)
        ]
        return parts[0].exp() - parts[1].exp(), None, None, None


def _log_scan(local: Tensor, layout: Layout, dim: int, reverse: bool) -> Tensor:
    """The scan, without a gradient."""
    axis = layout.axis_of(dim)
    assert axis is not None
    ranks, rank = layout.mesh.size(axis), layout.rank(axis)
    total = local.logsumexp(dim, True)
    totals = gather(total[None], [1] * ranks, 0, layout.group(axis))
    carried = (totals[rank + 1 :] if reverse else totals[:rank]).logsumexp(0)
    local = local.flip(dim) if reverse else local
    found = _without_first(torch.cat([carried, local], dim).logcumsumexp(dim), dim)
    return found.flip(dim) if reverse else found
