"""In-place functions that stand for no other one: filling, copying, and setting elements.

A set element is one of a region, along each cut dimension the part of the region that a rank has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.advanced import is_advanced, put
from neural_prep.sharding.broadcast import broadcast_piece
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.region import cut_region, spelled_out
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.rows import viewed
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.trees import map_tensors


@sharded("zero_", always=True)
def zero(input: ShardTensor) -> Tensor:
    """Zeros."""
    return input.overwrite(torch.zeros_like(input), "zero_", forgets=True)


@sharded("fill_", always=True)
def fill(input: ShardTensor, value: Any) -> Tensor:
    """One value everywhere."""
    if not isinstance(value, Tensor):
        return input.overwrite(torch.full_like(input, value), "fill_", forgets=True)
    if value.ndim > 0:
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} "
            "dimensions."
        )
    return _copied(input, value, "fill_")


@sharded("copy_", always=True)
def copy(input: ShardTensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Another tensor's values, broadcast and cast."""
    return _copied(input, torch.as_tensor(src), "copy_")


@sharded("__setitem__", always=True)
def set_item(input: ShardTensor, index: Any, value: Any) -> None:
    """Sets elements by integers and slices, by tensors of integers, or by a mask."""
    if isinstance(index, Tensor) and index.dtype == torch.bool and index.shape == input.shape:
        _set_masked(input, index, value)
        return
    if input.sharding.is_replicated:
        _set_whole(input, index, value)
        return
    if is_advanced(index):
        _set_advanced(input, index, value)
        return
    wanted = _slices(input, index)
    local = to_local(input)
    region, own = cut_region(input.sharding, wanted)
    shape = [len(each) for each in wanted]
    kept = [dim for dim, each in enumerate(_expanded(input, index)) if isinstance(each, slice)]
    piece = _value_piece(input, value, shape, kept, region)
    # Not set in a clone of the piece: where it is all of it, torch would forget the piece's graph.
    values, chosen = torch.zeros_like(local), torch.zeros_like(local, dtype=torch.bool)
    values[own] = piece
    chosen[own] = True
    changed = torch.where(chosen, values, local)
    input.overwrite(from_local(changed, input.sharding), "__setitem__")


def _copied(input: ShardTensor, value: Tensor, name: str) -> Tensor:
    """Overwrites with a value that is broadcast; integers may come from floating point."""
    piece = broadcast_piece(value, _fitting(value, input.shape), input.sharding)
    local = piece.to(input.dtype).expand(input._local.shape).clone()
    return input.overwrite(from_local(local, input.sharding), name, forgets=True)


def _set_whole(input: ShardTensor, index: Any, value: Any) -> None:
    """Any index: every rank has all elements."""

    def whole(tensor: Tensor) -> Tensor:
        return to_local(_whole(tensor))

    changed = to_local(input).clone()
    changed[map_tensors(whole, index)] = map_tensors(whole, value)
    input.overwrite(from_local(changed, input.sharding), "__setitem__")


def _set_advanced(input: ShardTensor, index: Any, value: Any) -> None:
    """Tensors of integers, lists and masks."""
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=input.dtype, device=input.device)
    while value.ndim and value.shape[0] == 1:  # which torch leaves out, however many
        value = viewed(torch.Tensor.reshape, value, value.shape[1:])
    input.overwrite(put(input, index, value.to(input.dtype)), "__setitem__")


def _whole(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, ShardTensor):
        return tensor
    return tensor.redistribute(Layout.replicated(tensor.sharding.mesh))


def _set_masked(input: ShardTensor, mask: Tensor, value: Any) -> None:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise refusal("__setitem__", input.sharding, "by a mask takes one value only")
    if isinstance(value, Tensor):
        value = value.reshape(()).to(input.dtype)
    else:  # raises where it does not fit
        value = torch.full((), value, dtype=input.dtype, device=input.device)
    input.overwrite(torch.where(mask, value, input), "__setitem__")


def _expanded(input: ShardTensor, index: Any) -> list[Any]:
    """One integer or slice for each dimension."""
    parts = list(index) if isinstance(index, tuple) else [index]
    for part in parts:
        if part is not Ellipsis and (isinstance(part, bool) or not isinstance(part, int | slice)):
            kind = type(part).__name__
            raise refusal("__setitem__", input.sharding, f"takes no {kind} as an index")
    if sum(part is not Ellipsis for part in parts) > input.ndim:
        raise IndexError(f"too many indices for tensor of dimension {input.ndim}")
    return spelled_out(parts, input.ndim)


def _slices(input: ShardTensor, index: Any) -> list[range]:
    """The global indices that are set, for each dimension."""
    found = []
    for dim, part in enumerate(_expanded(input, index)):
        size = input.shape[dim]
        if isinstance(part, int):
            if not -size <= part < size:
                raise IndexError(
                    f"index {part} is out of bounds for dimension {dim} with size {size}"
                )
            part = slice(part % size, part % size + 1)
        if part.step is not None and part.step < 1:
            raise ValueError("step must be greater than zero")
        found.append(range(size)[part])
    return found


def _value_piece(
    input: ShardTensor, value: Any, shape: Sequence[int], kept: Sequence[int], region: Layout
) -> Any:
    """This rank's piece of what is set; integers have taken dimensions out of its shape."""
    if not isinstance(value, Tensor):
        return value
    target = [shape[dim] for dim in kept]
    while value.ndim > len(target) and value.shape[0] == 1:
        value = value[0] if not isinstance(value, ShardTensor) else value.squeeze(0)
    _fitting(value, target)
    dims = kept[len(kept) - value.ndim :]
    sizes = [1] * len(shape)
    for dim, size in zip(dims, value.shape, strict=True):
        sizes[dim] = size
    return broadcast_piece(value.reshape(sizes), shape, region).to(input.dtype)


def _fitting(value: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape that a value is broadcast to; torch's error where it does not fit."""
    torch.empty(value.shape, device="meta").expand(tuple(shape))
    return tuple(shape)
