"""Time lines: decoding, selection, the time step, trajectories."""

import time

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from neural_prep.data.timelines.decode import decode_times, index_times
from neural_prep.data.timelines.plain import plain_positions
from neural_prep.data.timelines.timeline import make_timeline, pick_step, trajectory_ages
from neural_prep.data.timelines.times import NO_TIME, Times, parse_moment, parse_step
from neural_prep.errors import InputError

DAY = 86_400_000_000
HOUR = DAY // 24


def dates(*texts):
    return Times("time", np.array(texts, "datetime64[us]").astype(np.int64), "date")


def days(*numbers, calendar="noleap", since="2019-12-30"):
    return decode_times(
        "time", np.array(numbers), {"units": f"days since {since}", "calendar": calendar}
    )


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        pytest.param([0, 6, 12, 18], 6, id="constant"),
        pytest.param([0, 6, 12, 36, 42], 6, id="one gap"),
        pytest.param([0, 6, 18], 6, id="smaller on a tie"),
        pytest.param([0, 12, 18], 6, id="smaller on a tie, later"),
        pytest.param([9, 6, 3, 0, 5], 5, id="only forward distances"),
        pytest.param([7, 7, 7], None, id="repeated"),
        pytest.param([4], None, id="single"),
        pytest.param([NO_TIME, 0, 3], 3, id="missing time"),
    ],
)
def test_step_is_the_most_frequent_distance(positions, expected):
    assert pick_step(np.array(positions)) == expected


@pytest.mark.parametrize(
    ("positions", "selected", "step", "ages"),
    [
        pytest.param([0, 1, 2], "111", 1, [0, 1, 2], id="plain"),
        pytest.param([0, 1, 3, 4], "1111", 1, [0, 1, 0, 1], id="gap"),
        pytest.param([0, 1, 2, 3], "0110", 1, [-1, 0, 1, -1], id="selection"),
        pytest.param([0, 1, 2, 3], "1011", 1, [0, -1, 0, 1], id="hole"),
        pytest.param([0, 1, 1, 2], "1111", 1, [0, 1, 0, 1], id="repeated"),
        pytest.param([0, 1, 0, 1], "1111", 1, [0, 1, 0, 1], id="unsorted"),
        pytest.param([0, 31, 59, 90], "1111", None, [0, 1, 2, 3], id="any"),
        pytest.param([0, 31, 31, 30], "1111", None, [0, 1, 0, 0], id="any, backwards"),
        pytest.param([0, NO_TIME, 1], "111", 1, [0, 0, 0], id="missing time"),
        pytest.param([0, NO_TIME, 1], "111", None, [0, 0, 0], id="missing time, any"),
        pytest.param([5], "1", None, [0], id="single"),
    ],
)
def test_ages(positions, selected, step, ages):
    mask = np.array([mark == "1" for mark in selected])
    assert trajectory_ages(np.array(positions), mask, step).tolist() == ages


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([None, 1, 2]),
)
def test_ages_agree_with_a_walk_along_the_axis(steps, step):
    positions, selected = zip(*steps, strict=True)
    expected = []
    for index, chosen in enumerate(selected):
        distance = positions[index] - positions[index - 1] if index else 0
        joined = distance > 0 if step is None else distance == step
        continues = index > 0 and expected[-1] >= 0 and joined
        expected.append((expected[-1] + 1 if continues else 0) if chosen else -1)
    assert trajectory_ages(np.array(positions), np.array(selected), step).tolist() == expected


@pytest.mark.parametrize(
    ("start", "end", "selected"),
    [
        pytest.param(None, None, [0, 1, 2, 3, 4], id="all"),
        pytest.param("2019-12-31", None, [1, 2, 3, 4], id="start is the date's first moment"),
        pytest.param(None, "2019-12-31", [0, 1, 2], id="end is the date's last moment"),
        pytest.param(None, "2019-12-31T00:00", [0, 1], id="end with a time"),
        pytest.param("2020", None, [3, 4], id="year"),
        pytest.param(None, "2019", [0, 1, 2], id="end of a year"),
        pytest.param("2019-12", "2019-12", [0, 1, 2], id="month"),
        pytest.param("2019-12-31 23:59:59.5", "2020-01-01T00:00:00Z", [3], id="fraction and zone"),
    ],
)
@pytest.mark.parametrize("calendar", ["proleptic_gregorian", "noleap", "360_day"])
def test_bounds_are_inclusive(start, end, selected, calendar):
    times = days(0, 1, 1.5, 2, 3, calendar=calendar)
    if calendar == "360_day":  # December has 30 days
        times = days(-1, 0, 0.5, 1, 2, calendar=calendar)
        start, end = (text and text.replace("12-31", "12-30") for text in (start, end))
    line = make_timeline(times, start=start, end=end, step="any")
    assert np.flatnonzero(line.age >= 0).tolist() == selected


