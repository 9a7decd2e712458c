"""Writes the benchmark's stores in the layouts that neural-prep reads, as others' tools do.

In zarr 2, floats have NaN as their fill value and dimension names are an attribute: so xarray
writes them.

Legend: T steps, F features, N grid points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from fields import make_fields
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, ZstdCodec

GRID = (268, 238)  # MEPS
FEATURES = 18
SAMPLE_STEPS, MEMBERS = 65, 2
GLOBE = (361, 720)  # half a degree
LEVELS = (50, 200, 500, 700, 850, 1000)
_FORCINGS = 3
_EPOCH = "hours since 2020-01-01"
_CODECS: dict[tuple[str, int], Any] = {
    ("zstd", 2): numcodecs.Zstd(),
    ("zstd", 3): ZstdCodec(),
    ("lz4", 2): numcodecs.Blosc("lz4"),
    ("lz4", 3): BloscCodec(cname="lz4"),
    ("raw", 2): None,
    ("raw", 3): None,
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a store is like.

    Attributes:
        layout: `meps`; `mllam` has its variables last, `cf` its grid.
        codec: `zstd`, `lz4` (of blosc), or `raw` for none; for `meps` it is `npy`.
        zarr: The zarr format.
        steps: Steps in a chunk.
        shard: Steps in a shard; 0: there are no shards.
        one_level: Chunks hold one level each, where there are levels; else all of them.
    """

    layout: str
    codec: str
    zarr: int = 3
    steps: int = 1
    shard: int = 0
    one_level: bool = False

    @property
    def chunks(self) -> str:
        """Steps of its chunks, and of its shards where it has some."""
        return f"{self.steps} in {self.shard}" if self.shard else str(self.steps)

    @property
    def chunk_nbytes(self) -> int:
        """Uncompressed bytes of what is read at once, at most: a chunk or shard; of `.npy`, 0."""
        if self.layout == "meps":
            return 0
        wide = FEATURES * int(np.prod(GRID)), len(LEVELS) * int(np.prod(GLOBE))
        values = wide[self.layout == "cf"] // (len(LEVELS) if self.one_level else 1)
        return 4 * (self.shard * wide[self.layout == "cf"] or self.steps * values)


def write_store(path: Path, recipe: Recipe, nbytes: int) -> None:
    """Writes a store of about `nbytes` uncompressed bytes into a folder."""
    {"meps": write_meps, "mllam": _write_mllam, "cf": _write_cf}[recipe.layout](
        path, recipe, nbytes
    )


def write_meps(path: Path, recipe: Recipe, nbytes: int, grid: tuple[int, int] = GRID) -> None:
    """Samples of two members for each analysis, its flux and its open water; and static fields."""
    folder = path / "samples" / "train"
    folder.mkdir(parents=True)
    analysis_nbytes = 4 * SAMPLE_STEPS * int(np.prod(grid)) * (MEMBERS * FEATURES + 1)
    for number in range(max(1, round(nbytes / analysis_nbytes))):
        name = str(np.datetime64("2022-01-01") + number).replace("-", "") + "00"
        for member in range(MEMBERS):
            seed = MEMBERS * number + member
            sample = np.stack(list(make_fields(SAMPLE_STEPS, grid, FEATURES, seed)))
            np.save(folder / f"nwp_{name}_mbr{member:03d}.npy", sample)
        flux = np.stack(list(make_fields(SAMPLE_STEPS, grid, 1, -1 - number)))[..., 0]
        np.save(folder / f"nwp_toa_downwelling_shortwave_flux_{name}.npy", flux)
        np.save(folder / f"wtr_{name}.npy", flux[0] / 1e3)
    _write_meps_static(path, grid)


def _write_meps_static(path: Path, grid: tuple[int, int]) -> None:
    """What neural-lam's datastore wants to know besides: names, sizes, a projection, the grid."""
    names = [f"state_{index}" for index in range(FEATURES)]
    lines = [
        "dataset:",
        "  name: bench",
        f"  var_names: {names}",
        f"  var_units: {names}",
        f"  var_longnames: {names}",
        "  num_forcing_features: 16",
        f"  num_timesteps: {SAMPLE_STEPS}",
        f"  num_ensemble_members: {MEMBERS}",
        "  step_length: 1",
        "  remove_state_features_with_index: []",
        f"grid_shape_state: {list(grid)}",
        "projection: {class_name: LambertConformal, kwargs: {}}",
    ]
    (path / "data_config.yaml").write_text("\n".join(lines) + "\n")
    static = path / "static"
    static.mkdir()
    y, x = np.meshgrid(*(np.arange(size, dtype=np.float32) for size in grid), indexing="ij")
    np.save(static / "nwp_xy.npy", np.stack([x, y]))
    np.save(static / "border_mask.npy", (y == 0) | (x == 0))
    np.save(static / "surface_geopotential.npy", x + y)


