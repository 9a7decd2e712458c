"""From records to physical units, against exact rational arithmetic on the decoded values."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_prep.stats.moments import COUNT, M2, M2_LOW, MAX, MEAN, MEAN_LOW, MIN, MISSING, empty
from neural_prep.stats.statistics import GroupStatistics, Summary, summarise


def split(exact: Fraction) -> tuple[float, float]:
    """An exact number as the record holds it: two float64 whose sum it is, or nearly."""
    high = float(exact)
    return high, float(exact - Fraction(high))


def squares(values: list[Fraction]) -> Fraction:
    mean = sum(values, Fraction(0)) / len(values)
    return sum(((value - mean) ** 2 for value in values), Fraction(0))


def moments(values: list[float], missing: int = 0) -> np.ndarray:
    """The record `(8,)` of one variable's stored values."""
    record = empty(1, 1)[:, 0, 0]
    record[MISSING] = missing
    if values:
        exact = [Fraction(value) for value in values]
        record[COUNT] = len(values)
        record[[MEAN, MEAN_LOW]] = split(sum(exact, Fraction(0)) / len(exact))
        record[[M2, M2_LOW]] = split(squares(exact))
        record[[MIN, MAX]] = min(values), max(values)
    return record


def unpack(*kinds: np.ndarray, scale: float = 1.0, offset: float = 0.0, name: str = "state"):
    """Group of one variable whose kinds (values, then lags 1, 2, ...) have these records."""
    return summarise(
        np.stack(kinds, axis=1)[:, :, np.newaxis],
        name=name,
        variables=["x"],
        units=["K"],
        lags=range(1, len(kinds)),
        scale=[scale],
        offset=[offset],
    )


def row(summary: Summary) -> tuple:
    """A summary of one variable: count, missing, mean, std, min, max, constant."""
    fields = ("count", "missing", "mean", "std", "min", "max", "constant")
    return tuple(getattr(summary, field).item() for field in fields)


@pytest.mark.parametrize(
    ("values", "missing", "expected"),
    [
        pytest.param([1.0, 3.0], 0, (2, 0, 2.0, 1.0, 1.0, 3.0, False), id="two"),
        pytest.param([1.0, 3.0], 5, (2, 5, 2.0, 1.0, 1.0, 3.0, False), id="some-missing"),
        pytest.param(
            [101325.0] * 7, 0, (7, 0, 101325.0, 0.0, 101325.0, 101325.0, True), id="constant"
        ),
        pytest.param([0.1] * 3, 0, (3, 0, 0.1, 0.0, 0.1, 0.1, True), id="constant-inexact"),
        pytest.param([4.0], 0, (1, 0, 4.0, 0.0, 4.0, 4.0, True), id="one"),
    ],
)
def test_values(values, missing, expected):
    assert row(unpack(moments(values, missing)).values) == expected


def test_a_variable_without_values_has_no_statistics():
    summary = unpack(moments([], missing=9), scale=-0.5, offset=3.0).values
    assert (summary.count.item(), summary.missing.item()) == (0, 9)
    assert all(math.isnan(value.item()) for value in (summary.mean, summary.std))
    assert all(math.isnan(value.item()) for value in (summary.min, summary.max))
    assert not summary.constant.item()


def test_types():
    summary = unpack(moments([1.0, 2.0])).values
    assert [summary.count.dtype, summary.missing.dtype] == [np.int64, np.int64]
    assert {getattr(summary, name).dtype for name in ("mean", "std", "min", "max")} == {
        np.dtype("float64")
    }
    assert summary.constant.dtype == np.bool_


@pytest.mark.parametrize(
    ("scale", "offset", "values", "pairs"),
    [
        pytest.param(
            2.0, 10.0, (2, 0, 14.0, 2.0, 12.0, 16.0, False), (1, 0, 4.0, 0.0, 4.0, 4.0, True),
            id="scale-and-offset",
        ),
        pytest.param(
            -2.0, 10.0, (2, 0, 6.0, 2.0, 4.0, 8.0, False), (1, 0, -4.0, 0.0, -4.0, -4.0, True),
            id="negative-scale-swaps",
        ),
        pytest.param(
            1.0, -2.0, (2, 0, 0.0, 1.0, -1.0, 1.0, False), (1, 0, 2.0, 0.0, 2.0, 2.0, True),
            id="offset-alone",
        ),
    ],
)  # fmt: skip
def test_unpacking(scale, offset, values, pairs):
    group = unpack(moments([1.0, 3.0]), moments([2.0]), scale=scale, offset=offset)
    assert row(group.values) == values
    assert [(lag, row(summary)) for lag, summary in group.differences] == [(1, pairs)]


