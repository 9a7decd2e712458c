"""Differences, gradients and trapezoids along a dimension, from neighbours on whatever rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.along import along_dim
from neural_prep.sharding.halo import fetch, plan_fetch
from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.operands import layout_of, operand
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import name_of
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local
from neural_prep.sharding.windows import Windows, plan_windows

Function = Callable[..., Any]


@along_dim("diff")
def _diff(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
    *,
    out: None = None,
) -> ShardTensor:
    dim %= input.ndim
    whole = _joined(input, dim, prepend, append)
    return _neighbours(whole, dim, n + 1, lambda rows: torch.diff(rows, n, dim))


@along_dim("trapezoid", "trapz", "cumulative_trapezoid")
def _trapezoid(
    function: Function,
    result: torch.dtype,
    y: Tensor,
    x: Tensor | None = None,
    *,
    dx: float = 1,
    dim: int = -1,
) -> Tensor:
    dim %= max(y.ndim, 1)
    cumulative = name_of(function) == "cumulative_trapezoid"
    if y.dtype == torch.bool and x is None and not cumulative:
        y = y.long()  # torch adds them all up, and then takes the ends away
    areas = _pairs(y, dim) * (dx if x is None else _steps(y, x, dim))
    total = areas.cumsum(dim) if cumulative else areas.sum(dim)
    return (total / 2).to(result)


@along_dim("gradient")
def _gradient(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    *,
    spacing: Any = None,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> tuple[Tensor, ...]:
    wanted = range(input.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = [each % input.ndim for each in wanted]
    steps = [spacing] * len(dims) if spacing is None or _is_number(spacing) else list(spacing)
    if not isinstance(input, ShardTensor):
        mesh = next(shards_in(steps)).sharding.mesh
        input = from_local(input, Layout.replicated(mesh))
    return tuple(
        _gradient_along(input, along, 1 if step is None else step, edge_order)
        for along, step in zip(dims, steps, strict=True)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex)


def _gradient_along(input: ShardTensor, dim: int, step: Any, edge_order: int) -> ShardTensor:
    """Central differences; a rank's first and last rows are ends only where the dimension ends."""
    layout, local = input.sharding, to_local(input)
    if isinstance(step, Tensor):
        step = operand(step, Layout.replicated(layout.mesh), layout)
    axis = layout.axis_of(dim)
    size, start, count = input.shape[dim], 0, local.shape[dim]
    if axis is not None:
        cut, rank = layout.cuts[axis], layout.rank(axis)
        assert isinstance(cut, Cut)
        start = cut.start(rank)
        ranges = [
            _needed(first, own, size, edge_order)
            for first, own in zip(cut.starts, cut.sizes, strict=True)
        ]
        wanted = [torch.arange(each.start, each.stop) for each in ranges]
        local = fetch(local, plan_fetch(cut.sizes, wanted, rank), dim, layout.group(axis))
        start -= ranges[rank].start
        if isinstance(step, Tensor):
            step = step[ranges[rank].start : ranges[rank].stop]
    if not local.numel():
        inputs = [each for each in (local, step) if isinstance(each, Tensor)]
        return from_local(connected(layout.local_shape(input.shape), local, *inputs), layout)
    spacing = [step] if isinstance(step, Tensor) else step
    (found,) = torch.gradient(local, spacing=spacing, dim=dim, edge_order=edge_order)
    return from_local(found.narrow(dim, start, count), layout)


def _needed(start: int, count: int, size: int, edge_order: int) -> range:
    """The rows from which the gradients of some are computed.

    >>> _needed(0, 1, 9, 2), _needed(4, 1, 9, 2), _needed(9, 0, 9, 1)
    (range(0, 3), range(3, 6), range(9, 9))
    """
    if count == 0:
        return range(start, start)
    first, stop = start - 1, start + count + 1
    if start == 0:
        stop = max(stop, edge_order + 1)
    if start + count == size:
        first = min(first, size - edge_order - 1)
    return range(max(first, 0), min(stop, size))


def _neighbours(
    input: ShardTensor, dim: int, reach: int, compute: Callable[[Tensor], Tensor]
) -> ShardTensor:
    """A function of every `reach` consecutive elements: the dimension gets shorter by one less."""
    layout, local = input.sharding, to_local(input)
    axis = layout.axis_of(dim)
    if axis is None:
        return from_local(compute(local), layout)
    cut, rank = layout.cuts[axis], layout.rank(axis)
    assert isinstance(cut, Cut)
    windows = Windows(cut.total, max(cut.total - reach + 1, 0), reach)
    plan = plan_windows(cut.sizes, windows, rank)
    rows = fetch(local, plan.fetch, dim, layout.group(axis))
    layout = layout.with_cut(axis, Cut(dim, plan.sizes))
    if plan.sizes[rank]:
        return from_local(compute(rows), layout)
    shape = [0 if each == dim else size for each, size in enumerate(local.shape)]
    return from_local(connected(shape, rows, rows), layout)


def _joined(input: Tensor, dim: int, before: Tensor | None, after: Tensor | None) -> ShardTensor:
    """The first rank's piece gets what comes before, the last one's what comes after."""
    if before is None and after is None:
        assert isinstance(input, ShardTensor)
        return input
    layout = layout_of(input, next(shards_in((input, before, after))).sharding)
    axis = layout.axis_of(dim)
    added = [part for part in (before, input, after) if part is not None]
    if axis is None:
        return from_local(torch.cat([operand(part, layout, layout) for part in added], dim), layout)
    cut = layout.cuts[axis]
    assert isinstance(cut, Cut)
    ranks = len(cut.sizes)

    def all_at(rank: int, part: Tensor) -> tuple[int, ...]:
        return tuple(part.shape[dim] if each == rank else 0 for each in range(ranks))

    owned = [(input, cut.sizes)]
    if before is not None:
        owned.insert(0, (before, all_at(0, before)))
    if after is not None:
        owned.append((after, all_at(ranks - 1, after)))
    pieces = [
        operand(part, layout.with_cut(axis, Cut(dim, sizes)), layout) for part, sizes in owned
    ]
    joined = tuple(map(sum, zip(*(sizes for _, sizes in owned), strict=True)))
    return from_local(torch.cat(pieces, dim), layout.with_cut(axis, Cut(dim, joined)))


def _pairs(y: Tensor, dim: int) -> Tensor:
    """The sum of each element and the next."""

    def add(rows: Tensor) -> Tensor:
        count = max(rows.shape[dim] - 1, 0)
        return rows.narrow(dim, min(1, rows.shape[dim]), count) + rows.narrow(dim, 0, count)

    return _neighbours(y, dim, 2, add) if isinstance(y, ShardTensor) else add(y)


def _steps(y: Tensor, x: Tensor, dim: int) -> Tensor:
    """Distances between points, broadcast to pairs of values."""
    if x.ndim > y.ndim:
        layout = next(shards_in((y, x))).sharding
        raise refusal("trapezoid", layout, f"takes no points of {x.ndim} dims for {y.ndim}")
    if x.ndim == 1:
        x = x.reshape([-1 if each == dim else 1 for each in range(y.ndim)])
    elif x.ndim < y.ndim:
        x = x.reshape([1] * (y.ndim - x.ndim) + list(x.shape))
    return torch.diff(x, dim=dim)
