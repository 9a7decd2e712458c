"""Parts of a tensor: slices of a cut dimension stay where they are, one element of it goes to all.

Each rank keeps what it has of a slice, so that nothing is sent; sizes become uneven, or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected, gather
from neural_prep.sharding.advanced import take
from neural_prep.sharding.halo import fetch
from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.reduction import named_as_torch
from neural_prep.sharding.region import cut_region, meet, spelled_out
from neural_prep.sharding.registry import (
    has_function,
    name_of,
    sharded,
    sharded_alike,
    version_of,
)
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.trees import map_tensors
from neural_prep.sharding.windows import Windows, plan_windows

_SPLITS = (
    "split split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk tensor_split "
    "hsplit vsplit dsplit"
)
_COPIES = "narrow select split split_with_sizes unbind diagonal unfold"


@sharded("__getitem__")
def get_item(input: Tensor, index: Any) -> Tensor:
    """Integers, slices, `...` and None; anything else takes elements one by one."""
    parts = index if isinstance(index, tuple) else (index,)
    if not isinstance(input, ShardTensor) or not all(map(_is_basic, parts)):
        return take(input, index)
    _example(input)[index]  # raises what torch raises
    return _pick(to_local(input), input, spelled_out(parts, input.ndim))


@sharded_alike("select")
def select(function: Callable[..., Tensor], input: ShardTensor, *args: Any, **kwargs: Any) -> Any:
    """One element of a dimension, which is left out; of a cut one every rank gets it."""

    def index_of(dim: int, index: int) -> list[Any]:
        return _along(input, dim, int(index))

    args, kwargs = map_tensors(to_local, args), map_tensors(to_local, named_as_torch(kwargs))
    function(_example(input), *args, **kwargs)
    return _pick(to_local(input), input, index_of(*args, **kwargs))


@sharded_alike("narrow")
def narrow(function: Callable[..., Tensor], input: ShardTensor, *args: Any, **kwargs: Any) -> Any:
    """Consecutive elements of a dimension; the first may be given by a tensor."""
    args, kwargs = map_tensors(to_local, args), map_tensors(to_local, named_as_torch(kwargs))

    def index_of(dim: int, start: int, length: int) -> list[Any]:
        first = int(start) % max(input.shape[dim], 1) if int(start) < 0 else int(start)
        return _along(input, dim, slice(first, first + int(length)))

    function(_example(input), *args, **kwargs)
    return _pick(to_local(input), input, index_of(*args, **kwargs))


@sharded_alike(*_SPLITS.split())
def split(function: Callable[..., Any], input: ShardTensor, *args: Any, **kwargs: Any) -> Any:
    """All parts of a dimension, each with what every rank has of it."""
    args, kwargs = map_tensors(_whole, args), map_tensors(_whole, named_as_torch(kwargs))
    example = _example(input)
    found = function(example, *args, **kwargs)
    dim = _split_dim(function, input, args, kwargs)
    local, stride = to_local(input), example.stride(dim)
    parts = []
    for each in found:
        first = each.storage_offset() // stride  # parts may overlap, or leave something out
        wanted = slice(first, first + each.shape[dim])
        parts.append(_pick(local, input, _along(input, dim, wanted)))
    return tuple(parts)


@sharded(torch.Tensor.unfold)
def unfold(input: ShardTensor, dimension: int, size: int, step: int) -> ShardTensor:
    """Windows of a dimension, as a new last one; a cut dimension's windows stay cut."""
    shape, _ = rehearse(torch.Tensor.unfold, input, dimension, size, step)
    layout, local, dim = input.sharding, to_local(input), dimension % input.ndim
    axis = layout.axis_of(dim)
    if axis is None:
        return from_local(local.unfold(dim, size, step), layout)
    cut = layout.cuts[axis]
    assert cut is not None
    windows = Windows(cut.total, shape[dim], kernel=size, stride=step)
    plan = plan_windows(cut.sizes, windows, layout.rank(axis))
    local = fetch(local, plan.fetch, dim, layout.group(axis))
    layout = layout.with_cut(axis, Cut(dim, plan.sizes))
    own = layout.local_shape(shape)
    found = local.unfold(dim, size, step) if own[dim] else connected(own, local, local)
    return from_local(found, layout)


