"""The benchmark's stores by name: each is written when it is used first.

Between them they have every format, codec, kind of chunk and order of dimensions that the bounds
name, and not the product of all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import zarr
from writing import Recipe, write_store

STORES = {
    "meps": Recipe("meps", "npy"),
    "mllam-zstd": Recipe("mllam", "zstd"),
    "mllam-zstd-8": Recipe("mllam", "zstd", zarr=2, steps=8),
    "mllam-zstd-sharded": Recipe("mllam", "zstd", shard=8),
    "mllam-lz4": Recipe("mllam", "lz4", zarr=2),
    "mllam-raw-8": Recipe("mllam", "raw", steps=8),
    "cf-zstd": Recipe("cf", "zstd", zarr=2),
    "cf-zstd-8": Recipe("cf", "zstd", steps=8),
    "cf-lz4-8": Recipe("cf", "lz4", steps=8),
    "cf-lz4-sharded": Recipe("cf", "lz4", shard=8, one_level=True),
    "cf-raw": Recipe("cf", "raw", zarr=2),
}
# Chunks of about so many bytes, for memory.
LARGE = {
    "mllam-zstd-64MB": Recipe("mllam", "zstd", steps=14),
    "mllam-zstd-256MB": Recipe("mllam", "zstd", steps=56),
    "mllam-zstd-512MB": Recipe("mllam", "zstd", steps=112),
}
_RECIPES = STORES | LARGE
_CHUNKS = 6  # of a store at least: fewer would not fill what is read ahead
_MOST = 4  # times as many bytes for that
_FAST = 2  # times as many bytes where reading takes less than half a second for 1 GB


@dataclass(frozen=True, slots=True)
class Store:
    """A store that has been written.

    Attributes:
        name: One of `STORES` or `LARGE`.
        path: Its folder.
        nbytes: Uncompressed bytes of all its fields.
        stored: Bytes of its files.
        arrays: Zarr arrays that hold fields; () where fields are `.npy` files.
    """

    name: str
    path: str
    nbytes: int
    stored: int
    arrays: tuple[str, ...]

    @property
    def recipe(self) -> Recipe:
        """What it is like."""
        return _RECIPES[self.name]

    @property
    def layout(self) -> str:
        """What `data.layout` calls it."""
        return self.recipe.layout

    @property
    def split(self) -> str | None:
        """What `data.split` is set to, if to anything."""
        return None if self.layout == "cf" else "train"

    @property
    def files(self) -> list[Path]:
        """All files with fields, where those are `.npy` files."""
        return sorted((Path(self.path) / "samples").rglob("*.npy"))


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where stores lie.

    Attributes:
        folder: The folder.
        kept: Whether a store stays there when it has been used.
    """

    folder: Path
    kept: bool

    @contextmanager
    def store(self, name: str, nbytes: float) -> Iterator[Store]:
        """The store of about so many uncompressed bytes."""
        store = make_store(name, self.folder, round(nbytes))
        try:
            yield store
        finally:
            if not self.kept:
                _note(Path(store.path)).unlink()
                shutil.rmtree(store.path)


def make_store(name: str, folder: Path, nbytes: int) -> Store:
    """The store of about so many uncompressed bytes, written where it is not there yet."""
    path = folder / f"{name}_{round(nbytes / 1e6)}MB"
    if not _note(path).is_file():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        write_store(path, _RECIPES[name], nbytes)
        _note(path).write_text(json.dumps(asdict(_describe(name, path))))
    known = json.loads(_note(path).read_text())
    return Store(**known | {"arrays": tuple(known["arrays"])})


def _note(path: Path) -> Path:
    return path.with_suffix(".json")


def usual_nbytes(name: str, gigabytes: float) -> float:
    """A store's size: about what was asked for.

    Twice that where reading is fast, so that it takes a while, and more where chunks are large.
    """
    recipe = _RECIPES[name]
    usual = gigabytes * 1e9 * (1 if recipe.codec == "zstd" else _FAST)
    return max(usual, min(_CHUNKS * recipe.chunk_nbytes, _MOST * gigabytes * 1e9))


def _describe(name: str, path: Path) -> Store:
    stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if _RECIPES[name].layout == "meps":
        fields = [np.load(file, mmap_mode="r") for file in (path / "samples").rglob("*.npy")]
        return Store(name, str(path), sum(a.nbytes for a in fields), stored, ())
    arrays = [a for _, a in zarr.open_group(path, mode="r").arrays() if a.ndim > 1 and a.size > 99]
    names = tuple(sorted(a.basename for a in arrays))
    return Store(name, str(path), sum(a.nbytes for a in arrays), stored, names)
