"""A zarr store as a source: its arrays checked, their variables numbered, and all of it cut.

Layouts say what the arrays and dimensions of a store mean; this is what they have in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neural_prep.data.chunked.arrays import Axes, DataArray
from neural_prep.data.chunked.missing import read_coding
from neural_prep.data.chunked.remote import is_url
from neural_prep.data.chunked.series import ChunkedSeries, cut_array
from neural_prep.data.chunked.store import StoredArray, ZarrStore
from neural_prep.data.retry import without_secrets
from neural_prep.data.source import Group, StoreOptions, Variable
from neural_prep.data.timelines.stored import StoreTimes
from neural_prep.data.timelines.timeline import Timeline
from neural_prep.errors import InputError


@dataclass(frozen=True, slots=True)
class ZarrSource:
    """A zarr store that has been opened, checked and cut; implements `Source`."""

    path: str
    remote: bool
    layout: str
    split: str | None
    groups: tuple[Group, ...]
    series: tuple[ChunkedSeries, ...]
    warnings: tuple[str, ...]
    identity: Mapping[str, object]
    extent: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a group.

    Attributes:
        data: The array.
        variables: Its variables that are used.
        columns: For each variable stored, its position in `variables`; -1: not used.
        members: Ensemble members on its grid, each of them a trajectory of its own.
    """

    data: DataArray
    variables: tuple[Variable, ...]
    columns: tuple[int, ...]
    members: int


def build_source(
    options: StoreOptions,
    layout: str,
    groups: Mapping[str, Sequence[Part]],
    warnings: Iterable[str] = (),
) -> ZarrSource:
    """Numbers the variables of each group, and cuts all arrays into series and blocks.

    Args:
        options: What was asked for.
        layout: The layout's name.
        groups: The arrays of each group, in the order of their variables.
        warnings: What the layout has to say.
    """
    described, series = [], []
    arrays: dict[str, dict[str, object]] = {}
    for name, parts in groups.items():
        variables: list[Variable] = []
        for part in parts:
            first = len(variables)
            columns = [first + column if column >= 0 else -1 for column in part.columns]
            lenient = options.corrupt == "missing"
            series += cut_array(part.data, name, columns, options.block_bytes, lenient=lenient)
            variables += (_packed(variable, part.data) for variable in part.variables)
            found = {"group": name, "columns": columns} | _describe(part.data)
            arrays[part.data.stored.name] = found
        _check_names(variables, parts)
        described.append(_group(name, variables, parts))
    data = [part.data for parts in groups.values() for part in parts]
    lines = {id(line): line for each in data for line in (each.time, each.run) if line is not None}
    notes = [note for line in lines.values() for note in line.warnings]
    identity = {
        "layout": layout,
        "arrays": arrays,
        "times": {line.times.name: _describe_times(line) for line in lines.values()},
        "names": {group.name: [each.name for each in group.variables] for group in described},
        "split": options.split,
        "start": options.start,
        "end": options.end,
        "step": options.step,
        "drop": None if options.drop is None else list(options.drop),
    }
    extent = {
        "shapes": {each.stored.name: list(each.stored.shape) for each in data},
        "times": sorted(_digest(line) for line in lines.values()),
    }
    return ZarrSource(
        without_secrets(options.path),
        is_url(options.path),
        layout,
        options.split,
        tuple(described),
        tuple(series),
        tuple(dict.fromkeys([*warnings, *notes, *_zero_fill(data)])),
        identity,
        extent,
    )


def _check_names(variables: Sequence[Variable], parts: Sequence[Part]) -> None:
    """Refuses two variables of one name: nobody could tell their results apart."""
    places: dict[str, str] = {}
    arrays = [part.data.place for part in parts for _ in part.variables]
    for variable, place in zip(variables, arrays, strict=True):
        if variable.name in places:
            raise InputError(
                f"two variables are named {variable.name}: one from {places[variable.name]}, one "
                f"from {place}; rename one of them in the store"
            )
        places[variable.name] = place


def check_array(store: ZarrStore, name: str, axes: Axes, times: StoreTimes) -> DataArray:
    """An array with what its axes mean.

    Raises:
        InputError: if it is empty, holds no real numbers, or is not as long as its time coordinate.
    """
    stored = store.arrays[name]
    place = f"{name} in {store.path}"
    if 0 in stored.shape:
        sizes = ", ".join(f"{d} {n}" for d, n in zip(stored.dims, stored.shape, strict=True))
        raise InputError(f"{place} is empty ({sizes}); write its data or remove it")
    time = run = None
    if axes.time is not None:
        find = times.steps if axes.run is None else times.leads
        time = _check_length(find(stored.dims[axes.time]), stored, axes.time, place)
    if axes.run is not None:
        run = _check_length(times.runs(stored.dims[axes.run]), stored, axes.run, place)
    metadata = stored.array.metadata
    fill, zarr_format = metadata.fill_value, metadata.zarr_format
    coding = read_coding(place, stored.dtype, stored.attrs, fill, zarr_format)
    return DataArray(stored, axes, coding, time, run, place)


def member_count(stored: StoredArray, names: Iterable[str]) -> int:
    """Number of ensemble members, given what their dimension may be called."""
    sizes = dict(zip(stored.dims, stored.shape, strict=True))
    return next((sizes[name] for name in names if name in sizes), 1)


def _check_length(line: Timeline, stored: StoredArray, axis: int, place: str) -> Timeline:
    """The time line, once it is known to be as long as the array's axis."""
    dim, size = stored.dims[axis], stored.shape[axis]
    if len(line.age) != size:
        raise InputError(
            f"{place} has {size} steps along {dim}, but the coordinate {dim} has {len(line.age)}; "
            "write the store to its end"
        )
    return line


def _packed(variable: Variable, data: DataArray) -> Variable:
    return replace(variable, scale=data.coding.scale, offset=data.coding.offset)


def _group(name: str, variables: Sequence[Variable], parts: Sequence[Part]) -> Group:
    """The group's size: that of its longest array, since variables share their steps."""
    steps = trajectories = 1
    for part in parts:
        time, run = part.data.time, part.data.run
        if time is not None:
            fields = part.members * (1 if run is None else run.steps)
            steps = max(steps, time.steps * fields)
            trajectories = max(trajectories, time.trajectories * fields)
    return Group(name, tuple(variables), steps, trajectories)


def _describe(data: DataArray) -> dict[str, object]:
    """What decides which values of an array are read, and how, but for its length in time."""
    stored, coding, axes = data.stored, data.coding, data.axes
    growing = axes.time if axes.run is None else axes.run
    return {
        "dims": list(stored.dims),
        "shape": [None if axis == growing else size for axis, size in enumerate(stored.shape)],
        "chunks": list(stored.chunks),
        "dtype": coding.stored.str,
        "fill": str(stored.array.metadata.fill_value),
        "missing": sorted(str(marker) for marker in coding.missing),
        "scale": coding.scale,
        "offset": coding.offset,
        "axes": [axes.time, axes.run, list(axes.variables)],
    }


def _describe_times(line: Timeline) -> list[str | None]:
    """What a time line's positions mean."""
    return [line.times.kind, line.times.calendar]


def _digest(line: Timeline) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(line.times.positions).data)
    digest.update(np.ascontiguousarray(line.age).data)
    return f"{line.times.name}:{digest.hexdigest()}"


def _zero_fill(arrays: Iterable[DataArray]) -> list[str]:
    names = [data.stored.name for data in arrays if data.coding.zero_fill]
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [
        f"fill_value 0 of {', '.join(names[:3])}{more} counts as data, not as missing (zarr 2), "
        "also where chunks were never written"
    ]
