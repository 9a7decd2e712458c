"""A rank that the command has started: it runs the cases that it is sent."""

from __future__ import annotations

import importlib
import os
import signal
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

from neural_prep.checks.cases import Case
from neural_prep.checks.check import run_case
from neural_prep.world import group
from neural_prep.world.watch import Watch, dump_on_request


@dataclass(frozen=True, slots=True)
class Settings:
    """What a rank is told when it starts.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        patience: Seconds that a collective may take.
    """

    rank: int
    size: int
    patience: float


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank waits for cases."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Asks a rank to end."""


def prepare() -> None:
    """Imports what ranks have in common before they are forked: this module, and one of torch.

    Torch itself imports that for the first operation of a ShardTensor, which takes seconds.
    """
    importlib.import_module("torch.distributed.tensor")


def main(settings: Settings, connection: int, log: int, listening: int = -1) -> int:
    """Runs cases until there are no more, for the nursery.

    Args:
        settings: What the command wants.
        connection: File number of the connection to it.
        log: File number of the rank's log, for stacks.
        listening: File number of the store's listening socket, in rank 0.
    """
    dump_on_request(log)
    watch = Watch(Connection(connection), _leave)
    group.use_threads(int(os.environ["OMP_NUM_THREADS"]))
    patience = timedelta(seconds=settings.patience)
    place = (settings.rank, settings.size)
    store = group.open_store(*place, int(os.environ["MASTER_PORT"]), listening, patience)
    world = group.open_world(store, *place, name="world", patience=patience)
    watch.say(Ready())
    while isinstance(asked := watch.work(), Case):
        watch.say(run_case(asked, world))
    assert isinstance(asked, Finish)
    group.close_world()
    return 0


def _leave() -> None:
    """Ends this rank, and what it has started, with the command."""
    os.killpg(0, signal.SIGKILL)
