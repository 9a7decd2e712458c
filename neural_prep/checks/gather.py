"""Brings every rank's outcome to every rank, through the world's store.

It is no collective: ranks that have failed say so whatever state the process group is in.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from datetime import timedelta

from torch.distributed import Store  # type: ignore[attr-defined]  # torch doesn't list its exports

from neural_prep.checks.check import Outcome


def tell(store: Store, key: str, rank: int, outcome: Outcome) -> None:
    """Leaves a rank's outcome where others find it."""
    store.set(f"{key}/{rank}", pickle.dumps(outcome))  # type: ignore[arg-type]  # bytes, too


def hear(store: Store, key: str, size: int, patience: float) -> dict[int, Outcome]:
    """The outcomes of all ranks that have told theirs within so many seconds."""
    deadline = time.monotonic() + patience
    found = {}
    for rank in range(size):
        left = max(deadline - time.monotonic(), 0.001)
        with contextlib.suppress(RuntimeError):  # time is up, or the store is gone
            store.wait([f"{key}/{rank}"], timedelta(seconds=left))
            found[rank] = pickle.loads(store.get(f"{key}/{rank}"))
    return found
