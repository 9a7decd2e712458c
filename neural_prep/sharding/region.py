"""Regions of a cut tensor, a range of global indices along each dimension: who has which part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neural_prep.sharding.layout import Cut, Layout


def spelled_out(parts: Sequence[Any], ndim: int) -> list[Any]:
    """An index with one part for each dimension, and None for each new one.

    >>> spelled_out([None, ..., 2], 3)
    [None, slice(None, None, None), slice(None, None, None), 2]
    """
    missing = ndim - sum(part is not None and part is not Ellipsis for part in parts)
    place = next((n for n, part in enumerate(parts) if part is Ellipsis), len(parts))
    after = [part for part in parts[place + 1 :] if part is not Ellipsis]
    return [*parts[:place], *[slice(None)] * missing, *after]


def cut_region(layout: Layout, wanted: Sequence[range]) -> tuple[Layout, tuple[slice, ...]]:
    """How a region is cut, and where this rank's part of it lies in its piece.

    Args:
        layout: How the whole tensor is cut.
        wanted: The global indices along each dimension, ascending.
    """
    own = [slice(each.start, max(each.stop, each.start), each.step) for each in wanted]
    for axis, cut in layout.cut_axes():
        parts = [
            _overlap(wanted[cut.dim], start, size)
            for start, size in zip(cut.starts, cut.sizes, strict=True)
        ]
        own[cut.dim] = parts[layout.rank(axis)]
        counts = [len(range(part.start, part.stop, part.step)) for part in parts]
        layout = layout.with_cut(axis, Cut(cut.dim, tuple(counts)))
    return layout, tuple(own)


def meet(wanted: range, start: int, size: int) -> range:
    """The indices of a range with step 1 that are in `size` ones from `start` on.

    >>> meet(range(1, 10), 4, 3)
    range(4, 7)
    """
    return range(max(wanted.start, start), min(wanted.stop, start + size))


def _overlap(wanted: range, start: int, size: int) -> slice:
    """The part of a range that lies in a piece, counted from the piece's first element.

    >>> _overlap(range(1, 10, 3), 3, 4)
    slice(1, 4, 3)
    """
    skipped = max(0, -(-(start - wanted.start) // wanted.step))
    first = wanted.start + skipped * wanted.step - start
    stop = min(wanted.stop - start, size)
    return slice(min(first, size), max(stop, min(first, size)), wanted.step)
