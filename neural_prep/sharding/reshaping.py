"""What a change of shape does to cuts, worked out from shapes alone.

Dimensions before and after fall into groups of equal size, as few as can be each. A cut survives
where it is of a group's outermost dimension and its pieces end between elements of the new
outermost one: then pieces stay consecutive, and no data move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from neural_prep.sharding.layout import Cut, Layout, split_sizes

Group = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Reshape:
    """How to change a shape.

    Attributes:
        needed: The layout in which every rank can do so with its own piece.
        result: The layout afterwards.
    """

    needed: Layout
    result: Layout


def full_shape(before: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The shape with -1 filled in.

    Raises:
        RuntimeError: if it is no shape of as many elements, as torch words it.

    >>> full_shape((6, 4), (3, -1))
    (3, 8)
    """
    error = RuntimeError(f"shape '{list(wanted)}' is invalid for input of size {prod(before)}")
    if list(wanted).count(-1) > 1:
        raise RuntimeError("only one dimension can be inferred")
    if any(size < -1 for size in wanted):
        raise RuntimeError(f"invalid shape dimension {min(wanted)}")
    known = prod(size for size in wanted if size != -1)
    if -1 not in wanted:
        if known != prod(before):
            raise error
        return tuple(wanted)
    if known == 0 or prod(before) % known:
        raise error
    return tuple(prod(before) // known if size == -1 else size for size in wanted)


def plan_reshape(layout: Layout, before: Sequence[int], after: Sequence[int]) -> Reshape:
    """Which layout a change of shape needs, and which one it leaves.

    Where a cut can't survive, its axis cuts the group's outermost dimension instead, or nothing.
    """
    needed, result = layout, layout.with_dims({})
    groups = _groups(before, after)
    for axis, cut in layout.cut_axes():
        survived = _survive(cut, before, after, groups)
        if survived is None:
            needed = needed.with_cut(axis, None)
            continue
        old, new = survived
        taken = {other.dim for which, other in needed.cut_axes() if which != axis}
        if old.dim in taken:
            needed = needed.with_cut(axis, None)
            continue
        needed, result = needed.with_cut(axis, old), result.with_cut(axis, new)
    return Reshape(needed, result)


def _survive(
    cut: Cut, before: Sequence[int], after: Sequence[int], groups: Sequence[Group]
) -> tuple[Cut, Cut] | None:
    """The nearest cut that is still one afterwards, and what becomes of it."""
    same_place = tuple(before[: cut.dim + 1]) == tuple(after[: cut.dim + 1])
    if prod(before) == 0 or before[cut.dim] == 1:
        return (cut, cut) if same_place else None
    old, new = next((old, new) for old, new in groups if cut.dim in old)
    inner, new_inner = prod(before[dim] for dim in old[1:]), prod(after[dim] for dim in new[1:])
    unit = new_inner // gcd(inner, new_inner)  # pieces end at multiples of this
    kept = cut
    if cut.dim != old[0] or any(size % unit for size in cut.sizes):
        rows = split_sizes(before[old[0]] // unit, len(cut.sizes))
        kept = Cut(old[0], tuple(count * unit for count in rows))
    return kept, Cut(new[0], tuple(size * inner // new_inner for size in kept.sizes))


def _groups(before: Sequence[int], after: Sequence[int]) -> list[Group]:
    """Dimensions longer than 1, before and after, that make up the same elements.

    >>> _groups((2, 3, 1, 4), (6, 2, 2))
    [((0, 1), (0,)), ((3,), (1, 2))]
    """
    old = [dim for dim, size in enumerate(before) if size != 1]
    new = [dim for dim, size in enumerate(after) if size != 1]
    groups: list[Group] = []
    while old and new and prod(before) > 0:
        left, right = [old.pop(0)], [new.pop(0)]
        while (a := prod(before[d] for d in left)) != (b := prod(after[d] for d in right)):
            if a < b:
                left.append(old.pop(0))
            else:
                right.append(new.pop(0))
        groups.append((tuple(left), tuple(right)))
    return groups
