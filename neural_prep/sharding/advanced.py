"""Indexing by tensors, lists and masks, mixed with slices and integers, as torch has it.

Integers, slices and new dimensions come first, as basic indexing; masks become integers; and what
is indexed by integers becomes one dimension, of which rows are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.layout import Layout
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.rows import check_range, put_rows, take_rows, viewed
from neural_prep.sharding.shard_tensor import ShardTensor, shards_in, to_local
from neural_prep.sharding.trial import try_out

_WHOLE = slice(None)


def is_advanced(index: Any) -> bool:
    """Whether an index has more than integers, slices, `...` and `None` in it.

    >>> is_advanced((0, slice(2), None)), is_advanced((0, [1, 2]))
    (False, True)
    """
    return any(
        isinstance(part, bool | Tensor | Sequence) or hasattr(part, "__array__")
        for part in _given(index)
    )


def take(input: Tensor, index: Any) -> Tensor:
    """`input[index]` of any index; a cut index's result is cut alike.

    Rows that an index which is not cut takes of a cut dimension are cut as the dimension is, or as
    evenly as can be.

    Raises:
        IndexError: on all ranks, as torch does.
        NotImplementedError: if a mask is cut: no rank knows how many elements it has.
    """
    basic, tensors = _divided(input, index)
    viewed = input if all(part == _WHOLE for part in basic) else input[basic]
    if not tensors:
        return viewed
    return _Rows.of(viewed, tensors).take()


def put(input: Tensor, index: Any, values: Tensor, *, accumulate: bool = False) -> Tensor:
    """The input with other values at `input[index]`, or with these added.

    Args:
        input: Cut, or ordinary.
        index: Tensors of integers or masks, lists, and whole slices.
        values: Of the input's dtype; they are broadcast.
        accumulate: Whether values are added.

    Raises:
        IndexError: on all ranks, as torch does.
        RuntimeError: on all ranks, if values don't fit.
        NotImplementedError: if a mask is cut, or the index has other parts.
    """
    basic, tensors = _divided(input, index)
    if any(part != _WHOLE for part in basic) or not tensors:
        layout = next(shards_in([input, index, values])).sharding
        raise refusal("__setitem__", layout, "takes no slices or integers beside tensors")
    return _Rows.of(input, tensors).put(values, accumulate)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Dimensions that are indexed together, as the rows of one.

    Attributes:
        input: What is indexed.
        dims: Its dimensions that are, in order.
        index: The rows that are meant, int64.
        shape: The result's shape.
    """

    input: Tensor
    dims: tuple[int, ...]
    index: Tensor
    shape: tuple[int, ...]

    @classmethod
    def of(cls, input: Tensor, tensors: dict[int, Tensor]) -> _Rows:
        """Checks shapes and ranges; one of the dimensions at most stays cut."""
        dims = tuple(tensors)
        try_out(_at, input, dims, *tensors.values())
        shape, _ = rehearse(_at, input, dims, *tensors.values())
        for dim, each in tensors.items():
            _check(each, dims.index(dim), [input.shape[other] for other in dims])
        input = _cut_once(input, dims)
        index: Tensor | None = None
        width = 1
        for dim in reversed(_cut_first(input, dims)):
            size = input.shape[dim]
            part = tensors[dim].long()
            part = torch.where(part < 0, part + size, part)
            index = part if index is None else part * width + index
            width *= size
        assert index is not None
        return cls(input, dims, index, shape)

    @property
    def place(self) -> int:
        """Where the result has the index's dimensions: in front, unless all follow one another."""
        together = self.dims[-1] - self.dims[0] == len(self.dims) - 1
        return self.dims[0] if together else 0

    @property
    def order(self) -> list[int]:
        """The input's dimensions with those in front that are indexed."""
        kept = [dim for dim in range(self.input.ndim) if dim not in self.dims]
        return [*_cut_first(self.input, self.dims), *kept]

    def take(self) -> Tensor:
        if len(self.dims) == 1:
            return take_rows(self.input, self.dims[0], self.index)
        found = take_rows(self._joined(), 0, self.index)
        return viewed(torch.movedim, found, self._front, self._there) if self.place else found

    def put(self, values: Tensor, accumulate: bool) -> Tensor:
        _check_values(self.input, values, self.shape)
        values = viewed(torch.Tensor.expand, values, self.shape)
        add = torch.index_add if accumulate else torch.index_copy

        def change(piece: Tensor, dim: int, rows: Tensor, values: Tensor | None) -> Tensor:
            assert values is not None
            return add(piece, dim, rows, values)

        if len(self.dims) == 1:
            return put_rows(self.input, self.dims[0], self.index, values, change, sums=accumulate)
        if self.place:
            values = viewed(torch.movedim, values, self._there, self._front)
        found = put_rows(self._joined(), 0, self.index, values, change, sums=accumulate)
        apart = viewed(torch.Tensor.reshape, found, [self.input.shape[dim] for dim in self.order])
        back = sorted(range(self.input.ndim), key=self.order.__getitem__)
        return viewed(torch.permute, apart, back)

    def _joined(self) -> Tensor:
        """The input with the dimensions that are indexed joined, and in front."""
        moved, count = viewed(torch.permute, self.input, self.order), len(self.dims)
        shape = (prod(moved.shape[:count]), *moved.shape[count:])
        return viewed(torch.Tensor.reshape, moved, shape)

    @property
    def _front(self) -> tuple[int, ...]:
        return tuple(range(self.index.ndim))

    @property
    def _there(self) -> tuple[int, ...]:
        return tuple(range(self.place, self.place + self.index.ndim))


