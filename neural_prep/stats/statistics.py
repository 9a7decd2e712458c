"""The result: every variable's statistics in physical units, unpacked from the records.

Stored values are unpacked only here. Each mean is unpacked in exact rational arithmetic and
rounded once, because `scale * mean + offset` in float64 loses the digits that the record carries
where the offset cancels the mean; that costs microseconds a variable.

Legend: V variables, L lags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from neural_prep.stats.corrupt import CorruptChunk
from neural_prep.stats.moments import COUNT, M2, M2_LOW, MAX, MEAN, MEAN_LOW, MIN, MISSING, Record

STATIC = "static"
"""Name of the group whose fields have no time, and so no differences."""


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Statistics of V variables: of their values, or of their differences over one lag.

    Attributes:
        count: Finite values (or pairs with both), `(V,)` int64.
        missing: Values that are missing (or pairs with either), `(V,)` int64.
        mean: `(V,)` float64; NaN where there is no value, as in the next three.
        std: Population standard deviation (ddof 0), exactly 0 where `min == max`.
        min: Smallest value.
        max: Largest value.
        constant: Whether there are values and all are equal, `(V,)` bool.
    """

    count: NDArray[np.int64]
    missing: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    constant: NDArray[np.bool_]

    def __post_init__(self) -> None:
        shapes = {field.name: getattr(self, field.name).shape for field in fields(self)}
        if set(shapes.values()) != {(self.count.size,)}:
            raise ValueError(f"a summary's arrays differ in shape: {shapes}; give one value each")


@dataclass(frozen=True, slots=True, eq=False)
class GroupStatistics:
    """Statistics of the variables that share dimensions.

    Attributes:
        name: `state`, `forcing`, `flux` or `static`.
        variables: The V variables' names.
        units: Their units; None where the store names none.
        values: Of the values.
        differences: Of the differences x(t) - x(t - lag): each lag and its summary, in the order
            of the lags.
    """

    name: str
    variables: tuple[str, ...]
    units: tuple[str | None, ...]
    values: Summary
    differences: tuple[tuple[int, Summary], ...]

    def __post_init__(self) -> None:
        summaries = [self.values, *(summary for _, summary in self.differences)]
        sizes = [len(self.variables), len(self.units), *(each.count.size for each in summaries)]
        if len(set(sizes)) != 1:
            raise ValueError(
                f"group {self.name} has {sizes[0]} names, {sizes[1]} units and summaries of "
                f"{sizes[2:]} variables; give the same number of each"
            )


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """What was counted: the same for any number of ranks."""

    path: str
    layout: str
    split: str | None
    steps: int
    trajectories: int
    fingerprint: str
    corrupt: tuple[CorruptChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class RunInfo:
    """How it was counted.

    Attributes:
        ranks: Processes that took part.
        blocks: Blocks of all series.
        bytes: Uncompressed bytes read.
        seconds: From all ranks being ready to the end of the merge.
    """

    ranks: int
    blocks: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """The whole result, which every format is written from."""

    source: SourceInfo
    run: RunInfo
    groups: tuple[GroupStatistics, ...]

    def group(self, name: str) -> GroupStatistics | None:
        """The group of that name, or None where the store has none."""
        return next((group for group in self.groups if group.name == name), None)


def summarise(
    record: Record,
    *,
    name: str,
    variables: Sequence[str],
    units: Sequence[str | None],
    lags: Sequence[int],
    scale: Sequence[float],
    offset: Sequence[float],
) -> GroupStatistics:
    """Statistics in physical units of one group, whose values are `scale * stored + offset`.

    Differences are scaled without the offset. The static group has none, whatever the record and
    the lags say.

    Args:
        record: Moments of the stored values, `(8, 1 + L, V)`.
        name: The group's name.
        variables: The V variables' names.
        units: Their units.
        lags: The L lags, in the order of the record's kinds.
        scale: One factor for each variable.
        offset: One summand for each variable.
    """
    assert record.shape == (8, 1 + len(lags), len(variables)), record.shape
    scales, offsets = np.asarray(scale, np.float64), np.asarray(offset, np.float64)
    assert scales.shape == offsets.shape == (len(variables),), (scales.shape, offsets.shape)
    kept = () if name == STATIC else lags
    return GroupStatistics(
        name=name,
        variables=tuple(variables),
        units=tuple(units),
        values=_unpack(record[:, 0], scales, offsets),
        differences=tuple(
            (lag, _unpack(record[:, kind], scales, np.zeros_like(offsets)))
            for kind, lag in enumerate(kept, start=1)
        ),
    )


def _unpack(
    moments: NDArray[np.float64], scale: NDArray[np.float64], offset: NDArray[np.float64]
) -> Summary:
    """Summary of the moments of one kind, `(8, V)`."""
    count = moments[COUNT].astype(np.int64)
    exists = count > 0
    ends = np.where(exists, moments[[MIN, MAX]], np.nan) * scale + offset  # (2, V)
    low, high = np.sort(ends, axis=0)  # a negative scale swaps them
    constant = low == high
    mean = np.clip(_unpacked_mean(moments, scale, offset), low, high)
    variance = np.maximum(moments[M2] + moments[M2_LOW], 0.0) / np.maximum(count, 1)
    std = np.where(constant, 0.0, np.sqrt(variance) * np.abs(scale))
    return Summary(
        count=count,
        missing=moments[MISSING].astype(np.int64),
        mean=mean + 0.0,  # + 0.0 turns -0.0 into 0.0, whose sign depends on the order of the values
        std=np.where(exists, std, np.nan),
        min=low + 0.0,
        max=high + 0.0,
        constant=constant,
    )


def _unpacked_mean(
    moments: NDArray[np.float64], scale: NDArray[np.float64], offset: NDArray[np.float64]
) -> NDArray[np.float64]:
    """`scale * (mean + mean_low) + offset`, rounded once, `(V,)`."""
    means: NDArray[np.float64] = moments[MEAN] + moments[MEAN_LOW]
    for v in np.flatnonzero(((scale != 1.0) | (offset != 0.0)) & np.isfinite(means)):
        stored = Fraction(moments[MEAN, v]) + Fraction(moments[MEAN_LOW, v])
        means[v] = float(Fraction(scale[v]) * stored + Fraction(offset[v]))
    return means
