"""Stores of any size as metadata alone: arrays without a chunk, and their times."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import zarr

GLOBE = (721, 1440)  # a quarter of a degree
HOURS = 436_524  # almost 50 years


def write_cf(path: Path, *, arrays: int, steps: int, zarr_format: int = 3) -> Path:
    """`arrays` variables on the globe, each step of each one object of 4.2 MB."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    for number in range(arrays):
        _create(group, f"var_{number}", (steps, *GLOBE), (1, *GLOBE), ("time", "lat", "lon"))
    _write_hours(group, steps)
    return path


def write_mllam(path: Path, *, steps: int, points: int, features: int, chunk: int) -> Path:
    """A state whose steps are cut into objects of `chunk` grid points with all features."""
    group = zarr.open_group(path, mode="w", zarr_format=3)
    dims = ("time", "grid_index", "state_feature")
    _create(group, "state", (steps, points, features), (1, chunk, features), dims)
    names = np.array([f"feature_{number}" for number in range(features)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr 3 has not standardised text
        group.create_array("state_feature", data=names, dimension_names=("state_feature",))
    _write_hours(group, steps)
    return path


def _create(
    group: zarr.Group,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dims: tuple[str, ...],
    dtype: str = "float32",
) -> None:
    named = {"dimension_names": dims} if group.metadata.zarr_format == 3 else {}
    array = group.create_array(name, shape=shape, chunks=chunks, dtype=dtype, **named)
    if not named:
        array.attrs["_ARRAY_DIMENSIONS"] = list(dims)


def _write_hours(group: zarr.Group, steps: int) -> None:
    _create(group, "time", (steps,), (steps,), ("time",), "int64")
    group["time"].attrs["units"] = "hours since 1975-01-01"
    group["time"][:] = np.arange(steps)
