"""What was measured: tables, and bounds that hold or are missed; as text and as JSON."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any


@dataclass(frozen=True, slots=True)
class Rates:
    """A contender's rounds, of which the best counts.

    Attributes:
        seconds: Of each round.
        nbytes: What it went through in each of them.
    """

    seconds: Sequence[float]
    nbytes: int

    @property
    def best(self) -> float:
        """Seconds of the best round."""
        return min(self.seconds)

    def over(self, other: Rates) -> float:
        """How many times as fast as another contender."""
        return other.best / self.best

    def __str__(self) -> str:
        """GB/s of the best and of the worst round."""
        rates = (self.nbytes / 1e9 / seconds for seconds in (self.best, max(self.seconds)))
        return "{} ({})".format(*map(short, rates))


@dataclass(frozen=True, slots=True)
class Bound:
    """What some numbers have to reach.

    Attributes:
        what: What the numbers are.
        limit: What they are held against.
        least: Whether that is the least, else it is the most.
        found: The numbers, each with what it belongs to.
    """

    what: str
    limit: float
    least: bool
    found: dict[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether all numbers reach it."""
        return not self.missed

    @property
    def missed(self) -> list[str]:
        """Whose numbers don't."""
        return [
            name
            for name, value in self.found.items()
            if (value < self.limit if self.least else value > self.limit)
        ]

    def __str__(self) -> str:
        """One line, those that miss it first."""
        missed = self.missed
        order = sorted(self.found, key=lambda name: name not in missed)
        numbers = ", ".join(f"{name} {short(self.found[name])}" for name in order)
        relation = "at least" if self.least else "at most"
        verdict = f"misses {len(missed)} of {len(order)}" if missed else "holds"
        return f"{self.what}, {relation} {self.limit:g}: {verdict} ({numbers})"


@dataclass
class Section:
    """One group of measurements.

    Attributes:
        title: What they are.
        rows: The table: each row's cells by column.
        bounds: What they are held against, by name.
        notes: What a reader should know, one line each.
    """

    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    bounds: dict[str, Bound] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def hold(self, what: str, limit: float, who: str, value: float, *, least: bool) -> None:
        """Holds a number against a bound."""
        self.bounds.setdefault(what, Bound(what, limit, least)).found[who] = value

    def lines(self) -> list[str]:
        """The table and the notes."""
        if not self.rows:
            return [self.title, *self.notes]
        columns = list(dict.fromkeys(column for row in self.rows for column in row))
        cells = [columns, *([short(row.get(c, "-")) for c in columns] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        table = [
            "  ".join(
                [f"{row[0]:<{widths[0]}}"]
                + [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
            )
            for row in cells
        ]
        return [self.title, *table, *self.notes]


def short(value: object) -> str:
    """A cell's text: numbers with about three digits.

    >>> [short(value) for value in (0.02345, 1.234, 43.21, 812.3, "zstd")]
    ['0.023', '1.23', '43.2', '812', 'zstd']
    """
    if not isinstance(value, float):
        return str(value)
    return f"{value:.{sum(abs(value) < limit for limit in (0.1, 10, 100))}f}"


def to_json(sections: Sequence[Section], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """All of it, numbers unrounded and each round's seconds too."""
    return {
        "python": platform.python_version(),
        "versions": {
            name: version(name) for name in ("neural-prep", "numpy", "numba", "torch", "zarr")
        },
        "arguments": {name: _plain(value) for name, value in arguments.items()},
        "sections": [
            {
                "title": section.title,
                "rows": [{c: _plain(value) for c, value in row.items()} for row in section.rows],
                "bounds": [asdict(b) | {"holds": b.holds} for b in section.bounds.values()],
                "notes": section.notes,
            }
            for section in sections
        ],
    }


def _plain(value: object) -> object:
    if isinstance(value, Rates):
        return {"seconds": list(value.seconds), "nbytes": value.nbytes}
    return value if isinstance(value, int | float | str | list | None) else str(value)
