"""Fourier transforms: what is transformed is made whole, and another dimension is cut meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.halo import Fetch, fetch, plan_fetch
from neural_prep.sharding.layout import Cut, Layout, split_sizes
from neural_prep.sharding.operands import operand
from neural_prep.sharding.redistribute import relayout
from neural_prep.sharding.reduction import result_dtype
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import name_of, sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local
from neural_prep.sharding.trees import map_tensors

_TRANSFORMS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_FROM_REAL = ("rfft", "ihfft")  # their last dimension is halved first, that of others comes last
_TO_REAL = ("irfft", "hfft")
_INVERSE = ("ifft", "irfft", "ihfft")

Sizes = int | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Step:
    """A transform of one dimension.

    Attributes:
        function: Which.
        dim: The dimension, not negative.
        count: The number of points, or None, as torch takes it.
    """

    function: Callable[..., Tensor]
    dim: int
    count: int | None


@sharded_alike(*_TRANSFORMS)
def along_one(
    function: Callable[..., Tensor],
    input: ShardTensor,
    n: int | None = None,
    dim: int = -1,
    norm: str | None = None,
) -> ShardTensor:
    """Of one dimension."""
    return _transform(function, input, n, dim, norm)


@sharded_alike(*(f"{name}2" for name in _TRANSFORMS))
def along_two(
    function: Callable[..., Tensor],
    input: ShardTensor,
    s: Sizes = None,
    dim: int | Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> ShardTensor:
    """Of the last two dimensions, or of others."""
    return _transform(function, input, s, dim, norm)


@sharded_alike(*(f"{name}n" for name in _TRANSFORMS))
def along_many(
    function: Callable[..., Tensor],
    input: ShardTensor,
    s: Sizes = None,
    dim: Sizes = None,
    norm: str | None = None,
) -> ShardTensor:
    """Of all dimensions, or of some."""
    return _transform(function, input, s, dim, norm)


@sharded_alike("fftshift", "ifftshift")
def shift(function: Callable[..., Tensor], input: ShardTensor, dim: Sizes = None) -> ShardTensor:
    """Brings frequency 0 to the middle, or back: elements move around the end of a dimension."""
    result_dtype(function, (input, dim), {})  # raises what torch raises
    local, layout = to_local(input), input.sharding
    back = int("ifftshift" in name_of(function))
    for each in range(input.ndim) if dim is None else _as_tuple(dim):
        place = each % input.ndim
        size, axis = input.shape[place], layout.axis_of(place)
        steps = (size + back) // 2
        cut = None if axis is None else layout.cuts[axis]
        if axis is None or cut is None or size < 2:
            local = local.roll(steps, place)
        else:
            plan = _rolled(cut.sizes, steps, layout.rank(axis))
            local = fetch(local, plan, place, layout.group(axis))
    return from_local(local, layout)


@sharded_alike("stft", "istft")
def short_time(
    function: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any
) -> ShardTensor:
    """`(B, T)` or `(B, F, T)`, of which `B` alone may be cut."""
    name = name_of(function)
    layout = next(shards_in([input, args, kwargs])).sharding
    batched = input.ndim == (3 if name == "istft" else 2)
    whole = isinstance(input, ShardTensor) and all(cut.dim == 0 for _, cut in layout.cut_axes())
    if not (batched and whole):
        raise refusal(name, layout, "has a sharded version along the batch alone")
    others: list[Tensor] = []

    def window(tensor: Tensor) -> Tensor:
        others.append(operand(tensor, Layout.replicated(layout.mesh), layout))
        return others[-1]

    values, named = map_tensors(window, list(args)), map_tensors(window, kwargs)
    local = to_local(input)
    with torch.no_grad():  # raises on all ranks alike, also where there is no row
        one = function(local.new_zeros(1, *local.shape[1:]), *values, **named)
    if local.numel():
        return from_local(function(local, *values, **named), layout)
    return from_local(connected((0, *one.shape[1:]), one, local, *others), layout)


def _transform(
    function: Callable[..., Tensor], input: ShardTensor, s: Sizes, dim: Sizes, norm: str | None
) -> ShardTensor:
    """A transform of any number of dimensions, cut or not; cuts stay where they are."""
    counts = None if s is None else _as_tuple(s)
    _check(function, input, s, dim, norm)
    dims = list(range(input.ndim)[0 if counts is None else input.ndim - len(counts) :])
    if dim is not None:
        dims = [each % input.ndim for each in _as_tuple(dim)]
    name = name_of(function).removeprefix("fft_").rstrip("2n")
    shape = _result_shape(name, input.shape, dims, counts)
    local, now, result = to_local(input), input.sharding, _result_layout(input.sharding, shape)
    if all(now.axis_of(each) is None for each in dims):
        return from_local(_on_piece(function, local, s, dim, norm, dims), result)
    steps = _steps(name, dims, counts, now)
    for number, step in enumerate(steps):
        axis = now.axis_of(step.dim)
        if axis is not None:
            later = {each.dim for each in steps[number:]}
            wanted = now.with_cut(axis, _elsewhere(axis, now, result, local.shape, later))
            local, now = relayout(local, now, wanted), wanted
        local = _on_piece(step.function, local, step.count, step.dim, norm, [step.dim])
    return from_local(relayout(local, now, result), result)


def _check(
    function: Callable[..., Tensor], input: ShardTensor, s: Sizes, dim: Sizes, norm: str | None
) -> None:
    """Raises what torch raises of such arguments: a few elements show all there is to find.

    Tensors without values would, too, but the first transform of one imports torch's compiler.
    """
    few = [min(size, 2) for size in input.shape]
    if s is not None:
        s = [min(each, 2) for each in s] if isinstance(s, Sequence) else min(s, 2)
    function(torch.zeros(few, dtype=input.dtype, device=input.device), s, dim, norm)


def _result_shape(
    name: str, shape: Sequence[int], dims: Sequence[int], counts: Sequence[int] | None
) -> list[int]:
    """The global shape of what comes out."""
    result = list(shape)
    for dim, count in zip(dims, counts or [-1] * len(dims), strict=True):
        result[dim] = shape[dim] if count == -1 else count
    if dims and name in _FROM_REAL:
        result[dims[-1]] = result[dims[-1]] // 2 + 1
    elif dims and name in _TO_REAL and (counts is None or counts[-1] == -1):
        result[dims[-1]] = 2 * (shape[dims[-1]] - 1)
    return result


def _steps(
    name: str, dims: Sequence[int], counts: Sequence[int] | None, layout: Layout
) -> list[Step]:
    """One dimension after the other, cut ones late: by then another one is free to be cut."""
    other = torch.fft.ifft if name in _INVERSE else torch.fft.fft
    sizes = [None if each == -1 else each for each in counts] if counts else [None] * len(dims)
    functions = [other] * (len(dims) - 1) + [getattr(torch.fft, name)]
    steps = list(map(Step, functions, dims, sizes))
    free = steps if name in ("fft", "ifft") else steps[:-1]
    late = sorted(free, key=lambda step: layout.axis_of(step.dim) is not None)
    last = steps[len(free) :]
    return [*last, *late] if name in _FROM_REAL else [*late, *last]


def _elsewhere(
    axis: int, now: Layout, result: Layout, local: Sequence[int], later: Collection[int]
) -> Cut | None:
    """What an axis cuts instead of the dimension that is transformed next; None: nothing is left.

    Rather one that is large enough for all ranks, that is not transformed later, and that the
    axis cuts in the end.

    Args:
        axis: The axis.
        now: The layout now.
        result: The layout in the end.
        local: The shape of this rank's piece.
        later: The dimensions that are not transformed yet.
    """
    cut, shape, home = now.cuts[axis], now.global_shape(local), result.cuts[axis]
    assert cut is not None
    assert home is not None
    free = [dim for dim in range(len(shape)) if now.axis_of(dim) is None]
    if not free:
        return None
    ranks = len(cut.sizes)

    def worth(dim: int) -> tuple[bool, bool, bool, int]:
        return shape[dim] >= ranks, dim not in later, dim == home.dim, shape[dim]

    best = max(free, key=worth)
    if best == home.dim and best not in later:
        return home
    return Cut(best, split_sizes(shape[best], ranks))


def _on_piece(
    function: Callable[..., Tensor],
    local: Tensor,
    counts: Sizes,
    dim: Sizes,
    norm: str | None,
    dims: Collection[int],
) -> Tensor:
    """A transform of whole dimensions of a piece, which may be empty."""
    if local.numel():
        return function(local, counts, dim, norm)
    sizes = [max(size, 1) for size in local.shape]
    one = function(local.new_zeros(sizes), counts, dim, norm)  # raises what it raises elsewhere
    shape = [one.shape[each] if each in dims else n for each, n in enumerate(local.shape)]
    return connected(shape, one, local)


def _result_layout(layout: Layout, shape: Sequence[int]) -> Layout:
    """The same cuts; of a dimension whose size has changed as even as can be."""
    for axis, cut in layout.cut_axes():
        if cut.total != shape[cut.dim]:
            sizes = split_sizes(shape[cut.dim], len(cut.sizes))
            layout = layout.with_cut(axis, Cut(cut.dim, sizes))
    return layout


@lru_cache(maxsize=1024)
def _rolled(sizes: tuple[int, ...], steps: int, rank: int) -> Fetch:
    """Who sends what where all elements move on by some steps."""
    cut = Cut(0, sizes)
    wanted = [
        (torch.arange(start, start + size) - steps) % cut.total
        for start, size in zip(cut.starts, sizes, strict=True)
    ]
    return plan_fetch(sizes, wanted, rank)


def _as_tuple(given: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(given) if isinstance(given, Sequence) else (given,)
