"""A side channel between ranks, free of collectives: who is done, who failed, how far all are.

A rank must never wait in a collective for a peer that is gone, and Python runs no signal handler
in one. So ranks talk through the process group's key-value store: each polls it, in a thread and
while it waits. A process on its own has a store of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import torch.distributed as dist
from torch.distributed import DistError, HashStore, PrefixStore, Store, distributed_c10d  # type: ignore[attr-defined]

from neural_prep.interrupts import leave

_POLL = 0.2  # seconds
_BEAT = 2.0  # seconds between signs of life
_SILENCE = 60.0  # seconds without one, after which a rank is given up
_GRACE = 4.0  # seconds that a rank has to end by itself once another has failed
_MESSAGE = 4_000_000  # bytes; torch's server refuses more than 8 MiB at once
_FAILED, _BYTES, _BLOCKS, _LINES = "failed", "bytes", "blocks", "lines"
_LOST_IN = ("by peer", "connectFullMesh failed")  # gloo's words, the latter's while ranks meet
LOST = (
    "the connection to another rank is lost: it was killed, or its node is gone; "
    "start again to continue"
)


class PeerFailedError(Exception):
    """Another rank failed first and has told the user; this one ends with the same status.

    What it left to rank 0 to tell is the note; or, if ranks cannot be told, to whoever finds out.
    """

    def __init__(self, status: int, note: str = "") -> None:
        super().__init__(note)
        self.status = status
        self.note = note

    @property
    def shared(self) -> bool:
        """Whether rank 0 knows of it too."""
        return self.note != LOST


def is_lost(error: BaseException) -> bool:
    """Whether an error means that a peer is gone."""
    lost = isinstance(error, DistError) or any(said in str(error) for said in _LOST_IN)
    return isinstance(error, RuntimeError) and lost


class Peers:
    """This rank's view of all ranks, kept up to date by a thread from `start` to `stop`."""

    def __init__(self) -> None:
        if dist.is_initialized():
            self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
            # There is no public way to a group's store; a clone has a connection of its own.
            store = distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
            # Ranks may run the job more than once with the same store.
            run = (store.add("neural-prep", 1) - 1) // self.ranks
            self._store: Store = PrefixStore(f"neural-prep/{run}", store)
        else:
            self.rank, self.ranks = 0, 1
            self._store = HashStore()
        self.total_bytes = 0
        self.total_blocks = 0
        self._own = {_BYTES: 0, _BLOCKS: 0}
        self._sent = {_BYTES: 0, _BLOCKS: 0}
        self._sending = threading.Lock()
        self._failure: PeerFailedError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="peers")

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends watching: from here on a peer may leave."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(2.0)

    def check(self) -> None:
        """Raises what ended another rank.

        Raises:
            PeerFailedError: if a peer has failed.
        """
        if self._failure is not None:
            raise self._failure

    def explain(self, error: BaseException) -> BaseException:
        """What really happened where a collective failed: a peer that failed, or was killed."""
        if not is_lost(error):
            return error
        deadline = time.monotonic() + 1.0  # a peer's word may be on its way
        with contextlib.suppress(RuntimeError):  # the store may be lost, too
            while self._failure is None and time.monotonic() < deadline:
                self._look()
                time.sleep(_POLL / 4)
        return self._failure or PeerFailedError(1, LOST)

    def add_bytes(self, nbytes: int) -> None:
        """Counts bytes that this rank has read, for everybody's progress."""
        self._own[_BYTES] += nbytes

    def add_block(self) -> None:
        """Counts a block that this rank has finished."""
        self._own[_BLOCKS] += 1

    def count(self, what: str, number: int = 0) -> int:
        """Adds to a number that all ranks share, and returns it."""
        return int(self._store.add(what, number))

    def tell(self, what: str, content: bytes) -> None:
        """Says something to all ranks, once."""
        parts = range(0, len(content), _MESSAGE)
        for part in parts:
            # Its stub knows text alone.
            self._store.set(f"{what}/{part}", content[part : part + _MESSAGE])  # type: ignore[arg-type]
        self._store.set(what, str(len(content)))

    def hear(self, what: str, idle: Callable[[], None]) -> bytes:
        """What a rank tells, waiting for it as `wait_for_all` does.

        Raises:
            PeerFailedError: if a peer has failed.
        """
        while not self._store.check([what]):
            self.check()
            idle()
            time.sleep(0.01)
        parts = range(0, int(self._store.get(what)), _MESSAGE)
        return b"".join(self._store.get(f"{what}/{part}") for part in parts)

    def share(self, lines: Sequence[str]) -> None:
        """Tells all ranks some lines; they are there once all have met after it."""
        part = ""
        for line in lines:
            if part and len(part) + len(line) > _MESSAGE // 4:  # of what may be four bytes each
                self._store.append(_LINES, part)  # type: ignore[attr-defined]
                part = ""
            part += f"{line}\n"
        if part:
            self._store.append(_LINES, part)  # type: ignore[attr-defined]

    def shared(self) -> list[str]:
        """The lines of all ranks, in any order."""
        if not self._store.check([_LINES]):
            return []
        return self._store.get(_LINES).decode().splitlines()

    def fail(self, status: int, note: str = "") -> PeerFailedError | None:
        """Says that this rank has failed.

        Args:
            status: Exit status of all ranks.
            note: What another rank tells the user.

        Returns:
            What a peer has said before; None where this rank is the first.
        """
        failure = None
        try:
            said = self._store.compare_set(_FAILED, "", f"{self.rank}:{status}:{note}")
            if int(said.split(b":")[0]) != self.rank:
                failure = _read(said)
            self.linger()
        except RuntimeError:  # it is gone, but may have been read before
            failure = self._failure
        self._stopped.set()
        return failure

    def linger(self) -> None:
        """Lets peers read of a failure before this rank ends: the store may go with its process."""
        if self.rank == 0 and self.ranks > 1:
            time.sleep(4 * _POLL)

    def wait_for_all(self, where: str, idle: Callable[[], None]) -> None:
        """Waits until every rank is here, polling: a failure or a signal still ends this rank.

        Args:
            where: Name of the meeting point, used once.
            idle: Called over and over while waiting; what it raises ends the wait.

        Raises:
            PeerFailedError: if a peer has failed.
        """
        self.flush()
        idle()
        self._store.add(where, 1)
        while self._store.add(where, 0) < self.ranks:
            self.check()
            idle()
            time.sleep(0.01)
        self.flush()
        self._look()  # a rank that was here may have failed since
        self.check()

    def flush(self) -> None:
        """Adds what this rank has counted to all ranks' totals, and takes those in."""
        with self._sending:
            totals = {}
            for what, number in self._own.items():
                added = number - self._sent[what]
                self._sent[what] += added
                totals[what] = self._store.add(what, added)
            self.total_bytes, self.total_blocks = totals[_BYTES], totals[_BLOCKS]

    def _watch(self) -> None:
        beat = self._beat()
        while not self._stopped.wait(_POLL):
            try:
                self.flush()
                next(beat)
                self._look()
            except RuntimeError:
                if self._stopped.is_set():
                    return
                self._failure = PeerFailedError(1, LOST)
            if self._failure is not None:
                self._leave_after(_GRACE, self._failure)
                return

    def _beat(self) -> Iterator[None]:
        """Gives signs of life now and then, and watches for those of the next rank.

        Where nobody watches the processes, as under plain srun or when a node is gone, a rank that
        was killed would otherwise be waited for.
        """
        following = (self.rank + 1) % self.ranks
        beaten, heard, changed = -_BEAT, -1, time.monotonic()
        while True:
            now = time.monotonic()
            if now - beaten >= _BEAT:
                beaten = now
                self.count(f"beat/{self.rank}", 1)
                beats = self.count(f"beat/{following}")
                if beats != heard:
                    heard, changed = beats, now
                elif now - changed > _SILENCE:
                    note = f"rank {following} has given no sign of life for {_SILENCE:.0f} s"
                    said = f"{self.rank}:1:{note}; start again to continue"
                    self._store.compare_set(_FAILED, "", said)
            yield

    def _look(self) -> None:
        """Finds out whether a peer has failed."""
        if self._failure is None and self._store.check([_FAILED]):
            self._failure = _read(self._store.get(_FAILED))

    def _leave_after(self, seconds: float, failure: PeerFailedError) -> None:
        """Ends the process where the main thread cannot, being in a collective or a hung read."""
        if not self._stopped.wait(seconds):
            leave(failure.status)


def _read(said: bytes) -> PeerFailedError:
    _, status, note = said.decode().split(":", 2)
    return PeerFailedError(int(status), note)
