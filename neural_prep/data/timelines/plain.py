"""Decodes the times that most stores have, whole numbers since a date, without xarray.

xarray and what it imports (pandas, and dask where that is installed) take longer than all else that
opens a store. What is not as plain as this is left to it; a test holds the two together.

Legend: T times of one axis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_prep.data.timelines.times import MICROSECONDS

_SINCE = re.compile(
    r"(day|hour|minute|second|millisecond|microsecond)s? since "
    r"(\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?)"
)
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
# Calendars differ before the first; the last is the last year of four digits.
_FIRST, _LAST = (
    int(np.datetime64(moment, "us").astype(np.int64))
    for moment in ("1582-10-15", "9999-12-31T23:59:59.999999")
)


def plain_positions(raw: NDArray[Any], attrs: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """Microseconds since 1970 of each time, `(T,)`; None where the coordinate is less plain.

    Args:
        raw: Stored numbers, `(T,)`, at least one.
        attrs: The coordinate's attributes.

    >>> plain_positions(np.array([0, 6]), {"units": "hours since 1970-01-01"}).tolist()
    [0, 21600000000]
    """
    since = _SINCE.fullmatch(str(attrs.get("units", "")))
    calendar = str(attrs.get("calendar", _CALENDARS[0])).lower()
    if raw.dtype.kind not in "iu" or since is None or calendar not in _CALENDARS:
        return None
    if "dtype" in attrs:  # a duration that looks like a date
        return None
    try:
        origin = int(np.datetime64(since[2], "us").astype(np.int64))
    except ValueError:  # no day of the calendar
        return None
    unit = MICROSECONDS[since[1]]
    # Python's integers: an end may pass 2^63.
    ends = [origin + unit * int(end) for end in (raw.min(), raw.max())]
    if not all(_FIRST <= position <= _LAST for position in (origin, *ends)):
        return None
    positions = raw.astype(np.int64)
    positions *= unit
    positions += origin
    return positions
