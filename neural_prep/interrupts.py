"""Signals that end a run at once, with status 75 and one line, until the run takes them over.

Start-up takes seconds, and that is when people press Ctrl-C. Nothing has been read then that would
need to be saved. Python's own handlers wait for the main thread, which may be in a rendezvous with
ranks that never come; so a thread waits for signals too.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn

STOPPED = 75  # exit status: stopped by a signal, start again
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
PARENT = "NEURAL_PREP_PARENT"  # environment variable: the process that started this rank

_before_exit: list[Callable[[], None]] = []
_first = threading.Lock()  # held by whoever ends the process
_watching, _handed_over = threading.Event(), threading.Event()


def is_first_to_end() -> bool:
    """Whether the caller is the first here to end the process: that one tells the user why."""
    return not _watching.is_set() or _first.acquire(blocking=False)


def before_exit(action: Callable[[], None]) -> None:
    """Registers what must happen before `leave`: ending child processes."""
    _before_exit.append(action)


def leave(status: int) -> NoReturn:
    """Ends this process at once, whatever its threads are doing."""
    for action in _before_exit:
        action()
    os._exit(status)


def stop_on_signals(*, speak: bool, among_tasks: bool = False) -> None:
    """From now on a signal ends the process with status 75.

    Args:
        speak: Whether to say so: one rank does.
        among_tasks: Whether this is one of several tasks of Slurm. SIGTERM then means that another
            one has failed and told the user; srun's status is the highest, which shall be that
            one's.
    """

    def stop(signum: int) -> None:
        if _handed_over.is_set() or not is_first_to_end():
            return
        if among_tasks and signum == signal.SIGTERM:
            leave(1)
        if speak:
            os.write(2, f"neural-prep: {stopped_by(signum)}\n".encode())
        leave(STOPPED)

    _watching.set()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    for signum in SIGNALS:
        signal.signal(signum, lambda number, _: stop(number))
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        while not _handed_over.is_set():
            for number in ours.recv(64):
                stop(number)
        theirs.close()  # named here, so that it lives as long as the thread

    threading.Thread(target=watch, daemon=True, name="signals").start()


def hand_over() -> None:
    """From now on signals are the caller's, who sets handlers of its own."""
    _handed_over.set()
    signal.set_wakeup_fd(-1)


def is_starting() -> bool:
    """Whether the run has not taken the signals over yet."""
    return not _handed_over.is_set()


def leave_with_parent() -> None:
    """Ends this rank when the process that started it is gone; of no effect in others."""
    if PARENT not in os.environ:
        return
    parent = int(os.environ[PARENT])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def stopped_by(signum: int) -> str:
    """What the user is told.

    >>> stopped_by(15)
    'stopped by SIGTERM; start again to continue'
    """
    return f"stopped by {signal.Signals(signum).name}; start again to continue"
