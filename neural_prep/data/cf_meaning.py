"""What the arrays and dimensions of a CF store mean, as their attributes and usual names say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from neural_prep.data.chunked.store import StoredArray, ZarrStore

MEMBERS = ("number", "realization", "member", "ensemble", "ensemble_member", "ens", "sample")

_LEADS = ("prediction_timedelta", "step", "lead_time", "leadtime", "lead", "forecast_period")
_STARTS = ("init_time", "init", "initial_time", "analysis_time", "forecast_reference_time")
_LEVELS = re.compile(
    r"(\w+_)?(level|layer)s?|p?lev|pressure|isobaricinh?pa|hybrid|sigma|theta|height|altitude|depth|"
    "heightaboveground|depthbelowland(layer)?"
)
_PRESSURES = re.compile("[hk]?pa|mb|d?bar|m(illi)?bars?|decibar")
_VERTICAL_NAMES = re.compile(
    "air_pressure|height|altitude|depth|model_level_number|(atmosphere|ocean)_.*_coordinate"
)
_HORIZONTAL_NAMES = re.compile("(grid_)?(lat(itude)?|lon(gitude)?)|projection_[xy]_coordinate")
_DEGREES = re.compile(r"degrees?_?(north|south|east|west|[nsew])", re.IGNORECASE)
_SINCE = re.compile(r"\s*\w+\s+since\s", re.IGNORECASE)


def find_data(store: ZarrStore) -> list[StoredArray]:
    """The arrays that hold training data: no coordinates, bounds, text, times or lone numbers."""
    dims = {dim for stored in store.arrays.values() for dim in stored.dims}
    named = dims | set(_named_elsewhere(store))
    return [
        stored
        for stored in store.arrays.values()
        if stored.name not in named and stored.shape and not _is_auxiliary(stored)
    ]


def is_start(store: ZarrStore, dim: str) -> bool:
    """Whether a dimension counts the starts of forecasts."""
    coordinate = store.arrays.get(dim)
    known = coordinate is not None and _standard_name(coordinate) == "forecast_reference_time"
    return known or dim.lower() in _STARTS


def is_lead(store: ZarrStore, dim: str) -> bool:
    """Whether a dimension counts time since a forecast's start."""
    coordinate = store.arrays.get(dim)
    if is_date(store, dim):
        return False
    if coordinate is None:
        return dim.lower() in _LEADS
    duration = coordinate.dtype.kind == "m" or _is_duration(coordinate)
    return duration or (dim.lower() in _LEADS and coordinate.dtype.kind in "iuf")


def is_date(store: ZarrStore, dim: str) -> bool:
    """Whether a dimension counts times, be they decodable or not."""
    coordinate = store.arrays.get(dim)
    if coordinate is None:
        return dim.lower() == "time"
    if coordinate.dtype.kind == "M" or _counts_since(coordinate):
        return True
    axis_or_name = coordinate.attrs.get("axis") == "T" or _standard_name(coordinate) == "time"
    return not _is_duration(coordinate) and (axis_or_name or dim.lower() == "time")


def is_level(store: ZarrStore, dim: str) -> bool:
    """Whether a dimension is vertical, so that each of its levels is a variable."""
    coordinate = store.arrays.get(dim)
    if _LEVELS.fullmatch(dim.lower()):
        return True
    if coordinate is None:
        return False
    attrs = coordinate.attrs
    return (
        attrs.get("axis") == "Z"
        or "positive" in attrs
        or _VERTICAL_NAMES.fullmatch(_standard_name(coordinate)) is not None
        or _PRESSURES.fullmatch(str(attrs.get("units", "")).lower()) is not None
    )


def _named_elsewhere(store: ZarrStore) -> Iterator[str]:
    """Names that another array calls its coordinates, bounds, cell sizes or projection."""
    for attrs in (store.attrs, *(stored.attrs for stored in store.arrays.values())):
        for key in ("coordinates", "bounds", "climatology", "grid_mapping", "cell_measures"):
            yield from str(attrs.get(key, "")).replace(":", " ").split()
        for name in str(attrs.get("formula_terms", "")).replace(":", " ").split():
            # Coefficients of levels; a surface pressure among the terms is data.
            if name in store.arrays and len(store.arrays[name].shape) < 2:
                yield name


def _is_auxiliary(stored: StoredArray) -> bool:
    """Whether an array's own type, attributes or name say that it describes other arrays."""
    return (
        stored.dtype.kind in "SUOTVMm"
        or _counts_since(stored)
        or _is_duration(stored)
        or _HORIZONTAL_NAMES.fullmatch(_standard_name(stored) or stored.name.lower()) is not None
        or _DEGREES.fullmatch(str(stored.attrs.get("units", ""))) is not None
        or stored.name.endswith(("_bnds", "_bounds"))
    )


def _standard_name(stored: StoredArray) -> str:
    return str(stored.attrs.get("standard_name", ""))


def _counts_since(stored: StoredArray) -> bool:
    return _SINCE.match(str(stored.attrs.get("units", ""))) is not None


def _is_duration(stored: StoredArray) -> bool:
    declared = str(stored.attrs.get("dtype", "")).startswith("timedelta64")
    return declared or _standard_name(stored) == "forecast_period"
