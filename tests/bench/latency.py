"""Makes each request to a zarr store on this machine take a while, as object storage does.

    python tests/bench/latency.py 0.05 stats --data.path STORE --output.dir FOLDER

is neural-prep with such stores. Requests may overlap: each waits without holding a thread. Zarr's
own codec pipeline has to be used; others may read files themselves.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from zarr.storage import LocalStore


def add_latency(seconds: float) -> None:
    """From now on each read of this process' local stores takes so much longer."""

    def slowed(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wait_and_call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(seconds)
            return await method(*args, **kwargs)

        return wait_and_call

    for name in ("get", "get_partial_values"):
        setattr(LocalStore, name, slowed(getattr(LocalStore, name)))


if __name__ == "__main__":
    from neural_prep.cli import main

    add_latency(float(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
