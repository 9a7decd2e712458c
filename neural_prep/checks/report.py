"""The table of a run of checks, what is wrong with those that don't hold, and a last line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from neural_prep.checks.check import Part
from neural_prep.checks.verdict import Verdict
from neural_prep.tables import Column, make_table

_HEADERS = {
    Part.OUTPUT: "output\nerror",
    Part.INPUT: "input gradient\nerror",
    Part.PARAMETER: "parameter\ngradient error",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A case that has run."""

    name: str
    ranks: int
    verdict: Verdict
    seconds: float


def show(rows: Sequence[Row], ranks: int, left_out: int, ended: str = "") -> None:
    """Prints it, plain where standard output is no terminal.

    Args:
        rows: The cases that have run.
        ranks: Number of ranks.
        left_out: How many cases are for other ranks, or have no such dtype.
        ended: Why others did not run.
    """
    console = Console()
    if rows:
        console.print(make_table(_columns(rows)), crop=False)
        console.print()
    show_wrong(console, [row for row in rows if not row.verdict.holds])
    if ended:
        console.print(Text(ended, style="bold red"), soft_wrap=True)
    console.print(Text(last_line(rows, ranks, left_out)), soft_wrap=True)


def show_wrong(console: Console, rows: Sequence[Row]) -> None:
    """Prints what is wrong with cases."""
    for row in rows:
        console.print(Text(f"{row.name} {row.verdict.word}", style="bold red"), soft_wrap=True)
        for line in row.verdict.lines:
            console.print(Text(_indented(line)), soft_wrap=True)
        console.print()


def last_line(rows: Sequence[Row], ranks: int, left_out: int) -> str:
    """What it comes to.

    >>> last_line([Row("a", 2, Verdict(), 0.5), Row("b", 2, Verdict("differs"), 0.25)], 2, 3)
    '1 of 2 cases holds on 2 ranks, in 0.8 s; 3 left out'
    """
    holding = sum(row.verdict.holds for row in rows)
    count = f"{holding} of {len(rows)}" if holding < len(rows) else f"{holding}"
    cases = "case" if holding == len(rows) == 1 else "cases"
    holds = "holds" if holding == 1 else "hold"
    where = f"{ranks} rank{'s' * (ranks != 1)}"
    seconds = sum(row.seconds for row in rows)
    rest = f"; {left_out} left out" if left_out else ""
    return f"{count} {cases} {holds} on {where}, in {seconds:.1f} s{rest}"


def format_error(error: float | None) -> str:
    """An error in two digits; `-` where nothing was compared.

    >>> [format_error(error) for error in (None, 0.0, 3.14e-16, float("inf"))]
    ['-', '0', '3.1e-16', 'inf']
    """
    if error is None:
        return "-"
    return f"{error:.1e}" if error else "0"


def _columns(rows: Sequence[Row]) -> list[Column]:
    errors = [
        Column(header, tuple(format_error(row.verdict.errors.get(part)) for row in rows))
        for part, header in _HEADERS.items()
    ]
    return [
        Column("case", tuple(row.name for row in rows), "left"),
        Column("ranks", tuple(str(row.ranks) for row in rows)),
        *errors,
        Column("verdict", tuple(row.verdict.word for row in rows), "left"),
        Column("seconds", tuple(f"{row.seconds:.3f}" for row in rows)),
    ]


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
