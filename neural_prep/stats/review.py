"""What a person should look at in a result: variables whose numbers are right but seldom wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from neural_prep.stats.corrupt import CorruptChunk
from neural_prep.stats.statistics import GroupStatistics, Statistics, Summary

MUCH_MISSING = 0.01
"""Share of missing values above which a variable is named."""

NAMED = 3
"""Corrupt chunks that are named."""


def warnings_of(statistics: Statistics) -> list[str]:
    """One line for each thing to look at, group by group, in the order of the variables."""
    lines = [line for group in statistics.groups for line in _warnings(group)]
    return [*_of_corrupt(statistics.source.corrupt), *lines]


def _of_corrupt(chunks: Sequence[CorruptChunk]) -> Iterator[str]:
    if chunks:
        named = ", ".join(each.chunk for each in chunks[:NAMED])
        more = f" and {len(chunks) - NAMED:,} more" if len(chunks) > NAMED else ""
        verb = "chunks are corrupt and count" if len(chunks) > 1 else "chunk is corrupt and counts"
        yield f"{len(chunks):,} {verb} as missing: {named}{more}"


def _warnings(group: GroupStatistics) -> Iterator[str]:
    for v in range(len(group.variables)):
        yield from _of_values(group, v)
    for lag, pairs in group.differences:
        yield from _of_pairs(group, lag, pairs)


def _of_values(group: GroupStatistics, v: int) -> Iterator[str]:
    values, label = group.values, f"{group.name}: {group.variables[v]}"
    count, missing = int(values.count[v]), int(values.missing[v])
    if count == 0:
        yield f"{label} has no value: all {missing:,} are missing"
        return
    if missing > MUCH_MISSING * (count + missing):
        share = 100 * missing / (count + missing)
        yield f"{label} lacks {share:.3g} % of its values: {missing:,} of {count + missing:,}"
    if values.constant[v]:
        yield f"{label} is constant: every value is {values.mean[v]:.15g}"


def _of_pairs(group: GroupStatistics, lag: int, pairs: Summary) -> Iterator[str]:
    """A lag without pairs; variables without values are left out, having been named already."""
    present = group.values.count > 0
    lacking = np.flatnonzero(present & (pairs.count == 0))
    if lacking.size == 0:
        return
    if pairs.missing[lacking].any():
        reason = "a value is missing at one end of each"
    else:
        reason = f"no trajectory has more than {lag} step{'s' if lag > 1 else ''}"
    if lacking.size == np.count_nonzero(present):
        yield f"{group.name}: no pair of steps for lag {lag}: {reason}"
        return
    for v in lacking:
        yield f"{group.name}: {group.variables[v]} has no pair of steps for lag {lag}: {reason}"
