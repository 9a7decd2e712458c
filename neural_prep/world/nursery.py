"""A process that has imported torch and forks ranks, each in hundredths of a second.

Spawned ranks take 2-5 s each to import torch again, and a fork of pytest itself would copy its
threads and CUDA contexts. This process has neither: it imports, waits and forks. It ends, and every
rank with it, when the connection to whoever started it closes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_GENERATIONS = 10  # of children whose own children are found once they are gone
_ORPHANS = 0.5  # seconds that a dead rank's helpers (multiprocessing's tracker) have to clean up
_PRELOAD = ("torch", "torch.distributed.device_mesh", "numpy")


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What a new rank is given.

    Attributes:
        entry: `module:function`, called with the payload and the numbers of the extra files.
        payload: Anything that can be pickled.
        environment: All of its environment variables.
        directory: Its working directory.
        path: Its `sys.path`.
        handles: How many files follow: stdout, stderr, then those for `entry`.
    """

    entry: str
    payload: Any
    environment: dict[str, str]
    directory: str
    path: list[str]
    handles: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The rank with this key is gone; `status` is negative for a signal, as in `subprocess`."""

    key: int
    status: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The nursery has imported torch; `gpus` is what torch counts."""

    gpus: int


@dataclass(slots=True)
class _Nursery:
    connection: Connection
    pids: dict[int, int] = field(default_factory=dict)  # key by pid

    def serve(self) -> None:
        children, wakeup = socket.socketpair()
        for end in (children, wakeup):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        self.connection.send(Ready(_count_gpus()))
        while True:
            for source in wait([self.connection, children]):
                if source is children:
                    with contextlib.suppress(BlockingIOError):
                        children.recv(4096)
                    self.reap()
                elif not self.answer():
                    self.kill(list(self.pids.values()))
                    _end_orphans()
                    return

    def answer(self) -> bool:
        """Does what is asked; False once nobody will ask any more."""
        try:
            asked = self.connection.recv()
            if isinstance(asked, list):
                self.kill(asked)
            else:
                key, spec = asked
                self.fork(key, spec, [recv_handle(self.connection) for _ in range(spec.handles)])
        except (EOFError, OSError):
            return False
        return True

    def fork(self, key: int, spec: RankSpec, handles: Sequence[int]) -> None:
        pid = os.fork()
        if pid == 0:
            self.connection.close()
            _become(spec, handles)
        with contextlib.suppress(OSError):  # the rank does the same; whoever comes first
            os.setpgid(pid, pid)
        for handle in handles:
            os.close(handle)
        self.pids[pid] = key

    def kill(self, keys: list[int]) -> None:
        doomed = [pid for pid, key in self.pids.items() if key in keys]
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        for pid in doomed:
            self.bury(pid, os.waitpid(pid, 0)[1])
        if not self.pids:
            _end_orphans()

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                found, status = os.waitpid(-1, os.WNOHANG)
                if not found:
                    return
                if found in self.pids:
                    self.bury(found, status)

    def bury(self, pid: int, status: int) -> None:
        """Says that a rank is gone, and ends what it has left behind."""
        with contextlib.suppress(OSError):
            self.connection.send(Ended(self.pids[pid], os.waitstatus_to_exitcode(status)))
        del self.pids[pid]
        deadline = time.monotonic() + _ORPHANS
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(pid, 0)  # raises once the group is empty
                time.sleep(0.01)
            os.killpg(pid, signal.SIGKILL)


def serve(handle: int, prepare: str, arguments: Sequence[Any]) -> None:
    """Serves the connection with this file number until it closes.

    Args:
        handle: The file number.
        prepare: `module:function`, called before ranks are forked.
        arguments: What it is called with.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the connection's end is what counts
    _adopt_orphans()
    for name in _PRELOAD:
        importlib.import_module(name)
    find(prepare)(*arguments)
    gc.collect()
    gc.freeze()  # ranks never look through what is imported here: each ends 0.2 s sooner
    with contextlib.suppress(BrokenPipeError):
        _Nursery(Connection(handle)).serve()
    os._exit(0)


def _adopt_orphans() -> None:
    """Makes this process the parent of what ranks leave behind, whatever session it is in."""
    with contextlib.suppress(Exception):  # Linux alone knows how
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_orphans() -> None:
    """Ends this process' children, and theirs, once no rank is left that could need them."""
    own = str(os.getpid())
    for _ in range(_GENERATIONS):
        found = [pid for pid, parent in _parents() if parent == own]
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
                os.waitpid(int(pid), 0)
        if not found:
            return


def _parents() -> Iterator[tuple[str, str]]:
    """Every process and its parent, as far as there is a /proc."""
    for pid in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if pid.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
                yield pid, stat.read().rpartition(")")[2].split()[1]


def find(entry: str) -> Callable[..., Any]:
    """The function that `module:function` names.

    >>> find("os.path:basename")("/a/b")
    'b'
    """
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def _count_gpus() -> int:
    """GPUs that torch counts, in a fork: counting may touch CUDA, and then forks are forbidden."""
    if not any(os.path.exists(f"/dev/{name}") for name in ("nvidiactl", "dxg")):
        return 0
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            import torch

            os.write(writing, str(torch.cuda.device_count()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return int(text or 0)


def _become(spec: RankSpec, handles: Sequence[int]) -> None:
    """Turns this fork into a rank; doesn't return."""
    status = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, handle in zip((1, 2), handles[:2], strict=True):
            os.dup2(handle, target)
            os.close(handle)
        os.environ.clear()
        os.environ.update(spec.environment)
        os.chdir(spec.directory)
        sys.path[:] = spec.path
        status = find(spec.entry)(spec.payload, *handles[2:])
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)
