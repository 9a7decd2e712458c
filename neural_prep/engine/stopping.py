"""Signals and failures: a run that ends early ends on every rank, and says why once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from neural_prep.engine.module import StatsModule
from neural_prep.engine.peers import LOST, PeerFailedError, Peers, is_lost
from neural_prep.errors import InputError
from neural_prep.interrupts import (
    SIGNALS,
    STOPPED,
    hand_over,
    is_first_to_end,
    leave,
    stopped_by,
)

DONE, FAILED, WRONG_INPUT = 0, 1, 2  # exit statuses, besides `STOPPED`
_GRACE = 5.0  # seconds that a rank has to end by itself once a signal has come
_TURN = 1.0  # seconds in which a launcher notices that a rank is gone


class StoppedError(Exception):
    """A signal asked the run to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(stopped_by(signum))


def status_of(error: BaseException) -> int:
    """The exit status that an error means."""
    if isinstance(error, PeerFailedError):
        return error.status
    if isinstance(error, InputError):
        return WRONG_INPUT
    return STOPPED if isinstance(error, StoppedError | KeyboardInterrupt) else FAILED


class StopEverywhere(Callback):
    """Ends all ranks when one of them fails or is told to stop."""

    def __init__(self) -> None:
        self._signum: int | None = None
        self._peers: Peers | None = None  # while pieces are read
        self.cause: BaseException | None = None  # what ended all ranks, once this one has ended
        self.progress = ""  # how far all ranks were then, as far as this one knows

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the signals over: Lightning's own handlers log them and go on."""
        for signum in SIGNALS:
            signal.signal(signum, self._receive)
        assert isinstance(pl_module, StatsModule)
        self._peers = pl_module.peers
        hand_over()

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on the result is written, whatever comes."""
        self._peers = None

    def on_predict_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Stops between two pieces."""
        self.on_waiting()

    def on_waiting(self, *_: Any) -> None:
        """Raises StoppedError once a signal has come."""
        if self._signum is not None:
            raise StoppedError(self._signum)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Tells the other ranks, or finds out which of them failed first."""
        assert isinstance(pl_module, StatsModule)
        self._tell(pl_module, exception)
        if pl_module.journal is not None:  # later: a slow disk must not keep others waiting
            pl_module.journal.close()

    def _tell(self, pl_module: StatsModule, exception: BaseException) -> None:
        peers = pl_module._peers
        if peers is None:
            if is_lost(exception):
                time.sleep(_TURN)  # who started that peer says how it ended
                self.cause = PeerFailedError(FAILED, LOST)
            return
        with contextlib.suppress(RuntimeError):  # the store may be lost
            peers.flush()
        self.cause = self._find_cause(peers, exception)
        with contextlib.suppress(RuntimeError):
            peers.flush()  # others have ended meanwhile
        done = pl_module.resumed.blocks + peers.total_blocks
        self.progress = f"{done} of {pl_module.plan.blocks} blocks done"

    @staticmethod
    def _find_cause(peers: Peers, exception: BaseException) -> BaseException:
        """What ended this rank, which all others are told if it is the first to end."""
        cause = peers.explain(exception)
        if isinstance(cause, PeerFailedError):
            peers.linger()
            return cause
        note = str(exception) if isinstance(exception, StoppedError) else ""
        return peers.fail(status_of(exception), note) or exception

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        """Stops soon; at once when a person asks twice.

        What ends a job sends more than one signal by itself: srun, once the first task has ended,
        and torchrun. They would only cut short what this rank has to write and to say.
        """
        if self._signum is None:
            self._signum = signum
            timer = threading.Timer(_GRACE, self._leave)
            timer.daemon = True
            timer.start()
        elif signum == signal.SIGINT:
            self._leave()
            leave(STOPPED)

    def _leave(self) -> None:
        """Ends a rank whose main thread cannot, as it waits for a read: the journal is written."""
        peers = self._peers
        if peers is None or self._signum is None:
            return
        note = stopped_by(self._signum)
        failure = peers.fail(STOPPED, note)
        if peers.rank == 0 and is_first_to_end():
            sys.stderr.write(f"neural-prep: {note}\n")
        leave(failure.status if failure else STOPPED)
