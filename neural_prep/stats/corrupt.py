"""A part of a store that could not be decoded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CorruptChunk:
    """A chunk, or a file, that could not be decoded and counts as missing values.

    Attributes:
        array: The array, or the group where each file is an array.
        chunk: Its key in the store.
        first: Its first time; None where it has none.
        last: Its last time.
    """

    array: str
    chunk: str
    first: str | None
    last: str | None
