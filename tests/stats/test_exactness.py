"""The whole arithmetic against exact fractions: DESIGN.md's accuracy, whatever the values.

Counts, minimum and maximum exact; a std to 1e-12 of itself, a mean to 1e-12 of max(|mean|, std);
std exactly 0 where all values, or all differences as float64 rounds them, are equal.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_prep.data.values import to_float

T, N = 6, 200
STEPS = np.arange(T, dtype=np.float64).reshape(T, 1, 1, 1)
NOISE = np.random.default_rng(0).standard_normal((T, 1, N, 2))
ODD = STEPS % 2 == 1


def one_finite(values):
    """The first step has one value."""
    values = values.copy()
    values[0, :, 1:] = np.nan
    return values


NUMBERS = np.arange(NOISE.size).reshape(NOISE.shape)
GUESSED = np.isin(np.arange(N), np.arange(64) * N // 64).reshape(N, 1)


def spikes(rare):
    return np.where(NUMBERS % 97 == 5, rare, 0.0)


def outlier(values):
    """The first point of every other step, which the guess of the shift sees."""
    values = values.copy()
    values[::2, :, 0] = 1e6
    return values


FIELDS = {
    "noise": NOISE,
    "101325+-1": 101325 + NOISE,
    "54000+-1": 54000 + NOISE,
    "2.5e-6+-3e-8": 2.5e-6 + 3e-8 * NOISE,
    "constant-101325": 0 * NOISE + 101325,
    "constant-22642752": 0 * NOISE + 22642752,
    "constant-0.1": 0 * NOISE + 0.1,
    "1e8+noise": 1e8 + NOISE,
    "1e8+1e-6-noise": 1e8 + 1e-6 * NOISE,
    "1e8+1e-8-noise": 1e8 + 1e-8 * NOISE,
    "1e30+noise": 1e30 * (1 + 1e-7 * NOISE),
    "1e-30+noise": 1e-30 * (1 + 1e-7 * NOISE),
    "two-neighbours": np.where(NOISE < 2.5, 1e6, np.nextafter(1e6, 2e6)),
    "one-neighbour": np.where(NUMBERS == 777, np.nextafter(1e6, 2e6), 1e6),
    "zeros-first": np.where(STEPS == 0, 0, 101325 + NOISE),
    "one-finite-first": one_finite(101325 + NOISE),
    "differences-64+-0.001": 64 * STEPS + 0.001 * NOISE,
    "differences-64+-1e-6": 64 * STEPS + 1e-6 * NOISE,
    "earlier-is-tiny": np.where(ODD, 64 + 1e-13 * NOISE, 1e-13 * NOISE),
    "earlier-is-tinier": np.where(ODD, 64, 1e-15 * NOISE),
    "differences-equal-but-for-rounding": np.where(ODD, 64, 1e-16 * (3 + NOISE)),
    "differences-round-to-two": np.where(ODD, 64, 7.1e-15 * (1 + 1e-3 * NOISE)),
    "steady-trend": 250 + 0.1 * STEPS + 0 * NOISE,
    "trend-and-noise": 250 + 0.1 * STEPS + 1e-9 * NOISE,
    "steep-trend": 1e6 * STEPS**2 + NOISE,
    "spikes": spikes(1e6),
    "tiny-spikes": 1e-3 + spikes(1e-9),
    "outlier-in-the-sample": outlier(1 + 1e-6 * NOISE),
    "outlier-beside-an-offset": outlier(101325 + NOISE),
    "missing-where-the-guess-looks": np.where(GUESSED, np.nan, 101325 + NOISE),
    "zero-where-the-guess-looks": np.where(GUESSED & (STEPS < 3), 0, 101325 + NOISE),
    "some-missing": np.where(NOISE > 0.5, np.nan, 101325 + NOISE),
    "one-value-a-step": np.where(NOISE.argmax(2, keepdims=True) == np.arange(N).reshape(-1, 1),
                                 101325 + NOISE, np.nan),
    "one-variable-all-missing": NOISE * [1, np.nan],
}  # fmt: skip


def assert_exact(exact, group, values, age, lags):
    found = exact.complaints(group.values, exact.of_values(values, age))
    for lag, summary in group.differences:
        true = exact.of_differences(values, age, lag)
        found += [f"lag {lag}, {text}" for text in exact.complaints(summary, true)]
    assert not found


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("field", FIELDS)
def test_accuracy(count, exact, field, dtype):
    values, age, lags = FIELDS[field].astype(dtype), range(T), [1, 2]
    assert_exact(exact, count(values, age, lags, block_steps=2), values, age, lags)


@pytest.mark.parametrize("points", [1, 2, 3])
@pytest.mark.parametrize("field", FIELDS)
def test_accuracy_on_few_points(count, exact, field, points):
    values, age, lags = np.ascontiguousarray(FIELDS[field][:, :, :points]), range(T), [1, 2]
    assert_exact(exact, count(values, age, lags, block_steps=2), values, age, lags)


@pytest.mark.parametrize("dtype", [">f2", "<f2", ">f4", ">f8", ">i2", "i4", ">i8", "u1", "b1"])
@pytest.mark.parametrize("offset", [0, 100])
def test_stored_types(count, exact, dtype, offset):
    stored = (offset + 10 * abs(NOISE)).astype(dtype)
    age, lags = range(T), [1]
    # NumPy's own conversion is exact for every one of these.
    assert_exact(
        exact, count(to_float(stored), age, lags, block_steps=2), stored.astype("f8"), age, lags
    )


def long_walk(seed):
    return np.random.default_rng(seed).standard_normal((20_000, 1, 2, 1)).cumsum(0)


LARGE = {
    "alternating-0.1": 0.1 * (-1.0) ** np.arange(2 * 300_000).reshape(2, 1, 300_000, 1),
    "alternating-each-step": np.where(np.arange(4).reshape(4, 1, 1, 1) % 2, 0.1, -0.1)
    * np.ones((4, 1, 100_000, 1)),
    "alternating-beside-an-offset": 1e5
    + 0.1 * (-1.0) ** np.arange(2 * 300_000).reshape(2, 1, 300_000, 1),
    "many-tiny-steps": 280 + 1e-3 * long_walk(0),
    "many-tiny-steps-far-off": 1e8 + 1e-6 * long_walk(1),
    "many-points-of-one": 1 + (np.arange(300_000) == 5).astype("f8").reshape(1, 1, -1, 1),
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("field", LARGE)
def test_accuracy_of_long_sums(count, exact, field, dtype):
    values = LARGE[field].astype(dtype)
    age, lags = range(len(values)), [1]
    assert_exact(
        exact, count(values, age, lags, block_steps=-(-len(values) // 100)), values, age, lags
    )


@st.composite
def stored_fields(draw):
    """Values, ages and lags of any kind, without overflow."""
    dtype = np.dtype(draw(st.sampled_from(["f4", "f8"])))
    shape = draw(
        st.tuples(st.integers(1, 6), st.integers(1, 2), st.integers(1, 90), st.integers(1, 4))
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    signs = st.sampled_from([0.0, 1.0, -1.0])
    powers = st.integers(-30, 30).map(lambda power: 10.0**power)
    offset, trend = draw(signs) * draw(powers), draw(signs) * draw(powers)
    noise = draw(st.sampled_from(["normal", "two-valued", "rare", "none"]))
    field = {
        "normal": lambda: rng.standard_normal(shape),
        "two-valued": lambda: rng.choice([-1.0, 1.0], shape),
        "rare": lambda: (rng.random(shape) < 0.02) * 1.0,
        "none": lambda: np.zeros(shape),
    }[noise]() * draw(powers)
    field += offset + trend * np.arange(shape[0]).reshape(-1, 1, 1, 1)
    field[rng.random(shape) < draw(st.sampled_from([0.0, 0.0, 0.1, 0.9]))] = np.nan
    age, run = [], 0
    for _ in range(shape[0]):
        run = draw(st.sampled_from([run, run, run, 0, -1]))
        age.append(run)
        run = max(run + 1, 0)
    lags = draw(st.lists(st.integers(1, 4), max_size=2, unique=True))
    return field.astype(dtype), age, lags, draw(st.integers(1, 4))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(stored_fields())
def test_accuracy_of_anything(count, exact, drawn):
    values, age, lags, block_steps = drawn
    assert_exact(exact, count(values, age, lags, block_steps), values, age, lags)


def test_a_difference_is_the_first_difference(count):
    """Of n^2 the mean of the odd numbers, not 2."""
    squares = np.arange(10.0).reshape(10, 1, 1, 1) ** 2
    ((_, summary),) = count(squares, range(10), [1], block_steps=3).differences
    # 1, 3, ..., 17: mean 9, variance (9^2 - 1) / 3.
    assert (summary.count.item(), summary.mean.item()) == (9, 9.0)
    assert summary.std.item() == pytest.approx((80 / 3) ** 0.5, rel=1e-15)
    assert (summary.min.item(), summary.max.item()) == (1.0, 17.0)


NAN = np.nan


@pytest.mark.parametrize(
    ("series", "age", "values", "lag_1", "lag_2"),
    [
        pytest.param([1, 2, 4], [0, 1, 2], (3, 0), (2, 0), (1, 0), id="complete"),
        pytest.param([1, NAN, 4], [0, 1, 2], (2, 1), (0, 2), (1, 0), id="middle"),
        pytest.param([NAN, 2, 4], [0, 1, 2], (2, 1), (1, 1), (0, 1), id="first"),
        pytest.param([1, np.inf, 4], [0, 1, 2], (2, 1), (0, 2), (1, 0), id="infinite"),
        pytest.param([NAN, NAN, NAN], [0, 1, 2], (0, 3), (0, 2), (0, 1), id="all"),
        pytest.param([1, NAN, 4], [0, 0, 0], (2, 1), (0, 0), (0, 0), id="no-earlier-steps"),
        pytest.param([1, NAN, 4], [0, 1, 0], (2, 1), (0, 1), (0, 0), id="two-trajectories"),
        pytest.param([1, NAN, 4], [0, -1, 0], (2, 0), (0, 0), (0, 0), id="not-selected"),
    ],
)
def test_count_and_missing(count, series, age, values, lag_1, lag_2):
    """A pair counts where both values are there; a step without an earlier one has no pair."""
    field = np.array(series, np.float64).reshape(-1, 1, 1, 1)
    group = count(field, age, [1, 2], block_steps=1)
    summaries = [group.values, *(summary for _, summary in group.differences)]
    assert [(s.count.item(), s.missing.item()) for s in summaries] == [values, lag_1, lag_2]


@pytest.mark.parametrize("scale", [1e155, 1e200, 1e300])
def test_squares_that_overflow_leave_the_rest_right(count, exact, scale):
    """The std does not fit float64's squares: infinite, and written as null."""
    values, age = scale * NOISE, range(T)
    group = count(values, age, [1], block_steps=2)
    true = [exact.of_values(values, age), exact.of_differences(values, age, 1)]
    for summary, of_each in zip([group.values, group.differences[0][1]], true, strict=True):
        assert np.isinf(summary.std).all()
        assert summary.count.tolist() == [each.count for each in of_each]
        assert summary.min.tolist() == [each.low for each in of_each]
        assert summary.max.tolist() == [each.high for each in of_each]
        for mean, each in zip(summary.mean.tolist(), of_each, strict=True):
            assert abs(Fraction(mean) - each.mean) <= exact.ACCURACY * max(abs(each.mean), each.std)


def test_sums_that_overflow_leave_count_and_ends_right(count):
    values = np.array([1.7e308, -1.7e308, 1.6e308] * 20).reshape(6, 1, 5, 2)
    summary = count(values, range(6), [], block_steps=2).values
    assert not np.isfinite(summary.mean).any()
    assert np.isinf(summary.std).all()
    assert (summary.count.tolist(), summary.missing.tolist()) == ([30, 30], [0, 0])
    assert (summary.min.tolist(), summary.max.tolist()) == ([-1.7e308] * 2, [1.7e308] * 2)


def test_the_largest_constant(count):
    summary = count(np.full((4, 1, 3, 1), 1.7e308), range(4), [], block_steps=2).values
    assert (summary.mean.item(), summary.std.item()) == (1.7e308, 0.0)


def test_no_warning_where_nothing_is_there(count):
    summary = count(np.full((2, 1, 3, 1), np.nan), range(2), [5], block_steps=1).values
    assert (summary.count.item(), summary.missing.item()) == (0, 6)
