"""Oracles of the arithmetic, and the ways that values take through it, as fixtures."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from neural_prep.stats.accumulate import SeriesAccumulator
from neural_prep.stats.blocks import MergeTree
from neural_prep.stats.statistics import GroupStatistics, summarise

ORACLES = Path(__file__).parents[1] / "oracles"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"oracle_{name}", ORACLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def kernel_twin() -> ModuleType:
    """The kernel's definition in plain NumPy: `step_records(values, age, lags)`."""
    return _load("kernel_twin")


@pytest.fixture(scope="session")
def exact() -> ModuleType:
    """Exact arithmetic: `of_values(values, age)`, `of_differences(values, age, lag)`."""
    return _load("exact")


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
