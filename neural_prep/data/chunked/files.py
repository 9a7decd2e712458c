"""The files that hold an array's chunks, by their names alone: nothing is listed or opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from zarr.storage import LocalStore, WrapperStore

from neural_prep.data.chunked.store import StoredArray


def chunk_files(stored: StoredArray, selections: Iterable[tuple[slice, ...]]) -> Iterator[str]:
    """Paths of the chunks (or shards) that ranges of an array lie in; none for a remote store.

    Args:
        stored: The array.
        selections: For each axis its range, `slice(None)` for all of it.
    """
    folder = _folder(stored)
    if folder is None:
        return
    encode = stored.array.metadata.encode_chunk_key
    for selection in selections:
        ranges = [
            range(along.indices(size)[0] // chunk, -(-along.indices(size)[1] // chunk))
            for along, size, chunk in zip(selection, stored.shape, stored.chunks, strict=True)
        ]
        for chunk in product(*ranges):
            yield f"{folder}/{encode(chunk)}"


def _folder(stored: StoredArray) -> Path | None:
    """The array's folder on a local file system."""
    store = stored.array.store_path.store
    while isinstance(store, WrapperStore):
        store = store._store  # there is no public way to what is wrapped
    return store.root / stored.array.store_path.path if isinstance(store, LocalStore) else None
