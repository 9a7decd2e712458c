"""Brings every rank's outcome to every rank, through the world's store.

It is no collective: ranks that have failed say so whatever state the process group is in.
"""

from __future__ import annotations

import contextlib
import pickle
import time

from torch.distributed import Store  # type: ignore[attr-defined]  # torch doesn't list its exports

from neural_prep.checks.check import Outcome

_SHORTEST, _LONGEST = 0.0002, 0.05  # seconds between two looks


def tell(store: Store, key: str, rank: int, outcome: Outcome) -> None:
    """Leaves a rank's outcome where others find it."""
    store.set(f"{key}/{rank}", pickle.dumps(outcome))  # type: ignore[arg-type]  # bytes, too


def hear(store: Store, key: str, size: int, patience: float) -> dict[int, Outcome]:
    """The outcomes of all ranks that have told theirs within so many seconds."""
    deadline = time.monotonic() + patience
    found: dict[int, Outcome] = {}
    pause = _SHORTEST
    # Not Store.wait, which writes warnings of its own when time is up.
    with contextlib.suppress(RuntimeError):  # the store is gone
        while len(found) < size:
            for rank in set(range(size)) - set(found):
                if store.check([f"{key}/{rank}"]):
                    found[rank] = pickle.loads(store.get(f"{key}/{rank}"))
            if time.monotonic() > deadline:
                break
            if len(found) < size:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
    return found
