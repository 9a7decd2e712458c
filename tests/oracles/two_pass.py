"""Statistics by the textbook's two passes over arrays in memory, as NumPy computes them.

Fills the result's classes for tests of what is made from them; calls none of the package's
arithmetic.

Legend: T steps, N grid points, V variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_prep.stats.statistics import (
    GroupStatistics,
    RunInfo,
    SourceInfo,
    Statistics,
    Summary,
)

Array = NDArray[Any]

SOURCE = SourceInfo("stores/meps", "meps", "train", 520, 8, "sha256:0123")
RUN = RunInfo(2, 12, 123456789, 1.23)


def summary(fields: Array) -> Summary:
    """Of fields `(T, N, V)` in which NaN is missing."""
    columns = fields.reshape(-1, fields.shape[-1]).T
    columns = [column[~np.isnan(column)] for column in columns]

    def of_each(statistic: Callable[[Array], Any]) -> Array:
        return np.array([statistic(each) if each.size else np.nan for each in columns])

    low, high = of_each(np.min), of_each(np.max)
    return Summary(
        count=np.array([each.size for each in columns], np.int64),
        missing=np.isnan(fields).sum(axis=(0, 1)).astype(np.int64),
        mean=of_each(np.mean),
        std=of_each(np.std),
        min=low,
        max=high,
        constant=low == high,
    )


def group(
    name: str,
    trajectories: Sequence[Array],
    lags: Sequence[int] = (),
    variables: Sequence[str] | None = None,
    units: Sequence[str | None] | None = None,
) -> GroupStatistics:
    """Of trajectories `(T, N, V)`; variables are `v_0 ...` where they are not named."""
    fields = [np.asarray(each, np.float64) for each in trajectories]
    size = fields[0].shape[-1]
    return GroupStatistics(
        name=name,
        variables=tuple(variables or (f"v_{v}" for v in range(size))),
        units=tuple(units or [None] * size),
        values=summary(np.concatenate(fields)),
        differences=tuple(
            (lag, summary(np.concatenate([each[lag:] - each[:-lag] for each in fields])))
            for lag in lags
        ),
    )


def statistics(*groups: GroupStatistics) -> Statistics:
    """A whole result of these groups."""
    return Statistics(SOURCE, RUN, groups)
