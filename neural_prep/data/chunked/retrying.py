"""A zarr store whose requests are repeated while they fail for the moment, and limited in number.

Requests, not whole reads, are repeated: of a read that needs hundreds of chunks, some request fails
nearly always where a server is busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from neural_prep.data.retry import FetchError, is_transient, retry_async

REQUESTS = 128  # of one process at once
_METADATA = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")

T = TypeVar("T")


class RetryingStore(WrapperStore[Store]):
    """Another store, whose failures come out as `FetchError`, named by their key.

    Attributes:
        retries: How many more times than once a request is made.
        path: Where the store is, for messages.
        denied: Why metadata could not be read for want of permission. Buckets that may not be
            listed say so of all that is not there, and most kinds of metadata are not.
    """

    def __init__(self, store: Store, retries: int, path: str) -> None:
        super().__init__(store)
        self.retries = retries
        self.path = path
        self.denied: FetchError | None = None
        self._slots = asyncio.Semaphore(REQUESTS)

    def _with_store(self, store: Store) -> RetryingStore:
        return type(self)(store, self.retries, self.path)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """One object; None where there is none.

        Raises:
            ValueError: if it is empty: some codecs take that for a chunk without values.
        """
        try:
            found = await self._request(key, self._store.get, key, prototype, byte_range)
            if found is not None and not len(found):
                raise ValueError("it is empty")
            return found
        except FetchError as error:
            if not error.denied or key.rpartition("/")[2] not in _METADATA:
                raise
            self.denied = error
            return None

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Parts of objects."""
        ranges = list(key_ranges)
        place = ranges[0][0] if ranges else ""
        return await self._request(place, self._store.get_partial_values, prototype, ranges)

    async def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        return await self._request(key, self._store.exists, key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names of what lies in a folder."""

        async def names() -> list[str]:
            return [name async for name in self._store.list_dir(prefix)]

        for name in await self._request(prefix, names):
            yield name

    async def _request(self, place: str, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        async def attempt() -> T:
            async with self._slots:  # not held during pauses
                return await call(*args)

        try:
            return await retry_async(f"{place} in {self.path}", self.retries, attempt)
        except MemoryError:
            raise
        except Exception as error:  # every kind of store has its own
            attempts = 1 + self.retries if is_transient(error) else 1
            raise FetchError(place, error, attempts) from error
