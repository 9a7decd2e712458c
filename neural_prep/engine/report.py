"""The table at the end: each group's statistics at a glance, then what a person should look at.

Where a table is wider than the terminal, its columns go on in a further table that repeats the
variables' names: names and numbers are never cut or wrapped.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from neural_prep.stats.review import warnings_of
from neural_prep.stats.statistics import GroupStatistics, Statistics
from neural_prep.tables import Column, cells, make_table


def show(statistics: Statistics, console: Console | None = None) -> None:
    """Prints the tables and the warnings, plain where the console is no terminal."""
    console = console or Console()
    for group in statistics.groups:
        console.print(_title(group))
        for table in _tables(group, console.width):
            console.print(table, crop=False)
            console.print()
    for line in warnings_of(statistics):
        console.print(Text(f"warning: {line}", style="yellow"), soft_wrap=True)


def render(statistics: Statistics, width: int = 80) -> str:
    """The same as plain text for a page of `width` columns."""
    page = io.StringIO()
    show(statistics, Console(file=page, width=width, force_terminal=False, color_system=None))
    return page.getvalue()


def format_number(value: float) -> str:
    """Six significant digits; `-` where there is no number.

    >>> [format_number(value) for value in (273.15, 101325.0, 2.5e-06, 0.0, math.nan)]
    ['273.150', '101325', '2.50000e-06', '0', '-']
    """
    if math.isnan(value):
        return "-"
    return f"{value:#.6g}".removesuffix(".") if value else "0"


def _title(group: GroupStatistics) -> Text:
    size = len(group.variables)
    return Text(f"{group.name}: {size} variable{'' if size == 1 else 's'}", style="bold")


def _tables(group: GroupStatistics, width: int) -> Iterator[Table]:
    names = Column("variable", group.variables, "left")
    for columns in _pages(_counts(group), _numbers(group), width - names.width):
        yield make_table([names, *columns])


def _counts(group: GroupStatistics) -> list[Column]:
    return [
        Column("unit", tuple(unit or "" for unit in group.units), "left"),
        Column("count", tuple(f"{count:,}" for count in group.values.count.tolist())),
        Column("missing", tuple(f"{count:,}" for count in group.values.missing.tolist())),
    ]


def _numbers(group: GroupStatistics) -> list[Column]:
    headers = ["mean", "std", *(f"diff std\nlag {lag}" for lag, _ in group.differences)]
    arrays = [group.values.mean, group.values.std, *(pairs.std for _, pairs in group.differences)]
    return [
        Column(header, tuple(map(format_number, array.tolist())))
        for header, array in zip(headers, arrays, strict=True)
    ]


def _pages(counts: list[Column], numbers: list[Column], room: int) -> Iterator[Sequence[Column]]:
    """The columns in order: in one page where `room` cells are enough, else the counts first."""
    if cells(counts + numbers) <= room:
        yield counts + numbers
        return
    yield from _filled_pages(counts, room)
    yield from _filled_pages(numbers, room)


def _filled_pages(columns: Sequence[Column], room: int) -> Iterator[Sequence[Column]]:
    """As many columns at a time as fit into `room` cells, and at least one."""
    page: list[Column] = []
    for column in columns:
        if page and cells([*page, column]) > room:
            yield page
            page = []
        page.append(column)
    yield page
