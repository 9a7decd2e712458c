"""The kernel's definition (the text at its top) in plain NumPy: one row and one variable at a time.

Written from that text and calling none of the package, so that equal bits mean that the fast code
does what the text says.

Legend: T steps, O outer and I inner variables, N grid points, L lags, G groups of `lanes` points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

WIDTH, TILE, SAMPLE, FAR, STEADY = 256, 32, 64, 4.0, 1000.0
COUNT, MISSING, MEAN, MEAN_LOW, M2, M2_LOW, MIN, MAX = range(8)


def step_records(values: Array, age: Sequence[int], lags: Sequence[int]) -> Array:
    """Each step's record `(T, 8, 1 + L, O * I)`, of values `(T, O, N, I)`."""
    steps, outer, _, inner = values.shape
    records = np.zeros((steps, 8, 1 + len(lags), outer, inner))
    records[:, MIN], records[:, MAX] = np.inf, -np.inf
    lanes = 1
    while lanes * inner < WIDTH:
        lanes *= 2
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        for t in range(steps):
            for kind, lag in enumerate([0, *lags]):
                if age[t] < lag:
                    continue
                for o, i in np.ndindex(outer, inner):
                    earlier = wide[t - lag, o, :, i] if kind else None
                    records[t, :, kind, o, i] = row_record(wide[t, o, :, i], earlier, lanes)
    return records.reshape(steps, 8, 1 + len(lags), outer * inner)


def row_record(x: Array, p: Array | None, lanes: int) -> Array:
    """The record `(8,)` of one variable's values `x` (N,), or of `x - p`."""
    row, error = (x, np.zeros(len(x))) if p is None else two_sum(x, -p)
    finite = np.isfinite(row)
    count = float(finite.sum())
    record = np.array([count, len(x) - count, 0.0, 0.0, 0.0, 0.0, np.inf, -np.inf])
    if count == 0:
        return record
    record[[MIN, MAX]] = ends(row, finite, lanes)
    shift = guess(row, finite)
    off = fill_moments(record, np.where(finite, row - shift, 0.0), shift, lanes)
    same = record[MIN] == record[MAX]
    if same:
        record[[MEAN, MEAN_LOW, M2, M2_LOW]] = record[MIN], 0.0, 0.0, 0.0
    mean, variance = record[MEAN], record[M2] / count
    far = not same and off * off > FAR * FAR * variance
    steady = p is not None and mean * mean > STEADY * STEADY * variance
    if far or (steady and np.any(error[finite] != 0)):
        fill_moments(record, np.where(finite, (row - mean) + error, 0.0), mean, lanes)
    return record


def guess(row: Array, finite: Array) -> float:
    taken = min(len(row), SAMPLE)
    sample = [k * len(row) // taken for k in range(taken)]
    total, present = 0.0, 0
    for n in sample:
        if finite[n]:
            total, present = total + row[n], present + 1
    return total / present if present else 0.0


def ends(row: Array, finite: Array, lanes: int) -> tuple[float, float]:
    """Least and most; of two zeros the one in the first lane, and there the first."""
    by_lane = np.concatenate([row[lane::lanes][finite[lane::lanes]] for lane in range(lanes)])
    return by_lane[by_lane.argmin()], by_lane[by_lane.argmax()]


def fill_moments(record: Array, deviations: Array, shift: float, lanes: int) -> float:
    """Fills mean and M2 from the deviations `(N,)`, 0 where missing; returns how far off it was."""
    groups = np.zeros((-(-len(deviations) // lanes), lanes))
    groups.reshape(-1)[: len(deviations)] = deviations
    s, s_error, q, q_error = 0.0, 0.0, 0.0, 0.0
    for first in range(0, len(groups), TILE):
        tile = groups[first : first + TILE]
        s, error = two_sum(s, add_up(tile))
        s_error += error
        q, error = two_sum(q, add_up(tile * tile))
        q_error += error
    total = s + s_error
    off = total / record[COUNT]
    record[[MEAN, MEAN_LOW]] = two_sum(shift, off)
    squares, error = two_sum(q, -(total * off))
    record[[M2, M2_LOW]] = two_sum(squares, error + q_error)
    if record[M2] <= 0.0:
        record[[M2, M2_LOW]] = 0.0
    if not np.isfinite(record[MEAN] + record[MEAN_LOW]):
        record[[MEAN, MEAN_LOW]] = np.nan, 0.0
    if not np.isfinite(record[M2] + record[M2_LOW]):
        record[[M2, M2_LOW]] = np.inf, 0.0
    return off


def add_up(tile: Array) -> float:
    """One number of a tile `(G, lanes)`: along the groups, then lanes by halves."""
    lanes = np.zeros(tile.shape[1])
    for group in tile:
        lanes = lanes + group
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0]


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Knuth's: the rounded sum, and what rounding took away."""
    a, b = np.float64(a), np.float64(b)
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)
