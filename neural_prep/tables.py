"""Plain tables of names and numbers, which are never cut or wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Blank cells between two columns."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its header, which may have several lines, and its cells."""

    header: str
    cells: tuple[str, ...]
    justify: Literal["left", "right"] = "right"

    @property
    def width(self) -> int:
        """Cells that it takes."""
        return max(cell_len(line) for line in (*self.header.split("\n"), *self.cells))


def cells(columns: Sequence[Column]) -> int:
    """Width of columns that stand to the right of another one."""
    return sum(_GAP + column.width for column in columns)


def make_table(columns: Sequence[Column]) -> Table:
    """A table in its natural width, even where the console is narrower."""
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, _GAP - 1),  # the box adds one cell
        width=cells(columns) - _GAP,
    )
    for column in columns:
        header = Text(column.header)
        table.add_column(header, justify=column.justify, no_wrap=True, vertical="bottom")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))  # as text: a unit such as [m] is no markup
    return table
