"""How work by index is divided over ranks, when an index means rows of a dimension that may be cut.

An index has items: rows that are taken, or values that are put. Along each mesh axis one of their
dimensions is cut. It is one that they share with what is indexed, which is then cut alike; or it is
their own, and rows travel if the axis cuts these.

Dimensions that items share with what is indexed are labelled by its number, their own by text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from neural_prep.sharding.adjoint import enter, gather, split
from neural_prep.sharding.contractions import Label, Labels
from neural_prep.sharding.layout import Cut, Layout, split_sizes
from neural_prep.sharding.operands import layout_of
from neural_prep.sharding.redistribute import relayout
from neural_prep.sharding.routing import collect, deliver, plan_route
from neural_prep.sharding.shard_tensor import shards_in, to_local

Cuts = list[tuple[Label, tuple[int, ...]] | None]


@dataclass(frozen=True, slots=True)
class Division:
    """Who works on what.

    Attributes:
        input: How what is indexed is cut.
        dim: Its dimension that is indexed.
        axis: The mesh axis that cuts this dimension; None: every rank has all rows.
        cuts: For each mesh axis the label of the items that is cut, with every rank's part; None:
            all ranks have the same items.
    """

    input: Layout
    dim: int
    axis: int | None
    cuts: tuple[tuple[Label, tuple[int, ...]] | None, ...]

    def layout(self, labels: Labels) -> Layout:
        """How a tensor with these labels is cut."""
        return Layout(self.input.mesh, tuple(_cut(cut, labels) for cut in self.cuts))

    def piece(self, tensor: Tensor, labels: Labels) -> Tensor:
        """This rank's piece of items."""
        return relayout(to_local(tensor), layout_of(tensor, self.input), self.layout(labels))

    def indexed(self, tensor: Tensor) -> Tensor:
        """This rank's piece of what is indexed; where ranks share it, gradients are summed."""
        local = relayout(to_local(tensor), layout_of(tensor, self.input), self.input)
        for axis, cut in enumerate(self.cuts):
            if cut is not None and self.input.cuts[axis] is None:
                local = enter(local, self.input.group(axis))
        return local

    def take(self, rows: Tensor, index: Tensor, width: int = 1) -> Tensor:
        """The row that each item means, from whoever has it.

        Args:
            rows: `(rows, ...)`, this rank's.
            index: `(M,)`, global.
            width: How many of the rows make one along the dimension that is cut.
        """
        route = plan_route(self._share(index), self._sizes(width), self._group, once=True)
        found = collect(rows, route)
        if self._is_divided:
            return found
        return gather(found, split_sizes(len(index), self._ranks), 0, self._group)

    def put(
        self, index: Tensor, values: Tensor | None, *, sums: bool, width: int = 1
    ) -> tuple[Tensor, Tensor | None]:
        """The rows of this rank that items mean, and what all ranks have for them.

        Args:
            index: `(M,)`, global.
            values: `(M, ...)`.
            sums: Whether values for one row may be added up.
            width: As in `take`.
        """
        route = plan_route(self._share(index), self._sizes(width), self._group, once=sums)
        return route.rows, None if values is None else deliver(self._share(values), route)

    def flat_index(self, index: Tensor, shape: Sequence[int]) -> Tensor:
        """For each element of an index its element of a tensor that is flattened, `dim` first.

        Args:
            index: This rank's piece, with a dimension for each of the tensor's.
            shape: The shape of this rank's piece of the tensor.
        """
        others = [dim for dim in range(len(shape)) if dim != self.dim]
        found = index.movedim(self.dim, 0) * prod(shape[dim] for dim in others)
        for place, dim in enumerate(others):
            numbers = torch.arange(index.shape[dim], device=index.device) + self._first(dim)
            later = others[place + 1 :]
            stride = prod(shape[each] for each in later)
            found = found + numbers.reshape(-1, *[1] * len(later)) * stride
        return found.reshape(-1)

    def _first(self, dim: int) -> int:
        """The global index of the items' first one, in a dimension that the rows have whole."""
        cut = self.cuts[self.axis] if self.axis is not None else None
        if cut is None or cut[0] != dim:
            return 0
        assert self.axis is not None
        return sum(cut[1][: self.input.rank(self.axis)])

    def _sizes(self, width: int) -> list[int]:
        assert self.axis is not None
        cut = self.input.cuts[self.axis]
        assert cut is not None
        return [size * width for size in cut.sizes]

    def _share(self, items: Tensor) -> Tensor:
        """This rank's share of items that all ranks along the axis have."""
        if self._is_divided:
            return items
        return split(items, split_sizes(len(items), self._ranks), 0, self._group)

    @property
    def _is_divided(self) -> bool:
        return self.axis is not None and self.cuts[self.axis] is not None

    @property
    def _ranks(self) -> int:
        assert self.axis is not None
        return int(self.input.mesh.size(self.axis))

    @property
    def _group(self) -> ProcessGroup:
        assert self.axis is not None
        return self.input.group(self.axis)


