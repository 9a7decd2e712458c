"""Signals that end a run at once, with status 75 and one line, until the run takes them over.

Start-up takes seconds, and that is when people press Ctrl-C. Nothing has been read then that would
need to be saved.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

STOPPED = 75  # exit status: stopped by a signal, start again
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

_before_exit: list[Callable[[], None]] = []


def before_exit(action: Callable[[], None]) -> None:
    """Registers what must happen before `leave`: ending child processes."""
    _before_exit.append(action)


def leave(status: int) -> None:
    """Ends this process at once, whatever its threads are doing."""
    for action in _before_exit:
        action()
    os._exit(status)


def stop_on_signals(*, speak: bool) -> None:
    """From now on a signal ends the process with status 75.

    Args:
        speak: Whether to say so: one rank does.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        if speak:
            os.write(2, f"neural-prep: {stopped_by(signum)}\n".encode())
        leave(STOPPED)

    for signum in SIGNALS:
        signal.signal(signum, stop)


def stopped_by(signum: int) -> str:
    """What the user is told.

    >>> stopped_by(15)
    'stopped by SIGTERM; start again'
    """
    return f"stopped by {signal.Signals(signum).name}; start again"
