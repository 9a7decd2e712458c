"""Ranks that torchrun or srun has started: this process is one of them.

They cannot be replaced. Where a case leaves a rank in a collective that others have left, its
connections are shut and all ranks open a new process group. A rank that does not come back from
whatever else it is doing ends the run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import (  # type: ignore[attr-defined]  # torch doesn't list what it exports
    PrefixStore,
    TCPStore,
    rendezvous,
)

from neural_prep.checks.cases import Case
from neural_prep.checks.check import Outcome, run_case
from neural_prep.checks.gather import hear, tell
from neural_prep.checks.rank import prepare
from neural_prep.checks.verdict import Fate, Verdict, judge
from neural_prep.world import group
from neural_prep.world.watch import find_stacks

_GRACE = 2.0  # seconds that other ranks have once one has failed
_RETURNING = 5.0  # seconds until a rank whose connections are shut must be back
_POLL = 0.1  # seconds between looks at the others
_MEETING = 300.0  # seconds until all ranks must have met
_LEAVING = 5.0  # seconds in which all ranks say that they are done


def _connect() -> PrefixStore:
    """A connection of its own to the launcher's store, once that is there."""
    limit = timedelta(seconds=_MEETING)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"neural-prep-check-{attempt}", store)


class LostError(Exception):
    """A rank cannot go on, and so the run cannot; the verdict is of the case that it was in."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__("a rank is lost")
        self.verdict = verdict


class LaunchedWorld:
    """All ranks, as one of them.

    Attributes:
        size: How many.
    """

    def __init__(self, timeout: float, lost: Callable[[Verdict], None]) -> None:
        """Meets the other ranks.

        Args:
            timeout: Seconds that a case may take.
            lost: Called, in a thread, once this rank does not come back from a case.
        """
        prepare()
        self._timeout, self._lost = timeout, lost
        self._patience = timedelta(seconds=2 * timeout + 60)
        # The launcher's own store may be served by rank 0, from here on.
        self._rendezvous, self._rank, self.size = next(iter(rendezvous("env://")))
        self._store, self._guards_store = _connect(), _connect()
        self._kept = group.sockets()
        self._generation = self._number = 0
        self._world: group.World | None = None

    @property
    def speaks(self) -> bool:
        """Whether this rank reports."""
        return bool(self._rank == 0)

    def ready(self) -> None:
        """Opens a process group where the last case has broken it."""
        if self._world is None:
            self._generation += 1
            name = f"world{self._generation}"
            place = (self._rank, self.size)
            self._world = group.open_world(self._store, *place, name=name, patience=self._patience)

    def run(self, case: Case) -> Verdict:
        """Runs a case; every rank does so, once it is ready, and has the same verdict.

        Raises:
            LostError: if a rank does not come back from it.
        """
        assert self._world is not None
        self._number += 1
        key = f"{self._number}"
        guard = _Guard(
            self._guards_store, key, self._timeout, self._kept, lambda: self._give_up(key, guard)
        )
        outcome = run_case(case, self._world)
        guard.end()
        outcome.cut_off = guard.where
        if outcome.failed:
            self._store.set(f"{key}/failed", "")
        tell(self._store, key, self._rank, outcome)
        verdict, all_are_back = self._gather(self._store, key)
        if not all_are_back:
            raise LostError(verdict)
        if not verdict.in_step:
            group.close_world()
            self._world = None
        return verdict

    def _give_up(self, key: str, guard: _Guard) -> None:
        """Speaks for this rank, whose main thread does not come back."""
        tell(self._guards_store, key, self._rank, Outcome(cut_off=guard.where, is_back=False))
        self._lost(self._gather(self._guards_store, key)[0])

    def _gather(self, store: PrefixStore, key: str) -> tuple[Verdict, bool]:
        """The verdict of all ranks, and whether all of them can go on."""
        patience = self._timeout + _GRACE + 2 * _RETURNING
        outcomes = hear(store, key, self.size, patience)
        missing = [rank for rank in range(self.size) if rank not in outcomes]
        fates = {rank: Fate("is gone", dead=True) for rank in missing}
        stuck = {rank: one for rank, one in outcomes.items() if one.cut_off is not None}
        for rank, one in stuck.items():
            assert one.cut_off is not None
            fates[rank] = Fate(*one.cut_off)
            del outcomes[rank]
        back = not missing and all(one.is_back for one in stuck.values())
        return judge(outcomes, fates), back

    def close(self) -> None:
        """Leaves once all ranks are done: one of them may serve the store."""
        tell(self._store, "left", self._rank, Outcome())
        if self._rank == 0:
            hear(self._store, "left", self.size, _LEAVING)
        group.close_world()


class _Guard:
    """A thread that ends this rank's part in a case when others have failed, or time is up."""

    def __init__(
        self, store: PrefixStore, key: str, timeout: float, kept: set[int], lost: Callable[[], None]
    ) -> None:
        """Begins to watch.

        Args:
            store: Where ranks say that they have failed.
            key: The case's.
            timeout: Seconds that it may take.
            kept: File numbers of connections that belong to no process group.
            lost: Called when this rank does not come back.
        """
        self._store, self._key, self._timeout, self._kept = store, key, timeout, kept
        self._lost = lost
        self._done = threading.Event()
        self.where: tuple[str, str] | None = None  # what this rank did when it was cut off
        self._thread = threading.Thread(target=self._watch, daemon=True, name="guard")
        self._thread.start()

    def end(self) -> None:
        """The case is over on this rank."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        begun = time.monotonic()
        deadline, in_trouble = begun + self._timeout, False
        while not self._done.wait(_POLL):
            if not in_trouble and self._store.check([f"{self._key}/failed"]):
                in_trouble = True
                deadline = min(deadline, time.monotonic() + _GRACE)
            if time.monotonic() > deadline:
                break
        else:
            return
        stacks = find_stacks()
        seconds = time.monotonic() - begun
        self.where = (f"was still running after {seconds:.0f} s, at {stacks.line}", stacks.text)
        group.cut_off(self._kept)
        if not self._done.wait(_RETURNING):
            self._lost()
