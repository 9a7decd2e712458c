"""The times of one axis as integers, written out for people and compared with what people write.

Integers make calendars, dates and lead times all the same to the arithmetic, and vectorise.

Legend: T times of one axis.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from neural_prep.errors import InputError

NO_TIME = int(np.iinfo(np.int64).min)  # a missing time's position: the integer of NumPy's NaT
EPOCH = "microseconds since 1970-01-01"
MICROSECONDS = {"day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000}
MICROSECONDS |= {"second": 1_000_000, "millisecond": 1_000, "microsecond": 1}

_SHORT = {"day": "D", "hour": "h", "minute": "min", "second": "s", "millisecond": "ms"}
_MOMENT = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?)?)?)?Z?"
)


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one axis as integers.

    Attributes:
        name: The coordinate's name, for messages.
        positions: `(T,)` int64: microseconds since 1970 in the axis' own calendar, microseconds of
            a duration, or millionths of a raw number; `NO_TIME` where a time is missing.
        kind: What a position is.
        calendar: A calendar of `cftime`; None for NumPy's own (proleptic Gregorian).
        note: What a person should know about how the times were read.
    """

    name: str
    positions: NDArray[np.int64]
    kind: Literal["date", "duration", "number"]
    calendar: str | None = None
    note: str | None = None

    def label(self, index: int) -> str:
        """The time at `index`, as short as it can be written.

        >>> Times("time", np.array([3_600_000_000]), "date").label(0)
        '1970-01-01T01:00'
        """
        position = int(self.positions[index])
        if position == NO_TIME:
            return "a missing time"
        if self.kind == "number":
            return self.distance_label(position)
        if self.kind == "duration":
            return f"+{self.distance_label(position)}"
        if self.calendar is not None:
            return _calendar_label(position, self.calendar)
        moment = np.datetime64(position, "us")
        if position % MICROSECONDS["minute"] == 0:
            return str(np.datetime_as_string(moment, unit="m"))
        return str(np.datetime_as_string(moment, unit="s" if position % 1_000_000 == 0 else "us"))

    def distance_label(self, distance: int) -> str:
        """A distance of two positions, as short as it can be written.

        >>> Times("time", np.array([0]), "date").distance_label(21_600_000_000)
        '6h'
        """
        if self.kind == "number":
            return f"{distance / 1e6:.10g}"
        unit = next((unit for unit in _SHORT if distance % MICROSECONDS[unit] == 0), "microsecond")
        return f"{distance // MICROSECONDS[unit]}{_SHORT.get(unit, 'us')}"


def parse_step(text: str, times: Times) -> int | None:
    """The distance of positions that `data.step` means on an axis; None for `any`.

    Raises:
        InputError: if the text is no positive duration, or the axis has no unit of time.
    """
    if text.strip().lower() == "any":
        return None
    if times.kind == "number":
        raise InputError(
            f"data.step: {text!r} cannot be compared with {times.name}, which has no unit of time; "
            "use any"
        )
    import pandas as pd  # lazily: it takes longer than opening a store

    try:  # a bare number is nanoseconds to pandas, and nobody means that
        duration = pd.Timedelta(text) if re.search("[A-Za-z:]", text) else pd.NaT
    except ValueError:
        duration = pd.NaT
    if not duration >= pd.Timedelta(1, "us"):
        raise InputError(
            f"data.step: {text!r} is neither a duration such as 6h, 30min or 1D, nor any"
        )
    return int(duration // pd.Timedelta(1, "us"))


def parse_moment(text: str, times: Times, key: str, *, last: bool) -> int:
    """Position of the first or the last moment that a date or time can mean.

    Args:
        text: ISO 8601, with any number of its fields: `2019`, `2019-12-31`, `2019-12-31T06:00`.
        times: The axis.
        key: Where the text was given, for messages.
        last: Whether the last moment is wanted.

    >>> parse_moment("1970-01-01", Times("time", np.array([0]), "date"), "data.end", last=True)
    86399999999

    Raises:
        InputError: if `text` is no date or time, or the axis has none.
    """
    if times.kind != "date":
        raise InputError(f"{key}: {times.name} holds no dates that {text!r} could be compared with")
    match = _MOMENT.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        if times.calendar is not None:
            return _calendar_moment(match.groups(), times.calendar, last=last)
        moment = np.datetime64(match.group().removesuffix("Z"))
        return int((moment + int(last)).astype("datetime64[us]").astype(np.int64)) - int(last)
    except ValueError:
        calendar = f" of the calendar {times.calendar}" if times.calendar else ""
        raise InputError(
            f"{key}: {text!r} is no date{calendar} such as 2019-12-31 or 2019-12-31T06:00"
        ) from None


def _calendar_label(position: int, calendar: str) -> str:
    import cftime  # lazily: only calendars other than NumPy's need it

    moment = cftime.num2date(position, EPOCH, calendar)
    return str(moment.isoformat(timespec="minutes" if moment.second == 0 else "seconds"))


def _calendar_moment(fields: tuple[str | None, ...], calendar: str, *, last: bool) -> int:
    """As `parse_moment`; `fields` are year, month, day, hour, minute, second and fraction."""
    import cftime

    given = [int(text) for text in fields[:6] if text is not None]
    moment = cftime.datetime(*given, *[1, 1][len(given) - 1 :], calendar=calendar)
    if fields[6] is not None:
        return _calendar_position(moment, calendar) + int(fields[6].ljust(6, "0"))
    if not last:
        return _calendar_position(moment, calendar)
    return _calendar_position(_next_moment(moment, len(given)), calendar) - 1


def _calendar_position(moment: Any, calendar: str) -> int:
    import cftime

    return int(cftime.date2num(moment, EPOCH, calendar))


def _next_moment(moment: Any, precision: int) -> Any:
    """The moment one year, month, day, hour, minute or second later (precision 1 to 6)."""
    if precision == 1:
        return moment.replace(year=moment.year + 1)
    if precision == 2:
        year, month = divmod(moment.year * 12 + moment.month, 12)
        return moment.replace(year=year, month=month + 1)
    return moment + timedelta(**{("days", "hours", "minutes", "seconds")[precision - 3]: 1})
