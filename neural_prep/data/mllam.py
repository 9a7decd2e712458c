"""The layout of mllam-data-prep: one zarr array for each group, its features along a dimension."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from neural_prep.data.chunked.arrays import Axes
from neural_prep.data.chunked.source import (
    Part,
    ZarrSource,
    build_source,
    check_array,
    member_count,
)
from neural_prep.data.chunked.store import StoredArray, ZarrStore, is_group, open_store
from neural_prep.data.names import FeatureNames
from neural_prep.data.source import StoreOptions
from neural_prep.data.timelines.stored import StoreTimes
from neural_prep.errors import InputError

_GROUPS = ("state", "forcing", "static")
_TIME, _GRID, _MEMBER = "time", "grid_index", "ensemble_member"
_ANALYSIS, _ELAPSED = "analysis_time", "elapsed_forecast_duration"


def recognises(path: Path) -> bool:
    """Whether `path` is a zarr group with a `state` array that has features."""
    return is_group(path) and (path / "state").is_dir() and holds_layout(open_store(str(path)))


def holds_layout(store: ZarrStore) -> bool:
    """Whether a zarr group that has been opened has a `state` array with features."""
    arrays = store.arrays
    return "state" in arrays and (
        "state_feature" in arrays or "state_feature" in arrays["state"].dims
    )


def open_source(options: StoreOptions) -> ZarrSource:
    """Opens and cuts a store.

    Raises:
        InputError: if it isn't such a store, or doesn't have what the options ask for.
    """
    if options.region != "all":
        raise InputError("data.region: interior needs the MEPS layout's border mask; use all")
    store = open_store(options.path, options.retries, options.storage_options, options.decoder)
    if "state" not in store.arrays:
        raise InputError(f"{store.path} has no array state, but {', '.join(store.arrays)}")
    start, end = _bounds(store, options)
    arrays = [store.arrays[group] for group in _GROUPS if group in store.arrays]
    times = StoreTimes(store, start, end, options.step)
    groups = {stored.name: [_open_group(store, stored, options, times)] for stored in arrays}
    return build_source(options, "mllam", groups)


def _bounds(store: ZarrStore, options: StoreOptions) -> tuple[str | None, str | None]:
    """Start and end of the chosen split, where the options don't override them."""
    if options.split is None:
        return options.start, options.end
    splits = _read_splits(store)
    if not splits:
        raise InputError(
            f"data.split: {options.split!r}: {store.path} has no splits; leave data.split out, or "
            "use data.start and data.end"
        )
    if options.split not in splits:
        raise InputError(
            f"data.split: {options.split!r} is no split of {store.path}; it has {', '.join(splits)}"
        )
    start, end = splits[options.split]
    return options.start or start, options.end or end


def _read_splits(store: ZarrStore) -> dict[str, tuple[str, str]]:
    """Start and end of each split, from `splits (split_name, split_part)`."""
    if "splits" not in store.arrays:
        return {}
    stored = store.arrays["splits"]
    expected = ("split_name", "split_part")
    if sorted(stored.dims) != sorted(expected) or "split_name" not in store.arrays:
        raise InputError(
            f"{store.path}: splits has dimensions {list(stored.dims)}; expected {list(expected)}, "
            "and an array split_name"
        )
    table = stored.values().transpose([stored.dims.index(dim) for dim in expected])
    names = _texts(store, "split_name") or ()
    parts = _texts(store, "split_part") or ("start", "end")
    if not {"start", "end"}.issubset(parts):
        raise InputError(f"{store.path}: split_part holds {list(parts)}; expected start and end")
    ends = (parts.index("start"), parts.index("end"))
    return {
        name: (_text(row[ends[0]]), _text(row[ends[1]]))
        for name, row in zip(names, table, strict=True)
    }


def _open_group(
    store: ZarrStore, stored: StoredArray, options: StoreOptions, times: StoreTimes
) -> Part:
    group = stored.name
    axes = _find_axes(store, stored)
    features = stored.shape[axes.variables[0]]
    variables, columns = _names(store, group, options).columns(features)
    data = check_array(store, group, axes, times)
    return Part(data, variables, columns, member_count(stored, [_MEMBER]))


def _find_axes(store: ZarrStore, stored: StoredArray) -> Axes:
    """The axes by name.

    Raises:
        InputError: if one that the group needs is not there.
    """
    feature = f"{stored.name}_feature"
    time = [_ANALYSIS, _ELAPSED] if _ANALYSIS in stored.dims or _ELAPSED in stored.dims else [_TIME]
    needed = [*time, feature, _GRID] if stored.name == "state" else [feature]
    missing = [dim for dim in needed if dim not in stored.dims]
    if missing:
        found = ", ".join(stored.dims) or "no dimension names"
        raise InputError(
            f"{store.path}: {stored.name} lacks dimension {', '.join(missing)}: "
            f"it has {found}; expected {', '.join(needed)} in any order"
        )
    at = {dim: axis for axis, dim in enumerate(stored.dims)}
    if _ELAPSED in at:
        return Axes(at[_ELAPSED], at.get(_ANALYSIS), (at[feature],))
    return Axes(at.get(_TIME, at.get(_ANALYSIS)), None, (at[feature],))


def _names(store: ZarrStore, group: str, options: StoreOptions) -> FeatureNames:
    """Names and units of a group's features: the user's own for the state, else the store's."""
    names = _texts(store, f"{group}_feature")
    units = _texts(store, f"{group}_feature_units")
    if names is not None and units is not None and len(units) != len(names):
        raise InputError(
            f"{store.path}: {group}_feature_units has {len(units)} entries, "
            f"{group}_feature has {len(names)}"
        )
    kept_units = None if units is None else tuple(unit or None for unit in units)
    if group != "state":
        return FeatureNames(names, kept_units, (), f"{store.path}: {group}_feature")
    if options.variables is not None:
        return FeatureNames(options.variables, None, options.drop or (), "data.variables")
    origin = "data.drop" if options.drop else f"{store.path}: {group}_feature"
    return FeatureNames(names, kept_units, options.drop or (), origin)


def _texts(store: ZarrStore, name: str) -> tuple[str, ...] | None:
    if name not in store.arrays:
        return None
    return tuple(map(_text, np.ravel(store.arrays[name].values())))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
