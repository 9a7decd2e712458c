"""Which way a message between two ranks goes."""

from __future__ import annotations

from typing import NamedTuple


class Way(NamedTuple):
    """From one rank to another in a group; -1 where a receiver takes what comes."""

    group: str
    source: int
    target: int