def test_noleap_year_has_no_gap_in_february():
    line = make_timeline(days(*range(60), since="2020-01-01"))
    assert line.age.tolist() == list(range(60))
    assert line.times.label(59) == "2020-03-01T00:00"
    with pytest.raises(InputError, match=r"'2020-02-29' is no date of the calendar noleap"):
        make_timeline(line.times, end="2020-02-29")


def test_an_empty_selection_names_the_range_and_the_axis():
    with pytest.raises(InputError) as error:
        make_timeline(dates("2000-01-01", "2000-01-01T06"), start="2001", end="2001-02-01")
    assert str(error.value) == (
        "no step lies from 2001 to 2001-02-01: time runs from 2000-01-01T00:00 to "
        "2000-01-01T06:00; change data.start, data.end or data.split"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6h", 6 * HOUR),
        ("1D", DAY),
        ("30min", HOUR // 2),
        ("PT3H", 3 * HOUR),
        ("90 minutes", 3 * HOUR // 2),
        ("any", None),
        ("ANY ", None),
    ],
)
def test_step_option(text, expected):
    assert parse_step(text, dates("2000")) == expected


@pytest.mark.parametrize("text", ["6", "", "six hours", "-6h", "0h", "nat", "1 month"])
def test_a_step_that_is_no_duration(text):
    with pytest.raises(InputError, match=r"data\.step: .* is neither a duration such as 6h"):
        parse_step(text, dates("2000"))


def test_a_step_for_times_without_a_unit():
    with pytest.raises(InputError, match=r"data\.step: '6h' cannot be compared with x"):
        parse_step("6h", index_times("x", 3, "why"))


@pytest.mark.parametrize("text", ["20191231", "2019-13", "2019-02-30", "31.12.2019", "", "now"])
def test_a_moment_that_is_none(text):
    with pytest.raises(InputError, match=r"data\.end: .* is no date such as 2019-12-31"):
        parse_moment(text, dates("2000"), "data.end", last=True)


def test_a_moment_on_an_axis_without_dates():
    with pytest.raises(InputError, match=r"data\.start: lead holds no dates"):
        parse_moment("2000", Times("lead", np.array([0]), "duration"), "data.start", last=False)


@pytest.mark.parametrize(
    ("times", "warnings"),
    [
        pytest.param(dates("2000-01-01", "2000-01-02", "2000-01-03"), [], id="regular"),
        pytest.param(
            dates("2000-01-03", "2000-01-04", "2000-01-01", "2000-01-02"),
            ["time is unsorted, repeated or missing at 1 steps; each of them begins a trajectory"],
            id="unsorted",
        ),
        pytest.param(
            dates("2000-01-01", "2000-02-01", "2000-03-01", "2000-04-01"),
            ["1 of 3 neighbours in time are not 31D apart"],
            id="monthly",
        ),
        pytest.param(
            index_times("time", 2, "time has no coordinate"),
            ["time has no coordinate; its index is used as the time"],
            id="note",
        ),
    ],
)
def test_warnings(times, warnings):
    found = make_timeline(times).warnings
    assert len(found) == len(warnings)
    for line, start in zip(found, warnings, strict=True):
        assert line.startswith(start)


def test_monthly_data_with_any_has_one_trajectory_and_no_warning():
    line = make_timeline(dates("2000-01", "2000-02", "2000-03"), step="any")
    assert (line.trajectories, line.steps, line.warnings) == (1, 3, ())


@pytest.mark.parametrize(
    ("raw", "attrs", "kind", "label"),
    [
        pytest.param(
            np.array([0, 6]),
            {"units": "hours since 1959-01-01"},
            "date",
            "1959-01-01T06:00",
            id="i",
        ),
        pytest.param(
            np.array([0, 1.25]),
            {"units": "days since 2000-01-01"},
            "date",
            "2000-01-02T06:00",
            id="float",
        ),
        pytest.param(
            np.array([0, 6]),
            {"units": "hours", "dtype": "timedelta64[ns]"},
            "duration",
            "+6h",
            id="lead",
        ),
        pytest.param(
            np.array(["2000-01-01", "2000-01-02T03"], "M8[ns]"),
            {},
            "date",
            "2000-01-02T03:00",
            id="native date",
        ),
        pytest.param(np.array([0, 90], "m8[m]"), {}, "duration", "+90min", id="native duration"),
        pytest.param(np.array([1, 2.5]), {}, "number", "2.5", id="no units"),
        pytest.param(
            np.array([0, 1]), {"units": "hour since 0000-01-01"}, "number", "1", id="year 0"
        ),
        pytest.param(np.array(["a", "b"]), {}, "number", "1", id="text"),
        pytest.param(
            np.array([np.nan, np.nan]), {"units": "days since 2000"}, "number", "1", id="nan"
        ),
        pytest.param(
            np.array([0, 40]),
            {"units": "days since 2000-01-01", "calendar": "360_day"},
            "date",
            "2000-02-11T00:00",
            id="360 days",
        ),
        pytest.param(
            np.array([0, 2]),
            {"units": "months since 2000-01-01", "calendar": "360_day"},
            "date",
            "2000-03-01T00:00",
            id="months",
        ),
        pytest.param(
            np.array([0, 10]),
            {"units": "days since 2000-01-01", "scale_factor": 0.1, "add_offset": 1.0},
            "date",
            "2000-01-03T00:00",
            id="packed",
        ),
    ],
)
def test_decoding(raw, attrs, kind, label):
    times = decode_times("time", raw, attrs)
    assert (times.kind, times.label(1)) == (kind, label)
    assert (times.note is None) == (kind != "number")


def test_missing_times_stay_missing():
    for calendar in ("standard", "noleap"):
        raw, attrs = np.array([0, np.nan, 2]), {"units": "days since 2000-01-01"}
        times = decode_times("time", raw, attrs | {"calendar": calendar})
        assert times.positions[1] == NO_TIME
        assert times.label(1) == "a missing time"
        assert make_timeline(times).age.tolist() == [0, 0, 0]
        assert make_timeline(times, end="2001").age.tolist() == [0, -1, 0]


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
@pytest.mark.parametrize(
    ("dtype", "step_hours", "units"),
    [("f8", 1, "days"), ("f8", 3, "hours"), ("f4", 24, "days"), ("f4", 24, "hours")],
)
def test_rounding_of_float_times_keeps_equal_steps_equal(dtype, step_hours, units, calendar):
    hours = 24 * 365 * 120 + step_hours * np.arange(1000)
    raw = (hours / (24 if units == "days" else 1)).astype(dtype)
    times = decode_times("time", raw, {"units": f"{units} since 1900-01-01", "calendar": calendar})
    assert np.unique(np.diff(times.positions)).tolist() == [step_hours * HOUR]


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_half_a_million_steps_take_no_time(calendar):
    raw, attrs = np.arange(500_000), {"units": "hours since 1959-01-01", "calendar": calendar}
    decode_times("time", raw[:2], attrs)  # imports
    begun = time.perf_counter()
    line = make_timeline(decode_times("time", raw, attrs), start="1990", end="2010-06-30")
    assert time.perf_counter() - begun < 0.2  # measured: 0.04
    assert (line.steps, line.trajectories) == (179_664 if calendar == "standard" else 179_544, 1)


@pytest.mark.parametrize("unit", ["days", "hour", "minutes", "seconds", "milliseconds"])
@pytest.mark.parametrize(
    "since", ["1582-10-15", "1900-01-01T06:00", "1970-01-01 00:00:30", "2000-02-29T12:00:00.25"]
)
@pytest.mark.parametrize("dtype", ["i8", "u2", ">i4"])
def test_plain_times_are_what_xarray_makes_of_them(unit, since, dtype):
    raw = np.array([0, 7, 1, 30_000], dtype)
    for calendar in ({}, {"calendar": "standard"}, {"calendar": "Proleptic_Gregorian"}):
        attrs = {"units": f"{unit} since {since}"} | calendar
        coded = xr.Dataset({"times": ("times", raw, attrs)})
        coder = xr.coders.CFDatetimeCoder(time_unit="us")
        expected = xr.decode_cf(coded, decode_times=coder)["times"].values.astype("M8[us]")
        found = plain_positions(raw, attrs)
        assert found is not None
        assert found.tolist() == expected.astype(np.int64).tolist()


@pytest.mark.parametrize(
    ("raw", "attrs"),
    [
        pytest.param([0.5], {"units": "days since 2000-01-01"}, id="fractions"),
        pytest.param([1], {"units": "days"}, id="no date"),
        pytest.param([1], {"units": "months since 2000-01-01"}, id="months"),
        pytest.param([1], {"units": "days since 2000-01-01", "calendar": "noleap"}, id="calendar"),
        pytest.param([1], {"units": "days since 1-1-1"}, id="date in short"),
        pytest.param([1], {"units": "days since 0001-01-01"}, id="early origin"),
        pytest.param([1], {"units": "hours since 2000-01-01 00:00 +01:00"}, id="zone"),
        pytest.param([1], {"units": "days since 2001-02-29"}, id="no day"),
        pytest.param([-160_000], {"units": "days since 2000-01-01"}, id="early times"),
        pytest.param([2**62], {"units": "days since 2000-01-01"}, id="late times"),
        pytest.param([-(2**63), 1], {"units": "days since 2000-01-01"}, id="missing time"),
        pytest.param(
            [1], {"units": "days since 2000-01-01", "dtype": "timedelta64[ns]"}, id="duration"
        ),
    ],
)
def test_times_that_are_less_plain_are_left_to_xarray(raw, attrs):
    assert plain_positions(np.array(raw), attrs) is None
