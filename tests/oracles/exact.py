"""Statistics in exact arithmetic: values as whole multiples of a power of two, means as fractions.

Legend: T steps, O outer and I inner variables, N grid points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ACCURACY = Fraction(1, 10**12)  # what DESIGN.md promises


@dataclass(frozen=True)
class Exact:
    """Of one variable's values or differences; `low` and `high` as float64 rounds them."""

    count: int
    missing: int
    mean: Fraction
    std: Fraction
    low: float
    high: float


def of_values(values: Array, age: Sequence[int]) -> list[Exact]:
    """One for each variable of the selected steps of `(T, O, N, I)`."""
    chosen = values[np.asarray(age) >= 0]
    return [exact([each], None) for each in columns(chosen)]


def of_differences(values: Array, age: Sequence[int], lag: int) -> list[Exact]:
    """One for each variable, of all pairs of steps `(t - lag, t)`."""
    later = np.flatnonzero(np.asarray(age) >= lag)
    pairs = zip(columns(values[later]), columns(values[later - lag]), strict=True)
    return [exact([x], [p]) for x, p in pairs]


def columns(values: Array) -> list[Array]:
    """Each variable's values `(T * N,)` of `(T, O, N, I)`."""
    outer, inner = values.shape[1], values.shape[3]
    return [values[:, o, :, i].ravel().astype(np.float64) for o, i in np.ndindex(outer, inner)]


def exact(later: list[Array], earlier: list[Array] | None) -> Exact:
    x = np.concatenate(later)
    p = np.zeros_like(x) if earlier is None else np.concatenate(earlier)
    finite = np.isfinite(x) & np.isfinite(p)
    pairs, counts = np.unique(np.stack([x[finite], p[finite]]), axis=1, return_counts=True)
    count, missing = int(finite.sum()), int((~finite).sum())
    if not count:
        return Exact(0, missing, Fraction(0), Fraction(0), math.nan, math.nan)
    ratios = [[value.as_integer_ratio() for value in each] for each in pairs.tolist()]
    unit = max(ratio[1] for each in ratios for ratio in each)  # powers of two
    whole = [[n * (unit // d) for n, d in each] for each in ratios]
    numbers = [a - b for a, b in zip(*whole, strict=True)]
    weights = counts.tolist()
    total = sum(n * w for n, w in zip(numbers, weights, strict=True))
    squares = count * sum(n * n * w for n, w in zip(numbers, weights, strict=True)) - total**2
    return Exact(
        count,
        missing,
        Fraction(total, count * unit),
        Fraction(math.isqrt(squares << 200), (count * unit) << 100),
        float(Fraction(min(numbers), unit)),
        float(Fraction(max(numbers), unit)),
    )


def complaints(summary: Any, expected: Sequence[Exact]) -> list[str]:
    """Where a `Summary` misses the accuracy; none is the wish."""
    found = []
    for v, true in enumerate(expected):
        got = {
            name: getattr(summary, name)[v].item()
            for name in ("count", "missing", "mean", "std", "min", "max", "constant")
        }
        for name, want in (("count", true.count), ("missing", true.missing)):
            if got[name] != want:
                found.append(f"variable {v}: {name} {got[name]} is not {want}")
        if true.count:
            found += [f"variable {v}: {text}" for text in wrong_numbers(got, true)]
        elif not all(math.isnan(got[name]) for name in ("mean", "std", "min", "max")):
            found.append(f"variable {v}: {got} of no values")
    return found


def wrong_numbers(got: dict[str, Any], true: Exact) -> list[str]:
    found = []
    for name, want in (("min", true.low), ("max", true.high)):
        if got[name] != want:
            found.append(f"{name} {got[name]!r} is not {want!r}")
    if got["constant"] != (true.low == true.high):
        found.append(f"constant is {got['constant']}")
    if not math.isfinite(got["mean"]) or not math.isfinite(got["std"]):
        return [*found, f"mean {got['mean']}, std {got['std']}"]
    scale = max(abs(true.mean), true.std)
    off = abs(Fraction(got["mean"]) - true.mean)
    if off > ACCURACY * scale:
        found.append(f"mean {got['mean']!r} is off by {float(off / scale):.1e}")
    std = Fraction(0) if true.low == true.high else true.std
    off = abs(Fraction(got["std"]) - std)
    if off > ACCURACY * std:
        found.append(f"std {got['std']!r} is off by {float(off):.1e} of {float(std)!r}")
    return found
