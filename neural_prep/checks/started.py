"""Ranks that the command starts itself: once, and again after a case that they don't survive."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO

from neural_prep.checks import rank as entry
from neural_prep.checks.cases import Case
from neural_prep.checks.check import Outcome
from neural_prep.checks.rank import Finish, Ready, Settings
from neural_prep.checks.verdict import Fate, Verdict, judge
from neural_prep.world.environment import environment_of
from neural_prep.world.ranks import Gone, Nursery, Ranks, WorldError, ending
from neural_prep.world.watch import Stacks, TellStacks

_DEFAULT = 2  # ranks, where there is no GPU
_STARTING = 120.0  # seconds until ranks must be there
_GRACE = 2.0  # seconds that other ranks have once one has failed
_ANSWER = 1.0  # seconds until a rank must have told where it is
_LEAVING = 5.0  # seconds that ranks have to end
_TAIL = 4096  # bytes of what a rank has written
_LINES = 5


class StartedWorld:
    """Ranks on this machine.

    Attributes:
        size: How many.
    """

    speaks = True  # this process is no rank, and reports

    def __init__(self, size: int | None, timeout: float) -> None:
        """Starts to import torch where ranks will be forked.

        Args:
            size: Number of ranks; None for that of GPUs, or 2.
            timeout: Seconds that a case may take.
        """
        self._timeout = timeout
        self._base = dict(os.environ)
        self._nursery = Nursery(
            sys.path,
            size or _DEFAULT,
            base=self._base,
            prepare=f"{entry.__name__}:prepare",
            arguments=[],
        )
        self.size = size or self._nursery.gpus or _DEFAULT
        self._ranks: Ranks | None = None
        self._logs: list[IO[bytes]] = []

    def ready(self) -> None:
        """Starts ranks where there are none, or no more.

        Raises:
            WorldError: if they cannot be started.
        """
        if self._ranks is None:
            self._start()

    def run(self, case: Case) -> Verdict:
        """Runs a case on all ranks, which are ready."""
        assert self._ranks is not None
        self._ranks.send(case)
        course = _Course(self._ranks, self._timeout)
        verdict = judge(course.outcomes, course.fates(self._said))
        if not verdict.in_step:
            self._end(gently=False)
        return verdict

    def close(self) -> None:
        """Ends all ranks."""
        self._end(gently=True)
        self._nursery.close()

    def _start(self) -> None:
        self._logs = [_new_log() for _ in range(self.size)]
        handles = [log.fileno() for log in self._logs]
        patience = 2 * self._timeout + 60  # longer than the command waits
        ranks = self._ranks = Ranks(
            self._nursery,
            self.size,
            entry=f"{entry.__name__}:main",
            payload=lambda rank: Settings(rank, self.size, patience),
            path=sys.path,
            directory=os.getcwd(),
            environment=lambda rank, port: environment_of(
                rank, self.size, port=port, gpus=self._nursery.gpus, base=self._base
            ),
            outputs=lambda rank: (handles[rank], handles[rank]),
            logs=lambda rank: handles[rank],
        )
        deadline = time.monotonic() + _STARTING
        ready: set[int] = set()
        while len(ready) < self.size:
            heard = ranks.listen(deadline - time.monotonic())
            for event in heard:
                if isinstance(event, Gone):
                    raise WorldError(
                        f"rank {event.rank} {ending(event.status)} while it started; it wrote: "
                        f"{self._said(event.rank)}"
                    )
                assert isinstance(event.content, Ready)
                ready.add(event.rank)
            if not heard:
                raise WorldError(f"{self.size - len(ready)} ranks did not start in {_STARTING:g} s")

    def _said(self, rank: int) -> str:
        """The last lines that a rank has written."""
        log = self._logs[rank].fileno()
        text = os.pread(log, _TAIL, max(os.fstat(log).st_size - _TAIL, 0)).decode(errors="replace")
        return "\n".join(text.splitlines()[-_LINES:])

    def _end(self, *, gently: bool) -> None:
        if self._ranks is not None:
            if gently:
                self._ranks.send(Finish())
            self._ranks.end(_LEAVING if gently else 0.0)
            self._ranks = None
        for log in self._logs:
            log.close()
        self._logs = []


def _new_log() -> IO[bytes]:
    return tempfile.TemporaryFile()


class _Course:
    """One case on its way: what ranks have said of it."""

    def __init__(self, ranks: Ranks, timeout: float) -> None:
        """Waits until all ranks are done, or time is up."""
        self._ranks = ranks
        self.outcomes: dict[int, Outcome] = {}
        self._gone: dict[int, int | None] = {}
        self._stacks: dict[int, Stacks] = {}
        begun = time.monotonic()
        deadline = begun + timeout
        in_trouble = False
        while self._left() and self._hear(deadline - time.monotonic()):
            failed = bool(self._gone) or any(one.failed for one in self.outcomes.values())
            if failed and not in_trouble:
                in_trouble = True
                deadline = min(deadline, time.monotonic() + _GRACE)
        self._seconds = time.monotonic() - begun
        self._ask_where()

    def fates(self, said: Callable[[int], str]) -> dict[int, Fate]:
        """What became of ranks that have no outcome; `said` is what a rank has written."""
        fates = {
            rank: Fate(ending(status), said(rank), True) for rank, status in self._gone.items()
        }
        for rank in self._left():
            stacks = self._stacks.get(rank)
            where = f", at {stacks.line}" if stacks else ""
            text = f"was still running after {self._seconds:.0f} s{where}"
            fates[rank] = Fate(text, stacks.text if stacks else "")
        return fates

    def _left(self) -> list[int]:
        """Ranks of which nothing is known."""
        known = {*self.outcomes, *self._gone}
        return [rank for rank in range(self._ranks.size) if rank not in known]

    def _ask_where(self) -> None:
        self._ranks.send(TellStacks(), self._left())
        deadline = time.monotonic() + _ANSWER
        while set(self._left()) - set(self._stacks) and self._hear(deadline - time.monotonic()):
            pass

    def _hear(self, seconds: float) -> bool:
        """Takes in what ranks say; False when nothing comes for so long."""
        heard = self._ranks.listen(seconds)
        for event in heard:
            if isinstance(event, Gone):
                if event.rank not in self.outcomes:
                    self._gone[event.rank] = event.status
            elif isinstance(event.content, Stacks):
                self._stacks[event.rank] = event.content
            else:
                assert isinstance(event.content, Outcome)
                self.outcomes[event.rank] = event.content
        return bool(heard)
