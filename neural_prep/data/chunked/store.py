"""A zarr group's arrays with their dimension names and attributes, alike for zarr 2 and 3."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from neural_prep.errors import InputError

_MARKERS = ("zarr.json", ".zgroup", ".zmetadata")


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of a zarr group.

    Attributes:
        name: Its name in the group.
        array: The array; reading it is safe from several threads.
        dims: Names of its dimensions, () where it has none.
        attrs: Its attributes.
        chunks: What is read at once along each dimension: its shard, else its chunk.
    """

    name: str
    array: zarr.Array[Any]
    dims: tuple[str, ...]
    attrs: Mapping[str, Any]
    chunks: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its stored values."""
        return np.dtype(self.array.dtype)

    def values(self) -> NDArray[Any]:
        """All values, for coordinates."""
        return np.asarray(self.array[...])


@dataclass(frozen=True, slots=True)
class ZarrStore:
    """A zarr group: its arrays sorted by name, and its own attributes."""

    path: str
    arrays: Mapping[str, StoredArray]
    attrs: Mapping[str, Any]


def is_group(path: Path) -> bool:
    """Whether a folder looks like a zarr group."""
    return any((path / marker).is_file() for marker in _MARKERS)


def open_store(path: str) -> ZarrStore:
    """Opens a zarr group for reading; only metadata are read.

    Raises:
        InputError: if there is no group, if its metadata cannot be read, or if it has no arrays.
    """
    try:
        with warnings.catch_warnings():
            # On what zarr 3 has not standardised yet: nothing that a reader could do about it.
            warnings.simplefilter("ignore")
            group = zarr.open_group(path, mode="r")
            found = sorted(group.arrays())
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path} cannot be opened as a zarr group ({reason}); check data.path and data.layout"
        ) from error
    if not found:
        raise InputError(f"{path} is a zarr group without arrays")
    return ZarrStore(path, {name: _stored(name, array) for name, array in found}, dict(group.attrs))


def _stored(name: str, array: zarr.Array[Any]) -> StoredArray:
    attrs: dict[str, Any] = dict(array.attrs)
    names = attrs.pop("_ARRAY_DIMENSIONS", None)
    names = getattr(array.metadata, "dimension_names", None) or names or ()
    dims = tuple(f"dim_{axis}" if name is None else str(name) for axis, name in enumerate(names))
    return StoredArray(name, array, dims, attrs, tuple(array.shards or array.chunks))
