"""A rank that torchrun has started: its store, its line to the other ranks, its process groups.

Such a rank cannot be replaced. Where a test leaves it in a collective or a sleep, its sockets are
shut and its main thread interrupted; a new process group on the same store follows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Client, Connection, Listener, Pipe, wait
from types import FrameType
from typing import Any

import pytest
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from neural_prep.testing.rank import tear_down
from neural_prep.world import group
from neural_prep.world.ranks import Gone, Message

_LEADER = "leader"  # key in the store
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


class LineToRanks:
    """Rank 0's line to all ranks, itself included."""

    def __init__(self, launch: Launch) -> None:
        """Waits until all others have called."""
        self._launch = launch
        host, key = _host(), secrets.token_bytes(16)
        address = ("127.0.0.1" if host == "127.0.0.1" else "", 0)
        self.own, ours = Pipe()  # what this process, as a rank, says to itself
        self._connections: dict[int, Connection] = {0: ours}
        with Listener(address, backlog=launch.size, authkey=key) as listener:
            port = listener.address[1]
            launch.store.set(_LEADER, f"{host} {port} {key.hex()}")
            while len(self._connections) < launch.size:
                connection = listener.accept()
                _send_at_once(connection)
                self._connections[connection.recv()] = connection

    def send(self, content: Any, ranks: Sequence[int] | None = None) -> None:
        """Sends the same to all ranks but this one, or to these."""
        for rank in range(self._launch.size) if ranks is None else ranks:
            if rank in self._connections and rank > 0:
                with contextlib.suppress(OSError):
                    self._connections[rank].send(content)

    def listen(self, timeout: float) -> list[Message | Gone]:
        """Waits until something is said or a rank ends; empty after `timeout` seconds."""
        ranks = {connection: rank for rank, connection in self._connections.items()}
        heard: list[Message | Gone] = []
        for connection in wait(list(ranks), max(timeout, 0.0)):
            assert isinstance(connection, Connection)
            rank = ranks[connection]
            try:
                heard.append(Message(rank, connection.recv()))
            except (EOFError, OSError):
                del self._connections[rank]
                heard.append(Gone(rank, None))
        return heard


def call_leader(launch: Launch) -> Connection:
    """Another rank's connection to rank 0."""
    host, port, key = launch.store.get(_LEADER).decode().split()
    connection = Client((host, int(port)), authkey=bytes.fromhex(key))
    _send_at_once(connection)
    connection.send(launch.rank)
    return connection


def renew(launch: Launch, session: pytest.Session, generation: int) -> group.World:
    """Tears down all fixtures, whatever they say, and opens a new process group."""
    with contextlib.suppress(BaseException):
        tear_down(session)
    group.close_world()
    return launch.open_world(generation)


def _send_at_once(connection: Any) -> None:
    """Has TCP send small messages at once: waiting to fill packets costs 40 ms a test."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _host() -> str:
    """Where rank 0 can be called: on this machine alone, if all ranks are."""
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        return "127.0.0.1"
    return os.environ["MASTER_ADDR"]
