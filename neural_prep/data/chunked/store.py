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
from zarr.errors import GroupNotFoundError
from zarr.storage import LocalStore, StorePath

from neural_prep.data.chunked.blosc import check_lengths
from neural_prep.data.chunked.codecs import UNKNOWN_CODEC, check_codecs, codec_missing, remedy_of
from neural_prep.data.chunked.pipeline import decoded_by
from neural_prep.data.chunked.remote import is_listable, is_url, open_url
from neural_prep.data.chunked.retrying import RetryingStore
from neural_prep.data.retry import RETRIES, FetchError, reason_of, without_secrets
from neural_prep.data.source import Decoder
from neural_prep.errors import InputError, ReadError

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
        patient: The same array, whose requests are repeated while they fail for the moment.
        path: Its store, for messages.
    """

    name: str
    array: zarr.Array[Any]
    dims: tuple[str, ...]
    attrs: Mapping[str, Any]
    chunks: tuple[int, ...]
    patient: zarr.Array[Any] | None = None
    path: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its stored values."""
        return np.dtype(self.array.dtype)

    def values(self) -> NDArray[Any]:
        """All values, for coordinates.

        Raises:
            InputError: if they cannot be decoded.
            ReadError: if they cannot be read now.
        """
        where = f"{self.name} in {self.path}"
        try:
            return np.asarray((self.patient or self.array)[...])
        except (FetchError, MemoryError) as error:
            raise ReadError(f"{where} cannot be read ({reason_of(error)}); start again") from error
        except Exception as error:  # every codec has its own
            raise InputError(
                f"{where} cannot be decoded ({reason_of(error)}); {remedy_of(error)}"
            ) from error


@dataclass(frozen=True, slots=True)
class ZarrStore:
    """A zarr group: its arrays sorted by name, and its own attributes."""

    path: str
    arrays: Mapping[str, StoredArray]
    attrs: Mapping[str, Any]


def is_group(path: Path) -> bool:
    """Whether a folder looks like a zarr group."""
    return any((path / marker).is_file() for marker in _MARKERS)


def open_store(
    path: str,
    retries: int = RETRIES,
    storage_options: Mapping[str, Any] | None = None,
    decoder: Decoder = "auto",
) -> ZarrStore:
    """Opens a zarr group for reading; only metadata are read.

    Args:
        path: A folder or a URL.
        retries: How often what fails for the moment is read again.
        storage_options: How a URL's store is reached.
        decoder: Who decodes chunks.

    Raises:
        InputError: if there is no group, if its metadata cannot be read, or if it has no arrays.
    """
    remote, shown = is_url(path), without_secrets(path)
    local = None if remote else LocalStore(path, read_only=True)
    store = RetryingStore(local or open_url(path, storage_options), retries, shown)
    try:
        with warnings.catch_warnings():
            # On what zarr 3 has not standardised yet: nothing that a reader could do about it.
            warnings.simplefilter("ignore")
            group = zarr.open_group(store, mode="r")
            _check_listing(group, path, shown)
            arrays = {
                name: _stored(name, array, local, shown, decoder)
                for name, array in sorted(group.arrays())
            }
    except FetchError as error:
        raise InputError(_unreachable(shown, error)) from error
    except UNKNOWN_CODEC as error:
        raise InputError(f"{shown}: {codec_missing(error)}") from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        if isinstance(error, InputError):
            raise
        if store.denied is not None:
            raise InputError(_unreachable(shown, store.denied)) from error
        nothing = isinstance(error, GroupNotFoundError)
        reason = "it holds no zarr.json and no .zgroup" if nothing else reason_of(error)
        raise InputError(
            f"{shown} cannot be opened as a zarr group ({reason}); check data.path and data.layout"
        ) from error
    if not arrays:
        raise InputError(f"{shown} is a zarr group without arrays")
    for name, stored in arrays.items():
        check_codecs(f"{name} in {shown}", stored.array.metadata)
    return ZarrStore(shown, arrays, dict(group.attrs))


def _check_listing(group: zarr.Group, path: str, shown: str) -> None:
    if is_url(path) and not is_listable(path) and group.metadata.consolidated_metadata is None:
        raise InputError(
            f"{shown} has no consolidated metadata, and a web server cannot list a store's arrays; "
            "write them with zarr.consolidate_metadata"
        )


def _unreachable(shown: str, error: FetchError) -> str:
    if error.denied:
        return (
            f"data.path: {shown} may not be read ({error}); give credentials in the environment or "
            "in data.storage_options, and for public data skip_signature: true"
        )
    return f"data.path: {shown} cannot be read ({error}); check the address and the network"


def _stored(
    name: str, opened: zarr.Array[Any], bare: LocalStore | None, path: str, decoder: Decoder
) -> StoredArray:
    """One array, read from a bare store where there is one: some pipelines know no wrapped ones."""
    metadata, config = check_lengths(opened.metadata), opened.async_array.config
    patient = zarr.Array(zarr.AsyncArray(metadata, opened.store_path, config))
    array = patient
    if bare is not None:
        place = StorePath(bare, opened.path)
        with decoded_by(decoder, opened):
            array = zarr.Array(zarr.AsyncArray(metadata, place, config))
    attrs: dict[str, Any] = dict(array.attrs)
    names = attrs.pop("_ARRAY_DIMENSIONS", None)
    names = getattr(array.metadata, "dimension_names", None) or names or ()
    dims = tuple(f"dim_{axis}" if name is None else str(name) for axis, name in enumerate(names))
    chunks = tuple(array.shards or array.chunks)
    return StoredArray(name, array, dims, attrs, chunks, patient, path)
