"""A forecast for people, as tables and two lines, and for programs, as JSON."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from neural_prep.engine.forecast import Forecast, GroupForecast, Memory, Shares
from neural_prep.engine.plan import Plan
from neural_prep.tables import Column, make_table

SCHEMA = "neural-prep/plan/1"
_SHARES = {
    "blocks": ("blocks", "{:,}".format),
    "bytes": ("bytes", decimal),
    "again": ("read again for lags", decimal),
    "records": ("records sent at the end", "{:,}".format),
}
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def describe(plan: Plan, forecast: Forecast, split: str | None) -> dict[str, Any]:
    """The forecast as a document."""
    return {
        "schema": SCHEMA,
        "source": {"path": plan.source.path, "layout": plan.source.layout, "split": split},
        "lags": list(plan.lags),
        "groups": {
            group.name: {key: value for key, value in asdict(group).items() if key != "name"}
            for group in forecast.groups
        },
        "total": {key: _total(forecast, key) for key in ("bytes", "blocks", "pieces", "objects")}
        | {"again": forecast.again},
        "ranks": {
            "count": forecast.ranks,
            "nodes": forecast.nodes,
            "threads": forecast.threads,
            **asdict(forecast.shares),
        },
        "memory": asdict(forecast.memory) | {"total": forecast.memory.total},
        "gathered": forecast.gathered,
        "time": {"rate": forecast.rate, "seconds": forecast.seconds},
    }


def show(
    plan: Plan,
    forecast: Forecast,
    *,
    split: str | None,
    assumed: bool,
    console: Console | None = None,
) -> None:
    """Prints the tables and the two lines.

    Args:
        plan: The plan.
        forecast: What it takes.
        split: The split that is read.
        assumed: Whether the rate is the default.
        console: Where to print.
    """
    console = console or Console()
    of = f", split {split}" if split else ""
    console.print(Text(f"{plan.source.path}: layout {plan.source.layout}{of}"), soft_wrap=True)
    console.print(make_table(_group_columns(forecast)), crop=False)
    console.print()
    ranks = f"{_count(forecast.ranks, 'rank')} on {_count(forecast.nodes, 'node')}"
    threads = f"{_count(forecast.threads, 'thread')}{' each' if forecast.ranks > 1 else ''}"
    console.print(Text(f"{ranks}, {threads}"))
    console.print(make_table(_share_columns(forecast.shares)), crop=False)
    console.print()
    console.print(Text(_memory(forecast.memory)), soft_wrap=True)
    rate = f"{decimal(forecast.rate)}/s a rank"
    note = " (assumed: --rate says what a rank of yours does)" if assumed else ""
    console.print(Text(f"time: {duration(forecast.seconds)} at {rate}{note}"), soft_wrap=True)


def duration(seconds: float) -> str:
    """A time in its two largest units.

    >>> [duration(seconds) for seconds in (0.2, 59.6, 3_725, 200_000)]
    ['under 1 s', '1 min 0 s', '1 h 2 min', '2 d 7 h']
    """
    whole = round(seconds)
    if whole < 1:
        return "under 1 s"
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def _group_columns(forecast: Forecast) -> list[Column]:
    names = [field.name for field in fields(GroupForecast) if field.name not in ("name", "bytes")]
    groups = forecast.groups
    columns = [
        Column(name, tuple(f"{getattr(group, name):,}" for group in groups)) for name in names
    ]
    nbytes = Column("bytes", tuple(decimal(group.bytes) for group in groups))
    return [Column("group", tuple(group.name for group in groups), "left"), *columns, nbytes]


def _share_columns(shares: Shares) -> list[Column]:
    rows = [(label, getattr(shares, name), text) for name, (label, text) in _SHARES.items()]
    return [
        Column("of a rank", tuple(label for label, _, _ in rows), "left"),
        Column("least", tuple(text(spread.min) for _, spread, text in rows)),
        Column("most", tuple(text(spread.max) for _, spread, text in rows)),
    ]


def _memory(memory: Memory) -> str:
    parts = ", ".join(f"{name} {decimal(nbytes)}" for name, nbytes in asdict(memory).items())
    return f"memory: at most {decimal(memory.total)} a rank: {parts}"


def _total(forecast: Forecast, key: str) -> int:
    return sum(getattr(group, key) for group in forecast.groups)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
