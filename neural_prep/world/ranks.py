"""The starter's side of a world: ranks are started, sent messages, listened to and ended.

It imports no torch: whoever starts ranks, pytest above all, stays light.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from neural_prep.world.environment import clean, cores, threads_of
from neural_prep.world.nursery import Ended, RankSpec, Ready

_IMPORTING = 120.0  # seconds until torch must be imported
_LOST = "the process that forks ranks was killed"
_BURIAL = 5.0  # seconds from the end of a rank's connection to the word of its end
_LOST_PEER = re.compile(
    r"(closed|reset) by peer|broken pipe|connection (was |is )?(refused|lost|closed|aborted)"
    r"|pair closure|DistNetworkError|remote process exited|ncclRemoteError|socket (is )?closed",
    re.IGNORECASE,
)
_START = (
    "import json, sys; handle, sys.path[:], prepare, arguments = json.loads(sys.argv[1]); "
    "from neural_prep.world.nursery import serve; serve(handle, prepare, arguments)"
)


class WorldError(Exception):
    """The ranks could not be started."""


class Nursery:
    """The process that forks ranks, as its starter sees it."""

    def __init__(
        self,
        path: Sequence[str],
        ranks: int,
        *,
        base: Mapping[str, str],
        prepare: str,
        arguments: Sequence[Any],
    ) -> None:
        """Starts it; the import of torch goes on meanwhile.

        Args:
            path: `sys.path` of the nursery.
            ranks: Number of ranks that are likely, for libraries that settle on a number of threads
                when they are loaded.
            base: The environment outside.
            prepare: `module:function`, called there once torch is imported.
            arguments: What it is called with; JSON.
        """
        environment = clean(base)
        environment.setdefault("OMP_NUM_THREADS", str(threads_of(ranks, cores())))
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    *("-P", "-c", _START),
                    json.dumps([theirs.fileno(), list(path), prepare, list(arguments)]),
                ],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.connection = Connection(ours.detach())
        self._keys = itertools.count()
        self._ready: Ready | None = None
        self.ended: dict[int, int] = {}  # status by key

    @property
    def is_alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    @property
    def gpus(self) -> int:
        """Number of GPUs; waits for torch to be imported."""
        if self._ready is None:
            if not self.connection.poll(_IMPORTING):
                raise WorldError(f"importing torch took longer than {_IMPORTING:g} s")
            try:
                self._ready = self.connection.recv()
            except EOFError:
                status = self._process.wait()
                raise WorldError(f"importing torch failed with exit code {status}") from None
        assert isinstance(self._ready, Ready)
        return self._ready.gpus

    def fork(self, spec: RankSpec, handles: Sequence[int]) -> int:
        """Starts a rank, passes these open files to it, and returns its key.

        Raises:
            WorldError: if the nursery is gone.
        """
        assert self.gpus >= 0  # waits for torch
        key = next(self._keys)
        try:
            self.connection.send((key, spec))
            for handle in handles:
                send_handle(self.connection, handle, self._process.pid)
        except OSError:
            raise WorldError(_LOST) from None
        return key

    def listen(self) -> None:
        """Takes in who has ended."""
        while self.connection.poll():
            try:
                said = self.connection.recv()
            except (EOFError, OSError):
                raise WorldError(_LOST) from None
            assert isinstance(said, Ended)
            self.ended[said.key] = said.status

    def kill(self, keys: Sequence[int]) -> None:
        """Ends ranks at once, and waits until they are gone."""
        keys = [key for key in keys if key not in self.ended]
        if not keys:
            return
        # Where the nursery is gone, ranks end with their connections.
        with contextlib.suppress(OSError, WorldError):
            self.connection.send(keys)
            deadline = time.monotonic() + _BURIAL
            while not all(key in self.ended for key in keys) and time.monotonic() < deadline:
                wait([self.connection], deadline - time.monotonic())
                self.listen()

    def close(self) -> None:
        """Ends every rank, and itself."""
        self.connection.close()
        try:
            self._process.wait(_BURIAL)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, slots=True)
class Message:
    """What a rank has said; as many open files come with it as its attribute `files` says."""

    rank: int
    content: Any
    files: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Gone:
    """A rank has ended; its status, where it is known, is negative for a signal."""

    rank: int
    status: int | None


class Ranks:
    """A world of ranks on this machine."""

    def __init__(
        self,
        nursery: Nursery,
        size: int,
        *,
        entry: str,
        payload: Callable[[int], Any],
        path: Sequence[str],
        directory: str,
        environment: Callable[[int, int], dict[str, str]],
        outputs: Callable[[int], tuple[int, int]],
        logs: Callable[[int], int],
    ) -> None:
        """Starts them.

        Args:
            nursery: Forks them.
            size: Number of ranks.
            entry: `module:function`, called in each with its payload, the file numbers of its
                connection and its log, and, in rank 0, that of a listening socket for its store.
            payload: A rank's payload.
            path: Their `sys.path`.
            directory: Their working directory.
            environment: That of a rank, given it and the port of rank 0's store.
            outputs: File numbers of a rank's stdout and stderr.
            logs: File number of a rank's log.
        """
        self.size = size
        self._nursery = nursery
        self._connections: list[Connection] = []
        self._keys: list[int] = []
        self.gone: dict[int, int | None] = {}  # status by rank, where it is known
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as store:
            port = store.getsockname()[1]
            for rank in range(size):
                ours, theirs = socket.socketpair()
                with theirs:
                    handles = [*outputs(rank), theirs.fileno(), logs(rank)]
                    handles += [store.fileno()] if rank == 0 else []
                    spec = RankSpec(
                        entry=entry,
                        payload=payload(rank),
                        environment=environment(rank, port),
                        directory=directory,
                        path=list(path),
                        handles=len(handles),
                    )
                    self._keys.append(nursery.fork(spec, handles))
                self._connections.append(Connection(ours.detach()))

    @property
    def connections(self) -> tuple[Connection, ...]:
        """A connection to each rank."""
        return tuple(self._connections)

    def join(self, connection: Connection) -> None:
        """Takes in another rank, which somebody else has started."""
        self._connections.append(connection)
        self.size += 1

    def send(self, content: Any, ranks: Sequence[int] | None = None) -> None:
        """Sends the same to all ranks, or to these; what a dead one misses is no error."""
        for rank in range(self.size) if ranks is None else ranks:
            with contextlib.suppress(OSError):
                self._connections[rank].send(content)

    def listen(self, timeout: float) -> list[Message | Gone]:
        """Waits until something is said or a rank ends; empty after `timeout` seconds."""
        live = {
            connection: rank
            for rank, connection in enumerate(self._connections)
            if rank not in self.gone
        }
        heard: list[Message | Gone] = []
        for connection in wait(list(live), max(timeout, 0.0)):
            assert isinstance(connection, Connection)
            rank = live[connection]
            try:
                content = connection.recv()
                files = [recv_handle(connection) for _ in range(getattr(content, "files", 0))]
                heard.append(Message(rank, content, tuple(files)))
            except (EOFError, OSError):
                heard.append(self._bury(rank))
        return heard

    def end(self, patience: float = 0.0) -> None:
        """Waits so many seconds for ranks to end by themselves, then ends them."""
        deadline = time.monotonic() + patience
        while len(self.gone) < self.size and time.monotonic() < deadline:
            self.listen(deadline - time.monotonic())
        self._nursery.kill(self._keys)
        for connection in self._connections:
            connection.close()

    def _bury(self, rank: int) -> Gone:
        """The end of a rank whose connection has closed."""
        if rank >= len(self._keys):
            self.gone[rank] = None
            return Gone(rank, None)
        key = self._keys[rank]
        deadline = time.monotonic() + _BURIAL
        self._nursery.listen()
        while key not in self._nursery.ended:
            if time.monotonic() > deadline:  # it has closed its connection and lives
                self._nursery.kill([key])
            wait([self._nursery.connection], 0.1)
            self._nursery.listen()
        self.gone[rank] = self._nursery.ended[key]
        return Gone(rank, self.gone[rank])


def ending(status: int | None) -> str:
    """How a process with this status ended.

    >>> ending(1), ending(-11)
    ('ended with exit code 1', 'was killed by SIGSEGV')
    """
    if status is None:
        return "is gone"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"


def is_of_lost_peer(text: str) -> bool:
    """Whether this is the error of a collective whose peer is gone: another rank's is the matter.

    >>> is_of_lost_peer("RuntimeError: Connection closed by peer [127.0.0.1]:22439")
    True
    """
    return _LOST_PEER.search(text) is not None
