"""Starts the command's ranks as forks of one process that has imported all they need.

They are ranks as torchrun starts them, in processes of their own that can be killed, but a start
takes half a second instead of several.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from neural_prep.cli import main
from neural_prep.world.environment import clean
from neural_prep.world.nursery import RankSpec
from neural_prep.world.ranks import Nursery

_POLL = 0.005  # seconds
_GRACE = 1.0  # seconds that ranks have to end by themselves once one of them has failed
_STOPPING = 10.0  # seconds in which a rank must stop when it is told to


@dataclass(frozen=True)
class Ended:
    """A job that has ended.

    Attributes:
        statuses: Each rank's exit status, negative for a signal.
        out: What all ranks wrote to standard output.
        err: The same of standard error.
        seconds: How long it took.
    """

    statuses: tuple[int, ...]
    out: str
    err: str
    seconds: float

    @property
    def status(self) -> int:
        """Rank 0's."""
        return self.statuses[0]


class Job:
    """One start of the command on so many ranks."""

    def __init__(self, nursery: Nursery, args: Sequence[str], ranks: int, folder: Path) -> None:
        self._nursery = nursery
        self._begun = time.monotonic()
        self._out, self._err = folder / "out", folder / "err"
        self._keys = []
        self.pids = []
        port = _free_port()
        with self._out.open("ab") as out, self._err.open("ab") as err:
            for rank in range(ranks):
                reading, writing = os.pipe()
                environment = _environment(rank, ranks, port)
                self._keys.append(_fork(nursery, args, environment, [out, err], writing))
                with os.fdopen(reading) as pid:
                    self.pids.append(int(pid.read()))

    @property
    def ended(self) -> list[bool]:
        """Which ranks have ended."""
        self._nursery.listen()
        return [key in self._nursery.ended for key in self._keys]

    @property
    def is_running(self) -> bool:
        """Whether a rank is left."""
        return not all(self.ended)

    def kill(self, signum: int, ranks: Sequence[int] | None = None) -> None:
        """Sends a signal to all ranks, or to these, as far as they are there."""
        for rank in range(len(self.pids)) if ranks is None else ranks:
            if not self.ended[rank]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pids[rank], signum)

    def wait(self, timeout: float = 60.0) -> Ended:
        """Waits for all ranks' ends; once one has failed the others are told to stop.

        Raises:
            TimeoutError: with what they said, if they take longer; they are ended then.
        """
        deadline = time.monotonic() + timeout
        told = None
        while self.is_running:
            if told is None and any(self._nursery.ended.get(key) for key in self._keys):
                told = time.monotonic() + _GRACE
            if told is not None and time.monotonic() > told:
                self.kill(signal.SIGTERM)
                told, deadline = float("inf"), min(deadline, time.monotonic() + _STOPPING)
            if time.monotonic() > deadline:
                self._nursery.kill(self._keys)
                raise TimeoutError(f"ranks did not end in time: {self._err.read_text()}")
            time.sleep(_POLL)
        statuses = tuple(self._nursery.ended[key] for key in self._keys)
        seconds = time.monotonic() - self._begun
        return Ended(statuses, self._out.read_text(), self._err.read_text(), seconds)


class Forks:
    """The process that ranks are forks of; closed, it ends with all of them."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._number = 0
        prepare = f"{Path(__file__).stem}:prepare"
        self._nursery = Nursery(_path(), 2, base=os.environ, prepare=prepare, arguments=[])

    def start(self, *args: object, ranks: int = 1) -> Job:
        """Starts `neural-prep stats` with these arguments."""
        folder = Path(self._folder.name, str(self._number))
        folder.mkdir()
        self._number += 1
        return Job(self._nursery, ["stats", *map(str, args)], ranks, folder)

    def run(self, *args: object, ranks: int = 1) -> Ended:
        """Runs it to its end."""
        return self.start(*args, ranks=ranks).wait()

    def close(self) -> None:
        """Ends everything."""
        self._nursery.close()
        self._folder.cleanup()


def prepare() -> None:
    """Imports and compiles, in the process that is forked, what every rank needs."""
    importlib.import_module("neural_prep.engine.command")
    importlib.import_module("neural_prep.data.layouts").find_layouts()
    importlib.import_module("neural_prep.stats.accumulate").warm_up()


def run_rank(args: list[str], pid: int) -> int:
    """A rank: says who it is, and runs the command."""
    with os.fdopen(pid, "w") as file:
        file.write(str(os.getpid()))
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    rank_zero_only.rank = int(os.environ.get("RANK", "0"))  # it has looked when it was imported
    return main(args)


def _fork(
    nursery: Nursery,
    args: Sequence[str],
    environment: dict[str, str],
    outputs: Sequence[BinaryIO],
    pid: int,
) -> int:
    handles = [*(file.fileno() for file in outputs), pid]
    spec = RankSpec(
        entry=f"{Path(__file__).stem}:run_rank",
        payload=list(args),
        environment=environment,
        directory=os.getcwd(),
        path=_path(),
        handles=len(handles),
    )
    try:
        return nursery.fork(spec, handles)
    finally:
        os.close(pid)


def _path() -> list[str]:
    """What ranks import from: this file's folder too, which has their entry."""
    return [str(Path(__file__).parent), *sys.path]


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells its ranks; nothing where there is one."""
    environment = clean(os.environ)
    if ranks > 1:
        environment.update(
            TORCHELASTIC_RUN_ID="forks",
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            GROUP_RANK="0",
            WORLD_SIZE=str(ranks),
            LOCAL_WORLD_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    return environment


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
