"""A rank's thread that listens to its starter, whatever the main thread is doing.

Work goes to the main thread. Questions about stacks are answered here, also while the main thread
is blocked in a collective, and the end of the connection ends the rank.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

# Files between a rank's start and a test's body, or a check's function.
_ON_THE_WAY = (
    *("/_pytest/", "/pluggy/", "/pytest/__main__.py"),
    *("/neural_prep/testing/", "/neural_prep/checks/", "/neural_prep/cli.py"),
    "/neural_prep/world/nursery.py",
)
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")),
    os.path.dirname(__file__),  # such as a world's barrier
)
_FALLBACK = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 5  # asks faulthandler, in C


@dataclass(frozen=True, slots=True)
class TellStacks:
    """Asks a rank where it is."""


@dataclass(frozen=True, slots=True)
class Stacks:
    """Where a rank is: `line` in short, `text` in full."""

    line: str
    text: str


class Watch:
    """Listens to the starter for a rank."""

    def __init__(
        self,
        connection: Connection,
        lost: Callable[[], None],
        at_once: Mapping[type, Callable[[Any], None]] | None = None,
    ) -> None:
        """Begins to listen.

        Args:
            connection: To the starter.
            lost: Called, in the thread, when the connection ends.
            at_once: What the thread does with messages of these types.
        """
        self.connection = connection
        self._lost = lost
        self._pid = os.getpid()
        self._at_once = dict(at_once or {})
        self._sending = threading.Lock()
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True, name="watch").start()

    def work(self) -> Any:
        """The next piece of work; waits for it."""
        return self._work.get()

    def say(self, content: Any, files: Sequence[int] = ()) -> None:
        """Sends something to the starter, and open files after it."""
        if os.getpid() != self._pid:  # a child that a test has forked speaks for nobody
            return
        with self._sending:
            self.connection.send(content)
            for file in files:
                send_handle(self.connection, file, None)

    def _listen(self) -> None:
        while True:
            try:
                said = self.connection.recv()
            except (EOFError, OSError):
                self._lost()
                return
            if isinstance(said, TellStacks):
                self.say(find_stacks())
            elif type(said) in self._at_once:
                self._at_once[type(said)](said)
            else:
                self._work.put(said)


def find_stacks() -> Stacks:
    """Where this process' main thread is, from the user's own code on."""
    main = threading.main_thread().ident
    frames = traceback.extract_stack(sys._current_frames().get(main or 0))
    shown = [
        frame
        for frame in frames
        if not frame.filename.startswith("<") and not _is_on_the_way(frame.filename)
    ]
    shown = shown or list(frames)
    return Stacks(_place(shown), "".join(traceback.format_list(shown)))


def _is_on_the_way(text: str) -> bool:
    return any(part in text for part in _ON_THE_WAY)


def _place(frames: list[traceback.FrameSummary]) -> str:
    """The last line of the user's own code among these frames, and the function it waits for."""
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    where = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno} in {own[-1].name}"
    return where if own[-1] is frames[-1] else f"{where}, in {frames[-1].name}"


def dump_on_request(log: int) -> None:
    """Has this process write its stacks to a file when asked by `request_dump`.

    It works where the watch cannot answer: the main thread may hold Python's lock for ever.
    """
    faulthandler.register(_FALLBACK, log, all_threads=True)


def shorten_dump(text: str) -> str:
    r"""What faulthandler has written, less this thread, and frames before a test's own.

    >>> shorten_dump('File "test_a.py", line 3 in test\nFile "/pluggy/_hooks.py", line 5 in call')
    'File "test_a.py", line 3 in test'
    """
    cut = ("Extension modules: ", '  File "<string>"')
    text = "\n\n".join(part for part in text.split("\n\n") if f'"{__file__}"' not in part)
    lines = [line for line in text.splitlines() if not line.startswith(cut)]
    return "\n".join(line for line in lines if not _is_on_the_way(line))


def request_dump(pid: int) -> None:
    """Asks a process for its stacks in the way of last resort."""
    os.kill(pid, _FALLBACK)
