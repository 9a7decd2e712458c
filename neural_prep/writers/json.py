"""Format `json`: `statistics.json`, the contract that other tools read.

Numbers read back to the same float64; what does not exist is null. Each list stands on one line,
so that a person can read the file, and compare two line by line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import neural_prep
from neural_prep.stats.statistics import GroupStatistics, SourceInfo, Statistics, Summary
from neural_prep.writers.formats import FormatOptions

SCHEMA = "neural-prep/statistics/1"
FILE = "statistics.json"
FILES = (FILE,)


def check(groups: Mapping[str, Sequence[str]], lags: Sequence[int], options: FormatOptions) -> None:
    """Every result can be written as JSON."""


def render(statistics: Statistics, options: FormatOptions) -> dict[str, bytes]:
    """The content of `statistics.json`."""
    text = "".join(f"{line}\n" for line in _lines(document(statistics, datetime.now(UTC))))
    return {FILE: text.encode()}


def document(statistics: Statistics, created: datetime) -> dict[str, Any]:
    """The file's content: strings, ints, floats, bools, None, and lists and dicts of them."""
    return {
        "schema": SCHEMA,
        "neural_prep": neural_prep.__version__,
        "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "source": _source(statistics.source),
        "run": asdict(statistics.run),
        "groups": {group.name: _group(group) for group in statistics.groups},
    }


def _source(source: SourceInfo) -> dict[str, Any]:
    """What was counted; `corrupt` only where a chunk was."""
    described = asdict(source)
    del described["corrupt"]
    corrupt = [
        {"array": each.array, "chunk": each.chunk, "from": each.first, "to": each.last}
        for each in source.corrupt
    ]
    return described | ({"corrupt": corrupt} if corrupt else {})


def _group(group: GroupStatistics) -> dict[str, Any]:
    return {
        "variables": list(group.variables),
        "units": list(group.units),
        **_summary(group.values),
        "differences": [{"lag": lag, **_summary(pairs)} for lag, pairs in group.differences],
    }


def _summary(summary: Summary) -> dict[str, list[Any]]:
    return {
        "count": summary.count.tolist(),
        "missing": summary.missing.tolist(),
        "mean": [_number(value) for value in summary.mean.tolist()],
        "std": [_number(value) for value in summary.std.tolist()],
        "min": [_number(value) for value in summary.min.tolist()],
        "max": [_number(value) for value in summary.max.tolist()],
        "constant": summary.constant.tolist(),
    }


def _number(value: float) -> float | None:
    """JSON has neither NaN (no value exists) nor infinity (the std does not fit into float64)."""
    return value if math.isfinite(value) else None


def _lines(value: Any) -> Iterator[str]:
    """JSON text: dicts and lists of dicts over indented lines, any other value on one line."""
    match value:
        case dict() if value:
            brackets, items = "{}", [(f"{json.dumps(key)}: ", each) for key, each in value.items()]
        case [dict(), *_]:
            brackets, items = "[]", [("", each) for each in value]
        case _:
            yield json.dumps(value, allow_nan=False)
            return
    yield brackets[0]
    for position, (key, each) in enumerate(items, start=1):
        lines = list(_lines(each))
        lines[0] = key + lines[0]
        lines[-1] += "," if position < len(items) else ""
        yield from (f"  {line}" for line in lines)
    yield brackets[1]
