"""Merging records against exact arithmetic on the values of both."""

from fractions import Fraction
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_prep.stats.moments import (
    COUNT,
    M2,
    M2_LOW,
    MAX,
    MEAN,
    MEAN_LOW,
    MIN,
    MISSING,
    empty,
    merge,
    merge_into,
    two_sum,
)

INF, NAN = np.inf, np.nan


def split(exact):
    """An exact number as two float64, whose sum is it but for 2^-106 of it."""
    high = float(exact)
    return high, float(exact - Fraction(high))


def mean_and_squares(values):
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction(0)) / len(exact)
    return mean, sum(((x - mean) ** 2 for x in exact), Fraction(0))


def record(values, missing=0):
    """`(8, 1, 1)`, every number as near as a record can hold it."""
    made = empty(1, 1)
    moments = made[:, 0, 0]
    moments[MISSING] = missing
    if values:
        mean, squares = mean_and_squares(values)
        moments[COUNT] = len(values)
        moments[[MEAN, MEAN_LOW]], moments[[M2, M2_LOW]] = split(mean), split(squares)
        moments[[MIN, MAX]] = min(values), max(values)
    return made


def assert_holds(made, values, missing):
    """A mean is right to a part of the std, and squares to a part of themselves.

    The part is 2^-50: a few roundings of 2^-53 in each merge, while what was there before keeps
    twice as many digits. Beside a large mean, its second float64 rounds at 2^-106 of it.
    """
    moments = made[:, 0, 0]
    assert moments[[COUNT, MISSING]].tolist() == [len(values), missing]
    assert moments[[MIN, MAX]].tolist() == [min(values), max(values)]
    mean, squares = mean_and_squares(values)
    mean_off = Fraction(moments[MEAN]) + Fraction(moments[MEAN_LOW]) - mean
    squares_off = Fraction(moments[M2]) + Fraction(moments[M2_LOW]) - squares
    part = Fraction(2) ** -50
    rounding = Fraction(2) ** -100 * abs(mean)
    assert mean_off**2 <= part**2 * squares / len(values) + rounding**2
    assert abs(squares_off) <= part * squares + len(values) * rounding**2


PARTS = {
    "two": [[1, 2], [3, 5, 8]],
    "one-value-each": [[1], [3]],
    "zeros-first": [[0, 0, 0], [101325, 101326]],
    "neighbours-of-1e8": [[1e8, 1e8 + 1.5e-8], [1e8 + 3e-8] * 3],
    "neighbours-of-1e16": [[1e16, 1e16 + 2], [1e16 + 4]],
    "constant": [[0.1] * 5, [0.1] * 7, [0.1]],
    "unequal-counts": [[1.0] * 99, [-1.0], [1.0]],
    "opposite": [[1e30, 1e-30], [-1e30, 1e-30]],
    "trend": [[float(t), t + 1e-3] for t in range(20)],
    "small-beside-large": [[1e8 + 1e-6 * t * (-1) ** t] for t in range(20)],
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_merge(parts):
    total = record(parts[0], missing=2)
    for part in parts[1:]:
        total = merge(total, record(part, missing=3))
    assert_holds(total, [*chain(*parts)], 2 + 3 * (len(parts) - 1))


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=1), min_size=1),
    st.sampled_from([0.0, 1.0, 1e8, -1e12]),
)
def test_merge_of_anything(parts, offset):
    shifted = [[offset + (x if abs(x) > 1e-100 else 0.0) for x in part] for part in parts]
    total = empty(1, 1)
    for part in shifted:
        total = merge(total, record(part))
    assert_holds(total, [*chain(*shifted)], 0)


def test_a_record_of_nothing_changes_no_bit():
    some = record([1.0, 2.5, -0.0], missing=4)
    for merged in (merge(some, empty(1, 1)), merge(empty(1, 1), some)):
        assert merged.tobytes() == some.tobytes()


def test_missing_values_alone_add_to_missing():
    some, missing = record([1.0, 2.0], missing=4), record([], missing=5)
    expected = some.copy()
    expected[MISSING] = 9
    assert merge(some, missing).tobytes() == expected.tobytes()
    assert merge(missing, some).tobytes() == expected.tobytes()


def test_merging_changes_neither():
    left, right = record([1.0, 2.0]), record([3.0])
    before = left.tobytes(), right.tobytes()
    merge(left, right)
    assert (left.tobytes(), right.tobytes()) == before


def test_each_kind_and_variable_for_itself():
    left, right = empty(2, 3), empty(2, 3)
    left[:, 0, 0], right[:, 0, 0] = record([1.0])[:, 0, 0], record([4.0])[:, 0, 0]
    left[:, 1, 2], right[:, 1, 1] = record([5.0])[:, 0, 0], record([6.0])[:, 0, 0]
    merged = merge(left, right)
    assert merged[COUNT].tolist() == [[2, 0, 0], [0, 1, 1]]
    assert merged[MEAN].tolist() == [[2.5, 0, 0], [0, 6, 5]]
    assert merged[MIN].tolist() == [[1, INF, INF], [INF, 6, 5]]


def test_many_steps_are_merged_one_after_the_other():
    steps = [record([float(t), 0.1 * t**2], missing=t) for t in range(9)]
    one_by_one = empty(1, 1)
    for step in steps:
        one_by_one = merge(one_by_one, step)
    total = empty(1, 1)
    merge_into(total, np.stack(steps))
    assert total.tobytes() == one_by_one.tobytes()


def test_long_sums_do_not_drift():
    """A plain sum of 100,000 times 0.1 is off by 2e-12 of itself."""
    total = empty(1, 1)
    step = record([3.0, 4.0])
    step[M2] = 0.1
    merge_into(total, np.repeat(step[np.newaxis], 100_000, axis=0))
    expected = 100_000 * Fraction(0.1)
    off = Fraction(total[M2, 0, 0]) + Fraction(total[M2_LOW, 0, 0]) - expected
    assert abs(off) < Fraction(2) ** -53 * expected  # one rounding


@pytest.mark.parametrize(
    ("left", "right", "mean", "m2"),
    [
        pytest.param([-1e200], [1e200], 0.0, INF, id="squares-overflow"),
        pytest.param([-1.7e308], [1.7e308], NAN, INF, id="difference-of-means-overflows"),
        pytest.param([1.7e308], [1.7e308], 1.7e308, 0.0, id="largest-constant"),
    ],
)
def test_overflow_is_marked_and_stays(left, right, mean, m2):
    merged = merge(record(left), record(right))
    for expected_count in (2, 3):
        np.testing.assert_array_equal(merged[[M2, M2_LOW], 0, 0], [m2, 0.0])
        np.testing.assert_array_equal(merged[MEAN, 0, 0], mean)
        assert merged[COUNT, 0, 0] == expected_count
        assert merged[[MIN, MAX], 0, 0].tolist() == [left[0], right[0]]
        merged = merge(merged, record([mean if np.isfinite(mean) else 0.0]))


@settings(derandomize=True)
@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_two_sum_is_exact(a, b):
    total, error = two_sum(a, b)
    assert total == a + b
    assert Fraction(total) + Fraction(error) == Fraction(a) + Fraction(b)
