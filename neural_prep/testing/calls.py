"""How other ranks' sessions reach the one that leads them, also from other nodes."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from multiprocessing.connection import (
    Client,
    Connection,
    answer_challenge,
    deliver_challenge,
    wait,
)
from typing import Any


class Reception:
    """Where the other ranks call rank 0's session; whoever knows its address may."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Begins to listen: on this machine alone, if all ranks are here."""
        is_here = environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]
        self._key = secrets.token_bytes(16)
        self._socket = socket.create_server(("127.0.0.1" if is_here else "", 0), backlog=1024)
        host = "127.0.0.1" if is_here else environment["MASTER_ADDR"]
        self.address = f"{host} {self._socket.getsockname()[1]} {self._key.hex()}"

    def accept(self, others: Sequence[Any], timeout: float) -> tuple[int, Connection] | None:
        """The next rank that calls; None when one of `others` has something, or time is up."""
        if self._socket not in wait([self._socket, *others], timeout):
            return None
        connection = Connection(self._socket.accept()[0].detach())
        _send_at_once(connection)
        deliver_challenge(connection, self._key)
        answer_challenge(connection, self._key)
        return connection.recv(), connection

    def close(self) -> None:
        """Takes no more calls."""
        self._socket.close()


def call(address: str, rank: int) -> Connection:
    """This rank's connection to the session that leads."""
    host, port, key = address.split()
    connection = Client((host, int(port)), authkey=bytes.fromhex(key))
    _send_at_once(connection)
    connection.send(rank)
    return connection


def _send_at_once(connection: Any) -> None:
    """Has TCP send small messages at once: waiting to fill packets costs 40 ms a test."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