@given(
    stored=st.lists(st.integers(-32768, 32767), min_size=1, max_size=20),
    scale=st.floats(1e-6, 1e3).flatmap(lambda scale: st.sampled_from([scale, -scale])),
    offset=st.floats(-1e6, 1e6),
)
def test_unpacking_is_accurate(stored, scale, offset):
    """A mean to 1e-12 of max(|mean|, std), a std to 1e-12 of itself, ends as xarray decodes."""
    exact = [Fraction(scale) * value + Fraction(offset) for value in stored]
    mean = sum(exact, Fraction(0)) / len(exact)
    std = math.sqrt(squares(exact) / len(exact))
    decoded = np.array(stored, np.float64) * scale + offset
    summary = unpack(moments([float(value) for value in stored]), scale=scale, offset=offset).values
    assert summary.min.item() == decoded.min()
    assert summary.max.item() == decoded.max()
    assert summary.min.item() <= summary.mean.item() <= summary.max.item()
    assert summary.std.item() == pytest.approx(std, rel=1e-12, abs=0.0)
    # Where all values are one, the mean is that value as decoded, with the decoding's rounding.
    rounding = 2.0**-51 * (abs(offset) + abs(scale) * 32768) if summary.constant.item() else 0.0
    error = abs(Fraction(summary.mean.item()) - mean)
    assert error <= 1e-12 * max(abs(mean), std) + rounding


def test_a_mean_whose_offset_cancels_it_keeps_its_digits():
    """In float64 alone, 0.1 * mean - 3000 would be off by 4e-13, which is 4e-9 of the std."""
    values = [30000.0, 30000.0 + 2.0**-10, 30000.0 + 2.0**-9]
    exact = Fraction(0.1) * (30000 + Fraction(1, 1024)) - 3000
    mean = unpack(moments(values), scale=0.1, offset=-3000.0).values.mean.item()
    assert abs(Fraction(mean) - exact) <= Fraction(2.0**-52) * abs(exact)


def test_the_mean_stays_between_the_ends():
    record = moments([0.1, 0.1, 0.1])
    record[MEAN] = np.nextafter(0.1, 1.0)
    assert unpack(record).values.mean.item() == 0.1


@pytest.mark.parametrize("values", [[-0.0, 0.0], [0.0, -0.0], [-0.0], [-1.0, -0.0], [-0.0, 1.0]])
def test_no_negative_zero(values):
    """Which of the two zeros a minimum is depends on the order of the values."""
    summary = unpack(moments(values)).values
    numbers = [getattr(summary, name).item() for name in ("mean", "std", "min", "max")]
    assert not any(number == 0 and math.copysign(1.0, number) < 0 for number in numbers)


def test_negative_rounding_of_the_squares_is_zero():
    record = moments([1.0, 2.0])
    record[[M2, M2_LOW]] = 0.0, -1e-40
    assert unpack(record).values.std.item() == 0.0


def test_static_has_no_differences():
    group = unpack(moments([1.0, 3.0]), moments([]), name="static")
    assert group.differences == ()


def test_lags_keep_their_order():
    record = empty(3, 1)
    group = summarise(
        record, name="state", variables=["x"], units=[None], lags=[3, 1], scale=[1.0], offset=[0.0]
    )
    assert [lag for lag, _ in group.differences] == [3, 1]


def test_each_variable_has_its_own_scale():
    record = np.concatenate([np.stack([moments([1.0, 3.0])], 1)[..., None]] * 2, axis=2)
    group = summarise(
        record,
        name="state",
        variables=["a", "b"],
        units=["K", None],
        lags=[],
        scale=[1.0, 0.5],
        offset=[0.0, 100.0],
    )
    assert group.values.mean.tolist() == [2.0, 101.0]
    assert group.values.std.tolist() == [1.0, 0.5]
    assert (group.variables, group.units) == (("a", "b"), ("K", None))


def test_shapes_are_checked(two_pass):
    summary = two_pass.summary(np.zeros((2, 3, 1)))
    with pytest.raises(ValueError, match="1 names, 2 units and summaries of"):
        GroupStatistics("state", ("a",), ("K", "m"), summary, ())
    with pytest.raises(ValueError, match="a summary's arrays differ in shape"):
        Summary(summary.count, summary.missing, np.zeros(2), *[summary.std] * 3, summary.constant)


def test_groups_are_found_by_name(two_pass):
    statistics = two_pass.statistics(two_pass.group("state", [np.zeros((2, 3, 1))]))
    assert statistics.group("state") is statistics.groups[0]
    assert statistics.group("flux") is None
