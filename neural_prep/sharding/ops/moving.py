"""Elements in other places: turned round, rolled, repeated, and triangles by global place.

Along a cut dimension elements are fetched by their global index; every rank keeps its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.halo import Fetch, fetch, plan_fetch
from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.ops.reshaping import reshape
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import name_of, sharded, sharded_alike
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local


@sharded("flip")
def flip(input: ShardTensor, *dims: Any, **kwargs: Any) -> ShardTensor:
    """Some dimensions from the end to the beginning."""
    asked = _listed(dims, kwargs.get("dims"))
    rehearse(torch.flip, input, asked)
    return _flip(input, asked)


@sharded_alike("fliplr", "flipud", "__reversed__")
def flip_by_name(function: Callable[..., Tensor], input: ShardTensor) -> ShardTensor:
    """The first or the second dimension from the end to the beginning."""
    rehearse(function, input)
    return _flip(input, [1 if name_of(function) == "fliplr" else 0])


@sharded("rot90")
def rot90(input: ShardTensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> ShardTensor:
    """A plane turned by quarters."""
    rehearse(torch.rot90, input, k, dims)
    first, second = (dim % input.ndim for dim in dims)
    turned = _flip(input, [(), [second], [first, second], [first]][k % 4])
    if k % 2 == 0:
        return turned
    places = {dim: dim for dim in range(input.ndim)} | {first: second, second: first}
    local = to_local(turned).transpose(first, second)
    return from_local(local, turned.sharding.with_dims(places))


@sharded("roll")
def roll(input: ShardTensor, *args: Any, **kwargs: Any) -> Any:
    """Elements moved round the ends; without dimensions, those of the flattened tensor."""
    shifts, dims = _shifts(*args, **kwargs)
    rehearse(torch.roll, input, shifts, dims)
    if dims:
        return _roll(input, shifts, dims)
    rolled = _roll(reshape(input, -1), shifts, (0,))
    return reshape(rolled, input.shape).redistribute(input.sharding)


@sharded_alike("tril", "triu")
def triangle(
    function: Callable[..., Tensor], input: ShardTensor, diagonal: int = 0, *, out: None = None
) -> ShardTensor:
    """Zeros above or below a diagonal of the whole."""
    rehearse(function, input, diagonal)
    layout = input.sharding
    starts = {cut.dim: cut.start(layout.rank(axis)) for axis, cut in layout.cut_axes()}
    shift = starts.get(input.ndim - 2, 0) - starts.get(input.ndim - 1, 0)
    return from_local(function(to_local(input), diagonal + shift), layout)


@sharded("repeat_interleave")
def repeat_interleave(
    input: Tensor,
    repeats: int | Tensor | None = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> ShardTensor:
    """Every element of a dimension several times in a row, on the rank that has it."""
    layout = next(shards_in((input, repeats))).sharding
    if repeats is None:
        raise refusal("repeat_interleave", layout, "takes no repeats alone")
    if not isinstance(input, ShardTensor):
        input = from_local(input, Layout.replicated(layout.mesh))
    counts = repeats.full() if isinstance(repeats, ShardTensor) else repeats
    if dim is None:
        input, dim = reshape(input, -1), 0
    _check_repeats(input, counts, dim, output_size)
    return _repeat(input, counts, dim % input.ndim)


@sharded("diag_embed")
def diag_embed(input: ShardTensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> ShardTensor:
    """The last dimension as a diagonal: a rank that has elements has their rows."""
    shape, _ = rehearse(torch.diag_embed, input, offset, dim1, dim2)
    rows, columns = dim1 % len(shape), dim2 % len(shape)
    others = [dim for dim in range(len(shape)) if dim not in (rows, columns)]
    layout = input.sharding.with_dims(dict(enumerate(others)))
    local, last = to_local(input), input.ndim - 1
    axis = input.sharding.axis_of(last)
    if axis is None:
        return from_local(local.diag_embed(offset, rows, columns), layout)
    cut, rank = input.sharding.cuts[axis], layout.rank(axis)
    assert cut is not None
    above = [max(-offset, 0), *[0] * (len(cut.sizes) - 1)]  # rows of zeros that a rank has
    below = [*[0] * (len(cut.sizes) - 1), max(offset, 0)]
    left = cut.start(rank) + max(offset, 0)
    right = shape[columns] - left - cut.sizes[rank]
    local = F.pad(local.diag_embed(), [left, right, above[rank], below[rank]])
    sizes = tuple(map(sum, zip(above, cut.sizes, below, strict=True)))
    local = local.movedim((-2, -1), (rows, columns))
    return from_local(local, layout.with_cut(axis, Cut(rows, sizes)))


@sharded("diagflat")
def diagflat(input: ShardTensor, offset: int = 0) -> ShardTensor:
    """All elements as a diagonal."""
    return diag_embed(reshape(input, -1), offset)


@sharded("diag")
def diag(input: ShardTensor, diagonal: int = 0, *, out: None = None) -> Any:
    """A vector as a diagonal, or the diagonal of a matrix."""
    rehearse(torch.diag, input, diagonal)
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    return torch.diagonal_copy(input, diagonal)


@sharded("trace")
def trace(input: ShardTensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    rehearse(torch.trace, input)
    return torch.diagonal_copy(input).sum()


@sharded("kron")
def kron(input: Tensor, other: Tensor, *, out: None = None) -> Any:
    """Every element of one tensor times the whole of another."""
    shape, _ = rehearse(torch.kron, input, other)
    both = [[*[1] * (len(shape) - each.ndim), *each.shape] for each in (input, other)]
    left = _reshaped(input, [size for each in both[0] for size in (each, 1)])
    right = _reshaped(other, [size for each in both[1] for size in (1, each)])
    product = left * right
    assert isinstance(product, ShardTensor)
    return reshape(product, shape)


def _flip(input: ShardTensor, dims: Sequence[int]) -> ShardTensor:
    asked = {dim % input.ndim for dim in dims}
    layout = input.sharding
    local = to_local(input).flip([dim for dim in asked if layout.axis_of(dim) is None])
    for axis, cut in layout.cut_axes():
        if cut.dim in asked:
            plan = _plan(cut.sizes, -1, -1, layout.rank(axis))
            local = fetch(local, plan, cut.dim, layout.group(axis))
    return from_local(local, layout)


def _roll(input: ShardTensor, shifts: Sequence[int], dims: Sequence[int]) -> ShardTensor:
    layout, local = input.sharding, to_local(input)
    total = [0] * input.ndim
    for shift, dim in zip(shifts, dims, strict=True):
        total[dim] += shift
    for axis, cut in layout.cut_axes():
        shift, total[cut.dim] = total[cut.dim], 0
        if shift:
            plan = _plan(cut.sizes, 1, -shift, layout.rank(axis))
            local = fetch(local, plan, cut.dim, layout.group(axis))
    return from_local(local.roll(total, list(range(input.ndim))), layout)


@lru_cache(maxsize=1024)
def _plan(sizes: tuple[int, ...], sign: int, first: int, rank: int) -> Fetch:
    """What a rank fetches for elements that come from `first + sign * place`, round the ends."""
    total = max(sum(sizes), 1)
    wanted = [
        (first + sign * torch.arange(start, start + size)) % total
        for start, size in zip(Cut(0, sizes).starts, sizes, strict=True)
    ]
    return plan_fetch(sizes, wanted, rank)


def _shifts(shifts: Any, dims: Any = ()) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return _as_tuple(shifts), _as_tuple(() if dims is None else dims)


def _check_repeats(input: Tensor, counts: int | Tensor, dim: int, output_size: int | None) -> None:
    """Raises what torch raises: on a tensor with as many elements along `dim` and no others."""
    thin = torch.zeros(input.size(dim))
    if isinstance(counts, Tensor):
        counts = counts.to("cpu")
    torch.repeat_interleave(thin, counts, 0, output_size=output_size)


def _repeat(input: ShardTensor, counts: int | Tensor, dim: int) -> ShardTensor:
    layout = input.sharding
    axis = layout.axis_of(dim)
    if axis is None:
        return from_local(to_local(input).repeat_interleave(counts, dim), layout)
    cut = layout.cuts[axis]
    assert cut is not None
    if isinstance(counts, Tensor) and counts.numel() != 1:
        parts = torch.split(counts, list(cut.sizes))
        sizes = tuple(int(part.sum()) for part in parts)
        counts = parts[layout.rank(axis)]
    else:
        sizes = tuple(size * int(counts) for size in cut.sizes)
        counts = int(counts)
    local = to_local(input).repeat_interleave(counts, dim)
    return from_local(local, layout.with_cut(axis, Cut(dim, sizes)))


def _listed(numbers: Sequence[Any], named: Any) -> tuple[int, ...]:
    """Numbers, whether given one by one or together."""
    if named is not None:
        return _as_tuple(named)
    return _as_tuple(numbers[0]) if len(numbers) == 1 else tuple(numbers)


def _as_tuple(numbers: Any) -> tuple[int, ...]:
    return tuple(numbers) if isinstance(numbers, Sequence) else (numbers,)


def _reshaped(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Not by torch's function, which would call the operand aliased."""
    return reshape(tensor, shape) if isinstance(tensor, ShardTensor) else tensor.reshape(*shape)
