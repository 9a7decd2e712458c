"""Records of moments, and their merge: Chan's formula with compensated means and squares.

A record is one float64 array `(8, K, V)`: the rows named below, `K` kinds (the values, then each
lag's differences) and `V` variables. Counts are whole numbers below 2^53, which float64 holds
exactly, so that a record can be sent as one tensor. Mean and sum of squared deviations are
unevaluated sums of two float64 (double-double): a float64 mean of 1e8 alone would be off by 1e-8,
which is the whole std of a field 1e8 +- 1e-8, and a long sum would drift. What overflows float64 is
marked, by a NaN mean or an infinite sum of squares, and does not spread to counts and ends.

Source: Chan, Golub, LeVeque (1979), "Updating formulae and a pairwise algorithm for computing
sample variances"; Knuth, TAOCP 2, 4.2.2, for the error-free sum.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Record = NDArray[np.float64]

COUNT, MISSING, MEAN, MEAN_LOW, M2, M2_LOW, MIN, MAX = range(8)


def empty(kinds: int, variables: int) -> Record:
    """A record of no values: merging it changes no bit.

    Args:
        kinds: 1 + number of lags.
        variables: Number of variables.

    >>> empty(1, 2)[MIN]
    array([[inf, inf]])
    """
    record = np.zeros((8, kinds, variables))
    record[MIN] = np.inf
    record[MAX] = -np.inf
    return record


def merge(left: Record, right: Record) -> Record:
    """The record of both records' values, `left` first in the fixed order; neither is changed."""
    merged = left.copy()
    merge_into(merged, right[np.newaxis])
    return merged


@njit(nogil=True, cache=True)
def two_sum(a: float, b: float) -> tuple[float, float]:
    """`a + b` as rounded sum and exact rounding error."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


@njit(nogil=True, cache=True)
def settle(moments):  # type: ignore[no-untyped-def]
    """Marks what overflowed in the record `(8,)` of one variable, in place."""
    if not np.isfinite(moments[MEAN] + moments[MEAN_LOW]):
        moments[MEAN], moments[MEAN_LOW] = np.nan, 0.0
    if not np.isfinite(moments[M2] + moments[M2_LOW]):
        moments[M2], moments[M2_LOW] = np.inf, 0.0


@njit(nogil=True, cache=True)
def merge_into(total: Record, steps: NDArray[np.float64]) -> None:
    """Merges `steps` (T, 8, K, V), one after the other, into `total` (8, K, V) in place."""
    for t in range(steps.shape[0]):
        step = steps[t]
        for k in range(total.shape[1]):
            for v in range(total.shape[2]):
                total[MISSING, k, v] += step[MISSING, k, v]
                added = step[COUNT, k, v]
                if added == 0.0:
                    continue
                had = total[COUNT, k, v]
                if had == 0.0:
                    missing = total[MISSING, k, v]
                    total[:, k, v] = step[:, k, v]
                    total[MISSING, k, v] = missing
                    continue
                count = had + added
                # The means' difference, free of their common offset.
                high, low = two_sum(step[MEAN, k, v], -total[MEAN, k, v])
                delta = high + (low + (step[MEAN_LOW, k, v] - total[MEAN_LOW, k, v]))
                mean, error = two_sum(total[MEAN, k, v], delta * (added / count))
                error += total[MEAN_LOW, k, v]
                total[MEAN, k, v], total[MEAN_LOW, k, v] = two_sum(mean, error)
                m2, error = two_sum(total[M2, k, v], step[M2, k, v])
                m2, error2 = two_sum(m2, delta * delta * (had * (added / count)))
                error += error2 + total[M2_LOW, k, v] + step[M2_LOW, k, v]
                total[M2, k, v], total[M2_LOW, k, v] = two_sum(m2, error)
                total[COUNT, k, v] = count
                total[MIN, k, v] = min(total[MIN, k, v], step[MIN, k, v])
                total[MAX, k, v] = max(total[MAX, k, v], step[MAX, k, v])
                settle(total[:, k, v])
