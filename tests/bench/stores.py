"""Stores for the benchmark: smooth fields with a little noise, rounded as packed real data are.

What compresses too well or not at all would time the wrong thing: rounding and noise are set so
that zstd makes real float32 fields of about this size 1.5 to 3 times smaller.

Legend: T steps, F features, N grid points.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, ZstdCodec

GRID = (268, 238)  # MEPS
FEATURES = 18
SAMPLE_STEPS = 65
GLOBE = (361, 720)  # half a degree
LEVELS = (50, 200, 500, 700, 850, 1000)
_EPOCH = "hours since 2020-01-01"


@dataclass(frozen=True, slots=True)
class Store:
    """A store that has been written.

    Attributes:
        name: One of `STORES`.
        path: Its folder.
        layout: What `data.layout` calls it.
        split: What `data.split` is set to, if to anything.
        nbytes: Uncompressed bytes of all its fields.
        stored: Bytes of its files.
        arrays: Zarr arrays that hold fields; () where fields are `.npy` files.
    """

    name: str
    path: str
    layout: str
    split: str | None
    nbytes: int
    stored: int
    arrays: tuple[str, ...]

    @property
    def files(self) -> list[Path]:
        """All files with fields, where those are `.npy` files."""
        return sorted(Path(self.path).rglob("*.npy"))


def make_store(name: str, folder: Path, nbytes: int) -> Store:
    """The store of about `nbytes` uncompressed bytes, written where it is not there yet."""
    path = folder / f"{name}_{nbytes // 1_000_000}MB"
    note = path.with_suffix(".json")
    if not note.is_file():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        layout, write = STORES[name]
        write(path, nbytes)
        note.write_text(json.dumps(asdict(_describe(name, path, layout))))
    known = json.loads(note.read_text())
    return Store(**known | {"arrays": tuple(known["arrays"])})


def _describe(name: str, path: Path, layout: str) -> Store:
    split = None if layout == "cf" else "train"
    stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if layout == "meps":
        fields = [np.load(file, mmap_mode="r") for file in path.rglob("*.npy")]
        return Store(name, str(path), layout, split, sum(a.nbytes for a in fields), stored, ())
    arrays = [a for _, a in zarr.open_group(path, mode="r").arrays() if a.ndim > 1 and a.size > 99]
    names = tuple(sorted(a.basename for a in arrays))
    return Store(name, str(path), layout, split, sum(a.nbytes for a in arrays), stored, names)


def _write_meps(path: Path, nbytes: int) -> None:
    """Samples of two members for each analysis, its flux and its open water."""
    folder = path / "samples" / "train"
    folder.mkdir(parents=True)
    analysis_nbytes = 4 * SAMPLE_STEPS * int(np.prod(GRID)) * (2 * FEATURES + 1)
    for number in range(max(1, round(nbytes / analysis_nbytes))):
        name = str(np.datetime64("2022-01-01") + number).replace("-", "") + "00"
        for member in range(2):
            sample = np.stack(list(_fields(SAMPLE_STEPS, GRID, FEATURES, 2 * number + member)))
            np.save(folder / f"nwp_{name}_mbr{member:03d}.npy", sample)
        flux = np.stack(list(_fields(SAMPLE_STEPS, GRID, 1, -1 - number)))[..., 0]
        np.save(folder / f"nwp_toa_downwelling_shortwave_flux_{name}.npy", flux)
        np.save(folder / f"wtr_{name}.npy", flux[0] / 1e3)


def _write_mllam(path: Path, nbytes: int, compressor: ZstdCodec | BloscCodec) -> None:
    """One time line, one step in a chunk, as mllam-data-prep writes it by default."""
    group = zarr.open_group(path, mode="w", zarr_format=3)
    points, forcings = int(np.prod(GRID)), 3
    steps = round(nbytes / (4 * points * (FEATURES + forcings)))
    for seed, (name, features) in enumerate((("state", FEATURES), ("forcing", forcings))):
        array = group.create_array(
            name,
            shape=(steps, points, features),
            chunks=(1, points, features),
            dtype="float32",
            compressors=compressor,
            dimension_names=("time", "grid_index", f"{name}_feature"),
        )
        for step, field in enumerate(_fields(steps, GRID, features, seed)):
            array[step] = field.reshape(points, features)
        _write_texts(group, f"{name}_feature", [f"{name}_{i}" for i in range(features)])
    _write_time(group, steps)
    _write_texts(group, "split_name", ["train"])
    _write_texts(group, "split_part", ["start", "end"])
    last = np.datetime64("2020-01-01T00") + steps - 1
    bounds = np.array([["2020-01-01T00", str(last)]])
    group.create_array("splits", data=bounds, dimension_names=("split_name", "split_part"))


def _write_cf(path: Path, nbytes: int) -> None:
    """One variable with levels, a step in a chunk, and two without, eight steps in a chunk."""
    group = zarr.open_group(path, mode="w", zarr_format=3)
    step_nbytes = 4 * int(np.prod(GLOBE)) * (len(LEVELS) + 2)
    steps = round(nbytes / step_nbytes)
    horizontal = ("latitude", "longitude")
    for seed, (name, levels, chunk) in enumerate(
        (("temperature", len(LEVELS), 1), ("t2m", 0, 8), ("msl", 0, 8))
    ):
        leading = (levels,) if levels else ()
        array = group.create_array(
            name,
            shape=(steps, *leading, *GLOBE),
            chunks=(chunk, *leading, *GLOBE),
            dtype="float32",
            compressors=ZstdCodec(),
            dimension_names=("time", *(("level",) if levels else ()), *horizontal),
        )
        rows = _fields(steps, GLOBE, max(levels, 1), seed)
        for first in range(0, steps, chunk):
            row = [next(rows) for _ in range(min(chunk, steps - first))]  # (y, x, level) each
            values = np.moveaxis(np.stack(row), -1, 1)
            array[first : first + chunk] = values if levels else values[:, 0]
    _write_time(group, steps)
    for name, values in (
        ("level", np.array(LEVELS, np.int32)),
        ("latitude", np.linspace(90, -90, GLOBE[0])),
        ("longitude", np.arange(GLOBE[1]) / 2),
    ):
        group.create_array(name, data=values, dimension_names=(name,))
    group["level"].attrs["units"] = "hPa"


def _write_time(group: zarr.Group, steps: int) -> None:
    time = group.create_array("time", data=np.arange(steps), dimension_names=("time",))
    time.attrs.update({"units": _EPOCH, "calendar": "proleptic_gregorian"})


def _write_texts(group: zarr.Group, name: str, texts: list[str]) -> None:
    group.create_array(name, data=np.array(texts), dimension_names=(name,))


def _fields(
    steps: int, grid: tuple[int, int], features: int, seed: int
) -> Iterator[NDArray[np.float32]]:
    """One step after the other, `(y, x, F)`: waves that travel, and noise, on a large offset."""
    generator = np.random.default_rng(seed % 2**32)
    y, x = (np.linspace(0.0, 2 * np.pi, size)[:, None] for size in grid)
    shape = (*grid, features)
    waves = np.zeros((2, *shape), np.float32)
    for wave in range(6):
        amplitude = generator.normal(0.0, 1.0 / (1 + wave), (2, features))
        along_y, along_x = generator.integers(1, 4 + 2 * wave, 2)
        phase = (along_y * y + along_x * x.T)[..., None]
        waves[0] += amplitude[0] * np.cos(phase)
        waves[1] += amplitude[1] * np.sin(phase)
    offset = generator.choice([0.0, 280.0, 5000.0, 1e5], features).astype(np.float32)
    quantum = 2.0 ** np.floor(np.log2(np.maximum(offset, 32.0) / 2**14)).astype(np.float32)
    for step in range(steps):
        now = np.float32(np.cos(step / 9)) * waves[0] + np.float32(np.sin(step / 9)) * waves[1]
        now *= 512 * quantum  # a std of about a thousand quanta, which is ten bits
        now += 3 * quantum * generator.standard_normal(shape, np.float32)
        yield np.rint(now / quantum) * quantum + offset


STORES: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "meps": ("meps", _write_meps),
    "mllam-zstd": ("mllam", lambda path, nbytes: _write_mllam(path, nbytes, ZstdCodec())),
    "mllam-lz4": (
        "mllam",
        lambda path, nbytes: _write_mllam(path, nbytes, BloscCodec(cname="lz4")),
    ),
    "cf-zstd": ("cf", _write_cf),
}
