"""The layout of all that xarray writes: one zarr array for each variable, with CF attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from neural_prep.data.cf_meaning import MEMBERS, find_data, is_date, is_lead, is_level, is_start
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
from neural_prep.data.source import StoreOptions, Variable
from neural_prep.data.timelines.stored import StoreTimes
from neural_prep.errors import InputError

GENERAL = True  # any zarr group will do, so more special layouts go first


def recognises(path: Path) -> bool:
    """Whether `path` is a zarr group with at least one array."""
    return is_group(path) and any(
        (entry / name).is_file() for entry in path.iterdir() for name in (".zarray", "zarr.json")
    )


def holds_layout(store: ZarrStore) -> bool:
    """Whether a zarr group that has been opened is such a store: any is."""
    return True


def open_source(options: StoreOptions) -> ZarrSource:
    """Opens and cuts a store.

    Raises:
        InputError: if it isn't such a store, or doesn't have what the options ask for.
    """
    _check_options(options)
    store = open_store(options.path, options.retries, options.storage_options, options.decoder)
    data = find_data(store)
    named = [stored for stored in data if stored.dims]
    warnings = [
        f"{each.name} has no dimension names and is left out" for each in data if not each.dims
    ]
    if not named:
        raise InputError(
            f"{store.path} has no array of data with named dimensions among "
            f"{', '.join(store.arrays)}; say which layout it is with data.layout"
        )
    axes = {stored.name: _find_axes(store, stored) for stored in named}
    labels = _level_labels(store, named, axes)
    times = StoreTimes(store, options.start, options.end, options.step)
    groups: dict[str, list[Part]] = {}
    for stored in named:
        meaning = axes[stored.name]
        # Coefficients of levels, one value for each, are no fields.
        if meaning.time is not None or meaning.grid(len(stored.shape)):
            group = "static" if meaning.time is None else "state"
            part = _open_array(store, stored, meaning, times, labels)
            groups.setdefault(group, []).append(part)
    if not groups:
        raise InputError(f"{store.path} has no variable on a grid among {', '.join(axes)}")
    if "state" in groups:
        groups["state"] = _drop(groups["state"], options)
    return build_source(options, "cf", dict(sorted(groups.items())), warnings)


def _check_options(options: StoreOptions) -> None:
    if options.region != "all":
        raise InputError("data.region: interior needs the MEPS layout's border mask; use all")
    if options.split is not None:
        raise InputError(
            f"data.split: {options.split!r}: the cf layout has no splits; leave data.split out, or "
            "use data.start and data.end"
        )
    if options.variables is not None:
        raise InputError("data.variables: the cf layout has names of its own; leave it out")


def _find_axes(store: ZarrStore, stored: StoredArray) -> Axes:
    """What an array's axes mean.

    Raises:
        InputError: if more than one of them could be the time.
    """
    at = {dim: axis for axis, dim in enumerate(stored.dims)}
    levels = tuple(axis for dim, axis in at.items() if is_level(store, dim))
    dates = [dim for dim in at if is_date(store, dim)]
    leads = [dim for dim in at if is_lead(store, dim)]
    if len(dates) == 2 and not leads:  # starts of forecasts, and the times that they hold for
        starts = [dim for dim in dates if is_start(store, dim)]
        if len(starts) == 1:
            leads = [dim for dim in dates if dim not in starts]
            dates = starts
    if len(dates) > 1 or len(leads) > 1:
        raise InputError(
            f"{store.path}: {stored.name} has {', '.join(dates + leads)} as dimensions of time; "
            "expected one, or the forecasts' starts and their lead times"
        )
    run = at[dates[0]] if dates and leads else None
    time = at[(leads or dates)[0]] if leads or dates else None
    return Axes(time, run, levels)


def _open_array(
    store: ZarrStore,
    stored: StoredArray,
    axes: Axes,
    times: StoreTimes,
    labels: Mapping[str, Sequence[str]],
) -> Part:
    """One array; each combination of its levels is the variable `<array>_<level:g>`."""
    names = [stored.name]
    for axis in axes.variables:
        names = [f"{name}_{label}" for name in names for label in labels[stored.dims[axis]]]
    unit = str(stored.attrs["units"]) if "units" in stored.attrs else None
    return Part(
        check_array(store, stored.name, axes, times),
        tuple(Variable(name, unit) for name in names),
        tuple(range(len(names))),
        member_count(stored, MEMBERS),
    )


def _level_labels(
    store: ZarrStore, arrays: Iterable[StoredArray], axes: Mapping[str, Axes]
) -> dict[str, list[str]]:
    """The levels' values along each vertical dimension; indices where values are not distinct."""
    sizes = {
        stored.dims[axis]: stored.shape[axis]
        for stored in arrays
        for axis in axes[stored.name].variables
    }
    labels = {}
    for dim, size in sizes.items():
        coordinate = store.arrays.get(dim)
        values = [] if coordinate is None else np.ravel(coordinate.values()).tolist()
        texts = [value if isinstance(value, str) else f"{float(value):g}" for value in values]
        distinct = len(set(texts)) == len(texts) == size
        labels[dim] = texts if distinct else [str(index) for index in range(size)]
    return labels


def _drop(parts: list[Part], options: StoreOptions) -> list[Part]:
    """Leaves out the variables with the indices in `data.drop`, counted through all arrays."""
    if not options.drop:
        return parts
    names = FeatureNames(None, None, options.drop, "data.drop")
    _, columns = names.columns(sum(len(part.variables) for part in parts))
    kept, first = [], 0
    for part in parts:
        used = [column >= 0 for column in columns[first : first + len(part.variables)]]
        first += len(part.variables)
        variables = tuple(each for each, use in zip(part.variables, used, strict=True) if use)
        positions = np.where(used, np.cumsum(used) - 1, -1).tolist()
        kept.append(Part(part.data, variables, tuple(positions), part.members))
    return kept