def _write_mllam(path: Path, recipe: Recipe, nbytes: int) -> None:
    """One time line in the form of mllam-data-prep."""
    group = zarr.open_group(path, mode="w", zarr_format=recipe.zarr)
    points = int(np.prod(GRID))
    steps = round(nbytes / (4 * points * (FEATURES + _FORCINGS)))
    for seed, (name, features) in enumerate((("state", FEATURES), ("forcing", _FORCINGS))):
        fields = (f.reshape(points, features) for f in make_fields(steps, GRID, features, seed))
        dims = ("time", "grid_index", f"{name}_feature")
        inner = (points, features)
        _write_fields(group, name, recipe, steps, inner, inner, dims, fields)
        _write_array(
            group, f"{name}_feature", _texts(f"{name}_{i}" for i in range(features)), dims[2:]
        )
    _write_time(group, steps)
    last = np.datetime64("2020-01-01T00") + steps - 1
    _write_array(group, "split_name", _texts(["train"]), ("split_name",))
    _write_array(group, "split_part", _texts(["start", "end"]), ("split_part",))
    bounds = np.array([["2020-01-01T00", str(last)]])
    _write_array(group, "splits", bounds, ("split_name", "split_part"))


def _write_cf(path: Path, recipe: Recipe, nbytes: int) -> None:
    """One variable with levels and two without, as xarray writes them."""
    group = zarr.open_group(path, mode="w", zarr_format=recipe.zarr)
    steps = round(nbytes / (4 * int(np.prod(GLOBE)) * (len(LEVELS) + 2)))
    for seed, (name, levels) in enumerate((("temperature", len(LEVELS)), ("t2m", 0), ("msl", 0))):
        leading = (levels,) if levels else ()
        chunk = (1 if recipe.one_level and levels else levels,) if levels else ()
        dims = ("time", *(("level",) if levels else ()), "latitude", "longitude")
        fields = (
            np.moveaxis(f, -1, 0).reshape(*leading, *GLOBE)
            for f in make_fields(steps, GLOBE, max(levels, 1), seed)
        )
        _write_fields(
            group, name, recipe, steps, (*leading, *GLOBE), (*chunk, *GLOBE), dims, fields
        )
    _write_time(group, steps)
    _write_array(group, "level", np.array(LEVELS, np.int32), ("level",), {"units": "hPa"})
    _write_array(group, "latitude", np.linspace(90, -90, GLOBE[0]), ("latitude",))
    _write_array(group, "longitude", np.arange(GLOBE[1]) / 2, ("longitude",))


def _write_fields(
    group: zarr.Group,
    name: str,
    recipe: Recipe,
    steps: int,
    inner: tuple[int, ...],
    chunk: tuple[int, ...],
    dims: Sequence[str],
    fields: Iterator[NDArray[np.float32]],
) -> None:
    """One array, a row of chunks or shards at a time.

    Args:
        group: Where it goes.
        name: Its name.
        recipe: Its codec and its chunks along time.
        steps: How many there are.
        inner: Shape of a step.
        chunk: Shape of a chunk but for its steps.
        dims: Names of its dimensions.
        fields: Its steps.
    """
    array = group.create_array(
        name,
        shape=(steps, *inner),
        chunks=(recipe.steps, *chunk),
        shards=(recipe.shard, *inner) if recipe.shard else None,
        dtype="float32",
        compressors=_CODECS[recipe.codec, recipe.zarr],
        fill_value=np.nan if recipe.zarr == 2 else 0.0,
        **_named(group, dims),
    )
    row = recipe.shard or recipe.steps
    for first in range(0, steps, row):
        values = np.stack(list(islice(fields, row)))
        array[first : first + len(values)] = values


def _write_time(group: zarr.Group, steps: int) -> None:
    attributes = {"units": _EPOCH, "calendar": "proleptic_gregorian"}
    _write_array(group, "time", np.arange(steps), ("time",), attributes)


def _write_array(
    group: zarr.Group,
    name: str,
    values: NDArray[Any],
    dims: Sequence[str],
    attributes: dict[str, Any] | None = None,
) -> None:
    array = group.create_array(name, data=values, **_named(group, dims))
    array.attrs.update(attributes or {})


def _named(group: zarr.Group, dims: Sequence[str]) -> dict[str, Any]:
    """How an array of this group's format gets its dimension names."""
    if group.metadata.zarr_format == 2:
        return {"attributes": {"_ARRAY_DIMENSIONS": list(dims)}}
    return {"dimension_names": tuple(dims)}


def _texts(texts: Any) -> NDArray[np.str_]:
    return np.array(list(texts))