def _divided(input: Tensor, index: Any) -> tuple[tuple[Any, ...], dict[int, Tensor]]:
    """Basic indices, and by dimension of what they leave, tensors of integers."""
    basic: list[Any] = []
    tensors: dict[int, Tensor] = {}
    dim, source = 0, 0
    for part in _parts(input, index):
        if part is None or (isinstance(part, Tensor) and part.ndim == 0):
            basic.append(None)
            if part is not None:  # one mask for all
                tensors[dim] = torch.arange(int(part), device=input.device)
            dim += 1
        elif isinstance(part, Tensor):
            _check_mask(part, input.shape, source)
            for own in _integers(part, input):
                basic.append(_WHOLE)
                tensors[dim] = own
                dim, source = dim + 1, source + 1
        else:
            basic.append(part)
            dim, source = dim + isinstance(part, slice), source + 1
    return tuple(basic), tensors


def _given(index: Any) -> tuple[Any, ...]:
    """The parts of an index; a short list of more than numbers is as a tuple, as torch has it."""
    if isinstance(index, list) and len(index) < 32:
        kinds = (Tensor, Sequence, slice, type(None), type(...))
        if any(isinstance(each, kinds) for each in index):
            return tuple(index)
    return index if isinstance(index, tuple) else (index,)


def _parts(input: Tensor, index: Any) -> list[Any]:
    """One part for each dimension, or as many as a mask has."""
    parts = [_part(part) for part in _given(index)]
    missing = input.ndim - sum(_count(part) for part in parts)
    if missing < 0:
        raise IndexError(f"too many indices for tensor of dimension {input.ndim}")
    dots = [place for place, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    place = dots[0] if dots else len(parts)
    return [*parts[:place], *[_WHOLE] * missing, *parts[place + 1 :]]


def _part(part: Any) -> Any:
    """An index as an integer, a slice, None, `...`, a mask or a tensor of integers."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, int) and not isinstance(part, bool):
        return part
    tensor = part if isinstance(part, Tensor) else torch.as_tensor(part)
    if not isinstance(part, Tensor) and tensor.numel() == 0:
        tensor = tensor.long()  # of a list
    if tensor.dtype == torch.uint8:
        tensor = tensor != 0
    if tensor.dtype == torch.bool:
        return _known_mask(tensor)
    if tensor.ndim == 0 and not tensor.is_floating_point() and not tensor.is_complex():
        return int(tensor)
    return tensor


def _known_mask(mask: Tensor) -> Tensor:
    """A mask that every rank has whole."""
    if isinstance(mask, ShardTensor) and not mask.sharding.is_replicated:
        raise refusal("indexing by a mask", mask.sharding, "takes as many elements as it has")
    return to_local(mask)


def _count(part: Any) -> int:
    """How many dimensions a part is for."""
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, Tensor) and part.dtype == torch.bool:
        return part.ndim
    return 1


def _integers(part: Tensor, input: Tensor) -> Iterator[Tensor]:
    """Tensors of integers that stand for a mask, one for each of its dimensions; else the part."""
    if part.dtype == torch.bool:
        yield from (each.to(input.device) for each in part.nonzero(as_tuple=True))
    else:
        yield part if isinstance(part, ShardTensor) else part.to(input.device)


def _check_mask(part: Tensor, shape: Sequence[int], source: int) -> None:
    if part.dtype != torch.bool:
        return
    for place, size in enumerate(part.shape):
        if size != shape[source + place]:
            raise IndexError(
                f"The shape of the mask {list(part.shape)} at index {place} does not match the "
                f"shape of the indexed tensor {list(shape)} at index {source + place}"
            )


def _check(index: Tensor, place: int, sizes: Sequence[int]) -> None:
    """Raises on all ranks where an index, of several, is out of range on any of them."""

    def use(wrong: Tensor) -> Tensor:
        before = [torch.zeros_like(wrong)] * place
        return torch.zeros(()).expand(tuple(sizes))[(*before, wrong)]

    check_range(index, sizes[place], use, from_end=True)


def _check_values(input: Tensor, values: Tensor, shape: tuple[int, ...]) -> None:
    """Raises what torch raises where values don't fit."""
    first = (torch.zeros(1, dtype=torch.int64),)
    torch.zeros(1, dtype=input.dtype).index_put(first, torch.zeros(1, dtype=values.dtype))
    shift = len(shape) - values.ndim
    fits = shift >= 0 and all(
        size in (1, wanted) for size, wanted in zip(values.shape, shape[shift:], strict=True)
    )
    if not fits:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {list(shape)}"
        )


def _at(input: Tensor, dims: Sequence[int], *tensors: Tensor) -> Tensor:
    """A tensor indexed by tensors along these dimensions."""
    parts: list[Any] = [_WHOLE] * input.ndim
    for dim, tensor in zip(dims, tensors, strict=True):
        parts[dim] = tensor
    return input[tuple(parts)]


def _cut_once(input: Tensor, dims: Sequence[int]) -> Tensor:
    """The tensor with one of these dimensions cut, at most: the longest."""
    if not isinstance(input, ShardTensor):
        return input
    layout: Layout = input.sharding
    cut = [axis for axis, each in layout.cut_axes() if each.dim in dims]
    for axis in sorted(cut, key=lambda axis: -layout.cuts[axis].total)[1:]:  # type: ignore[union-attr]
        layout = layout.with_cut(axis, None)
    return input.redistribute(layout)


def _cut_first(input: Tensor, dims: Sequence[int]) -> list[int]:
    """The dimensions, that which is cut before others, so that its pieces stay consecutive."""
    if not isinstance(input, ShardTensor):
        return list(dims)
    cut = {each.dim for _, each in input.sharding.cut_axes()}
    return sorted(dims, key=lambda dim: dim not in cut)