def divide_items(
    input: Tensor,
    dim: int,
    items: Sequence[tuple[Tensor, Labels]],
    *,
    puts: bool,
    by_element: bool = False,
) -> Division:
    """Divides work so that what is indexed stays as it is, and then the items.

    Items that every rank has are divided where rows travel; what is indexed and is whole is divided
    where items are cut and are put into it.

    Args:
        input: What is indexed.
        dim: Its dimension that is indexed, not negative.
        items: The index, and then the values, with their labels. All sizes fit, but items may have
            fewer elements than the input along dimensions that they share.
        puts: Whether values are put into rows; else rows are taken.
        by_element: Whether the index has an element for each one of the items; else for each row.
    """
    like = next(shards_in([input, *(tensor for tensor, _ in items)])).sharding
    sizes: dict[Label, int] = {}
    for tensor, labels in items:
        sizes.update(zip(labels, tensor.shape, strict=True))
    target = layout_of(input, like)
    rows = target.axis_of(dim)
    cuts: Cuts = [None] * like.mesh.ndim
    for axis, cut in target.cut_axes():
        if axis != rows:
            cuts[axis] = (cut.dim, leading(cut.sizes, sizes.get(cut.dim, cut.total)))
    for tensor, labels in items:
        for axis, cut in layout_of(tensor, like).cut_axes():
            label = labels[cut.dim]
            if cuts[axis] is not None or _is_taken(label, cuts):
                continue
            if isinstance(label, int):
                if axis == rows and not by_element:
                    continue  # a whole row goes to who has it
                if axis != rows:
                    own = Cut(label, _filled_up(cut.sizes, input.shape[label]))
                    target = target.with_cut(axis, own)
            elif puts and axis != rows:
                if rows is not None:
                    continue  # other ranks along this axis have the same rows
                rows = axis
                own = Cut(dim, split_sizes(input.shape[dim], like.mesh.size(axis)))
                target = target.with_cut(axis, own)
            cuts[axis] = (label, cut.sizes)
    if rows is not None and cuts[rows] is None:
        cuts[rows] = _share_out(target, rows, cuts, sizes, by_element)
    return Division(target, dim, rows, tuple(cuts))


def _share_out(
    target: Layout, axis: int, cuts: Cuts, sizes: dict[Label, int], by_element: bool
) -> tuple[Label, tuple[int, ...]] | None:
    """Divides items that every rank has: as rows are, or as evenly as can be."""
    free = [
        label
        for label, size in sizes.items()
        if size > 1 and not _is_taken(label, cuts) and (by_element or isinstance(label, str))
    ]
    if not free:
        return None
    label = max(free, key=lambda each: (isinstance(each, str), sizes[each]))
    rows = target.cuts[axis]
    assert rows is not None
    if isinstance(label, str) and rows.total == sizes[label]:
        return label, rows.sizes
    return label, split_sizes(sizes[label], len(rows.sizes))


def _is_taken(label: Label, cuts: Cuts) -> bool:
    return any(cut is not None and cut[0] == label for cut in cuts)


def _cut(cut: tuple[Label, tuple[int, ...]] | None, labels: Labels) -> Cut | None:
    if cut is None or cut[0] not in labels:
        return None
    return Cut(list(labels).index(cut[0]), cut[1])


def leading(sizes: Sequence[int], total: int) -> tuple[int, ...]:
    """The parts of the first `total` elements.

    >>> leading((3, 0, 4), 5)
    (3, 0, 2)
    """
    ends = [min(sum(sizes[: rank + 1]), total) for rank in range(len(sizes))]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def _filled_up(sizes: Sequence[int], total: int) -> tuple[int, ...]:
    """The same parts, but that the last one has all that is left.

    >>> _filled_up((3, 0, 2), 9)
    (3, 0, 6)
    """
    return (*sizes[:-1], total - sum(sizes[:-1]))
