"""The way that values take through the arithmetic, as a fixture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from neural_prep.stats.accumulate import SeriesAccumulator
from neural_prep.stats.statistics import GroupStatistics, summarise
from neural_prep.stats.tree import MergeTree


def _count(
    values: np.ndarray, age: Sequence[int], lags: Sequence[int], block_steps: int
) -> GroupStatistics:
    accumulator = SeriesAccumulator(values.shape[1] * values.shape[3], lags)
    firsts = range(0, len(values), block_steps)
    tree = MergeTree(len(firsts))
    for block, first in enumerate(firsts):
        context = min(max(lags, default=0), first)
        read = slice(first - context, first + block_steps)
        ages = np.asarray(age[read], np.int64)
        accumulator.add(values[read], ages, first=read.start, context=context)
        tree.add((0, block), accumulator.finish())
    variables = values.shape[1] * values.shape[3]
    return summarise(
        tree.root(),
        name="state",
        variables=[f"v_{v}" for v in range(variables)],
        units=[None] * variables,
        lags=lags,
        scale=[1.0] * variables,
        offset=[0.0] * variables,
    )


@pytest.fixture(scope="session")
def count() -> Callable[..., GroupStatistics]:
    """The code's own way: `count(values, age, lags, block_steps)` of values `(T, O, N, I)`."""
    return _count