@sharded_alike("diagonal")
def diagonal(
    function: Callable[..., Tensor],
    input: ShardTensor,
    offset: int = 0,
    dim1: int | None = None,
    dim2: int | None = None,
) -> ShardTensor:
    """Elements on a diagonal: each rank has those in its rows, or columns where rows are whole."""
    first, second = (-2, -1) if name_of(function) == "linalg_diagonal" else (0, 1)
    rows, columns = first if dim1 is None else dim1, second if dim2 is None else dim2
    shape, _ = rehearse(torch.diagonal, input, offset, rows, columns)
    rows, columns = rows % input.ndim, columns % input.ndim
    return _diagonal(input, offset, rows, columns, shape[-1])


def _diagonal(input: ShardTensor, offset: int, rows: int, columns: int, length: int) -> ShardTensor:
    layout, last = input.sharding, input.ndim - 2
    starts = {cut.dim: cut.start(layout.rank(axis)) for axis, cut in layout.cut_axes()}
    local = to_local(input).diagonal(
        offset + starts.get(rows, 0) - starts.get(columns, 0), rows, columns
    )
    kept = [dim for dim in range(input.ndim) if dim not in (rows, columns)]
    result = layout.with_dims({dim: place for place, dim in enumerate(kept)})
    own, before = range(length), {rows: max(-offset, 0), columns: max(offset, 0)}
    for axis, cut in layout.cut_axes():
        if cut.dim not in before:
            continue
        parts = [
            meet(own, start - before[cut.dim], size)
            for start, size in zip(cut.starts, cut.sizes, strict=True)
        ]
        counts = tuple(map(len, parts))
        if result.axis_of(last) is None:
            result = result.with_cut(axis, Cut(last, counts))
            own = parts[layout.rank(axis)]
        else:  # both dimensions are cut
            local = gather(local, counts, last, layout.group(axis))
    return from_local(local, result)


@sharded_alike(*filter(has_function, (f"{name}_copy" for name in _COPIES.split())))
def copied(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The same in memory of its own."""
    version = version_of(getattr(torch.Tensor, name_of(function).removesuffix("_copy")))
    assert version is not None
    return map_tensors(torch.clone, version(*args, **kwargs))


def _is_basic(part: Any) -> bool:
    """Whether it picks by place: no tensor, list, array or truth value."""
    if isinstance(part, bool):
        return False
    return part is None or part is Ellipsis or isinstance(part, Integral | slice)


def _example(input: Tensor) -> Tensor:
    """A tensor without memory, on which torch finds mistakes and what parts there are."""
    return torch.empty(input.shape, dtype=input.dtype, device="meta")


def _along(input: Tensor, dim: int, part: Any) -> list[Any]:
    """The index of one dimension."""
    before = dim % input.ndim
    return spelled_out([*[slice(None)] * before, part], input.ndim)


def _pick(local: Tensor, input: ShardTensor, parts: Sequence[Any]) -> ShardTensor:
    """A piece's part of `input[parts]`, with one part for each dimension and for each new one."""
    wanted: list[range] = []
    dims: dict[int, int] = {}
    index: list[Any] = []  # what is left to do once dropped dimensions have one element
    for part in parts:
        size = input.shape[len(wanted)] if part is not None else 1
        if isinstance(part, slice):
            dims[len(wanted)] = sum(each != 0 for each in index)
            wanted.append(range(size)[part])
        elif part is not None:
            wanted.append(range(size)[int(part) :][:1])
        index.append(part if part is None else slice(None) if isinstance(part, slice) else 0)
    layout, own = cut_region(input.sharding, wanted)
    return _without(local[own], layout, tuple(index), dims)


def _without(
    local: Tensor, layout: Layout, index: tuple[Any, ...], dims: dict[int, int]
) -> ShardTensor:
    """Leaves out dimensions of one element: one rank has it, and all ranks get it."""
    for axis, cut in layout.cut_axes():
        if cut.dim not in dims:
            local = gather(local, cut.sizes, cut.dim, layout.group(axis))
    return from_local(local[index], layout.with_dims(dims))


def _split_dim(
    function: Callable[..., Any], input: Tensor, args: Sequence[Any], kwargs: dict[str, Any]
) -> int:
    """The dimension that is split."""
    name = name_of(function)
    if name in ("hsplit", "vsplit", "dsplit"):
        return {"hsplit": min(1, input.ndim - 1), "vsplit": 0, "dsplit": 2}[name]
    dim: int = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    return dim % input.ndim


def _whole(tensor: Tensor) -> Tensor:
    """A tensor of places to split at, which all ranks have."""
    return tensor.full() if isinstance(tensor, ShardTensor) else tensor
