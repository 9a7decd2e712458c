"""Decodes a time coordinate as CF says, through xarray unless it is plain; else it stays numbers.

Legend: T times of one axis.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_prep.data.timelines.plain import plain_positions
from neural_prep.data.timelines.times import EPOCH, MICROSECONDS, NO_TIME, Times

_ATTRIBUTES = ("units", "calendar", "dtype")
_SHORT = {"d": "day", "h": "hour", "hr": "hour", "min": "minute", "sec": "second", "": "second"}
_QUANTA = sorted(MICROSECONDS.values())


def decode_times(name: str, raw: NDArray[Any], attrs: Mapping[str, Any]) -> Times:
    """The times of a coordinate from its stored values `(T,)` and its attributes.

    Times stored as floats are rounded to what their type resolves, so that equal steps stay equal.

    >>> times = decode_times("time", np.array([0, 6]), {"units": "hours since 1970-01-01"})
    >>> times.label(1)
    '1970-01-01T06:00'
    """
    if raw.dtype.kind in "mM":
        kind = "date" if raw.dtype.kind == "M" else "duration"
        return Times(name, _microseconds(raw), kind)  # type: ignore[arg-type]
    if raw.dtype.kind not in "iuf":
        return index_times(name, len(raw), f"{name} holds no numbers but {raw.dtype}")
    if "scale_factor" in attrs or "add_offset" in attrs:
        raw = raw * float(attrs.get("scale_factor", 1)) + float(attrs.get("add_offset", 0))
    known = raw[np.isfinite(raw)] if raw.dtype.kind == "f" else raw
    if len(known) == 0:
        return index_times(name, len(raw), f"{name} holds no finite number")
    positions = plain_positions(raw, attrs)
    if positions is not None:
        return Times(name, positions, "date")
    relevant = {key: attrs[key] for key in _ATTRIBUTES if key in attrs}
    try:  # the extremes decide what xarray decodes to, at the price of two
        ends = _through_xarray(np.array([known.min(), known.max()]), relevant)
        return _decode(name, raw, relevant, ends)
    except (ValueError, OverflowError, ImportError, TypeError, KeyError) as error:
        return _raw_times(name, raw, relevant, error)


def index_times(name: str, count: int, reason: str) -> Times:
    """Times that are but the index, with a note that says why."""
    note = f"{reason}; its index is used as the time"
    return Times(name, np.arange(count, dtype=np.int64) * 1_000_000, "number", note=note)


def _decode(name: str, raw: NDArray[Any], attrs: Mapping[str, Any], ends: NDArray[Any]) -> Times:
    """As `decode_times`, once the two extremes say what xarray makes of the coordinate."""
    quantum = _quantum(raw, attrs)
    if ends.dtype.kind == "M":
        return Times(name, _round(_microseconds(_through_xarray(raw, attrs)), quantum), "date")
    if ends.dtype.kind == "m":
        return Times(name, _round(_microseconds(_through_xarray(raw, attrs)), quantum), "duration")
    if ends.dtype.kind != "O":
        raise ValueError("no units that xarray knows")
    calendar = ends[0].calendar
    return Times(name, _round(_calendar_positions(raw, attrs, ends[0]), quantum), "date", calendar)


def _calendar_positions(
    raw: NDArray[Any], attrs: Mapping[str, Any], lowest: Any
) -> NDArray[np.int64]:
    """Positions in a calendar of cftime, whose `lowest` date is the decoded minimum of `raw`.

    Decoding half a million dates one by one takes three seconds; a unit of constant length needs
    but one of them.
    """
    import cftime  # lazily: only calendars other than NumPy's need it, and xarray has just used it

    known = np.isfinite(raw)
    unit = _unit(attrs)
    if unit is None:
        dates = _through_xarray(raw[known], attrs)
        found = np.asarray(cftime.date2num(dates, EPOCH, lowest.calendar), np.int64)
    else:
        offsets = raw[known] - raw[known].min()
        scaled = (
            offsets.astype(np.int64) * unit
            if raw.dtype.kind in "iu"
            else offsets.astype(np.float64) * unit
        )
        found = int(cftime.date2num(lowest, EPOCH, lowest.calendar)) + np.rint(scaled).astype(
            np.int64
        )
    positions = np.full(len(raw), NO_TIME, np.int64)
    positions[known] = found
    return positions


def _raw_times(name: str, raw: NDArray[Any], attrs: Mapping[str, Any], error: Exception) -> Times:
    units = f"units {attrs['units']!r}" if "units" in attrs else "no units"
    calendar = f", calendar {attrs['calendar']!r}" if "calendar" in attrs else ""
    advice = "; install cftime to decode it" if isinstance(error, ImportError) else ""
    note = f"{name} cannot be decoded ({units}{calendar}){advice}; its numbers are used as they are"
    known = np.isfinite(raw)
    millionths = np.rint(np.where(known, raw, 0).astype(np.float64) * 1e6).astype(np.int64)
    return Times(name, np.where(known, millionths, NO_TIME), "number", note=note)


def _through_xarray(raw: NDArray[Any], attrs: Mapping[str, Any]) -> NDArray[Any]:
    import xarray as xr  # lazily: it takes longer than all else, and few stores need it

    coded = xr.Dataset({"times": ("times", raw, dict(attrs))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on precision and calendars: both are dealt with here
        decoded = xr.decode_cf(
            coded, decode_times=xr.coders.CFDatetimeCoder(time_unit="us"), decode_timedelta=True
        )
        return np.asarray(decoded["times"].values)


def _microseconds(times: NDArray[Any]) -> NDArray[np.int64]:
    """Positions of datetime64 or timedelta64 values; their NaT is `NO_TIME`."""
    return times.astype(f"{times.dtype.kind}8[us]").astype(np.int64)


def _unit(attrs: Mapping[str, Any]) -> int | None:
    """Microseconds in the unit of a coordinate; None where its length is not constant."""
    word = str(attrs.get("units", "")).split(" ")[0].lower().removesuffix("s")
    return MICROSECONDS.get(_SHORT.get(word, word))


def _quantum(raw: NDArray[Any], attrs: Mapping[str, Any]) -> int:
    """The finest of microsecond, millisecond, ... day that floats of this size and type resolve."""
    unit = _unit(attrs)
    if raw.dtype.kind != "f" or unit is None:
        return 1
    error = 4 * unit * float(np.spacing(np.abs(raw[np.isfinite(raw)]).max()))
    return next((quantum for quantum in _QUANTA if quantum >= error), _QUANTA[-1])


def _round(positions: NDArray[np.int64], quantum: int) -> NDArray[np.int64]:
    rounded = (positions + quantum // 2) // quantum * quantum
    return np.where(positions == NO_TIME, NO_TIME, rounded)
