"""A rank that a launcher has started: its place among the others, its process groups.

Such a rank cannot be replaced. Where a test leaves it in a collective or a sleep, its sockets are
shut and its main thread interrupted; a new process group on the same store follows.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from neural_prep.testing.rank import tear_down
from neural_prep.world import group

_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR1) + 6
_SLEEPING = 0.5  # seconds from shutting sockets to interrupting whatever else a rank is doing


class CutOffError(BaseException):
    """This rank's test was ended, as another rank had failed or time was up."""


@dataclass(slots=True)
class Launch:
    """This process among those of its launcher.

    Attributes:
        rank: This process.
        size: Number of ranks.
        store: Of all ranks.
        patience: How long a collective may take.
        kept: File numbers of sockets that no group owns.
        busy: Set while a phase of a test runs here.
    """

    rank: int
    size: int
    store: Store
    patience: timedelta
    kept: set[int]
    busy: threading.Event

    def open_world(self, generation: int) -> group.World:
        """Opens the process group of all ranks, number `generation`."""
        name = f"world{generation}"
        return group.open_world(self.store, self.rank, self.size, name=name, patience=self.patience)

    def renew_world(self, session: pytest.Session, generation: int) -> group.World:
        """Tears down all fixtures, whatever they say, and opens a new process group."""
        with contextlib.suppress(BaseException):
            tear_down(session)
        group.close_world()
        return self.open_world(generation)

    def cut_off(self, _: Any = None) -> None:
        """Ends what the main thread waits for, while it is in a test."""
        if not self.busy.is_set():
            return
        group.cut_off(self.kept)
        timer = threading.Timer(_SLEEPING, self._interrupt)
        timer.daemon = True
        timer.start()

    def _interrupt(self) -> None:
        main = threading.main_thread().ident
        if self.busy.is_set() and main is not None:
            signal.pthread_kill(main, _SIGNAL)


def join_ranks(patience: float) -> Launch:
    """Meets the other ranks in their launcher's store.

    Args:
        patience: Seconds that a collective may take.
    """
    store, rank, size = next(iter(rendezvous("env://")))
    limit = timedelta(seconds=patience)
    store = PrefixStore("neural-prep-tests", store)
    launch = Launch(rank, size, store, limit, set(), threading.Event())

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if launch.busy.is_set():
            raise CutOffError("this rank's test was ended")

    signal.signal(_SIGNAL, interrupt)
    return launch
