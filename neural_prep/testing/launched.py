"""A session on a rank that a launcher, such as torchrun, has started.

Rank 0's process leads and reports; its own part of the tests runs in a child of it, so that a test
that kills or hangs rank 0 is reported as any other. The other ranks run theirs themselves.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from neural_prep.testing import examples
from neural_prep.testing.calls import call
from neural_prep.testing.coverage import take_over_coverage
from neural_prep.testing.fixtures import RANK
from neural_prep.testing.launch import Launch, join_ranks
from neural_prep.testing.messages import CutOff, Leave, Left, Renew, Renewed, Settings
from neural_prep.testing.options import Options
from neural_prep.testing.quiet import be_quiet, prefix_output
from neural_prep.testing.rank import Rank
from neural_prep.testing.started import StartedRank, leave_with, run_session
from neural_prep.world import group
from neural_prep.world.watch import Watch, dump_on_request

_LEADER = "leader"  # key in the store: where the leading session is reached


def register(config: pytest.Config, options: Options) -> None:
    """Registers this process' part."""
    if int(os.environ["RANK"]) == 0:
        from neural_prep.testing.launched_leader import LaunchedLeader

        config.pluginmanager.register(LaunchedLeader(config, options), "neural-prep-leader")
        return
    launch = join_ranks(2 * options.timeout + 60)
    if options.output == "all":
        prefix_output(config, launch.rank)
    be_quiet(config, capture=options.output != "all")
    connection = call(launch.store.get(_LEADER).decode(), launch.rank)
    rank = LaunchedRank(config, launch, connection)
    config.pluginmanager.register(rank, RANK)
    examples.configure()
    rank.open_world()


def main(settings: Settings, connection: int, log: int, listening: int) -> int:
    """Runs rank 0's part of the tests, for the nursery of the leading session."""
    os.close(listening)
    dump_on_request(log)
    launch = join_ranks(settings.patience)
    launch.store.set(_LEADER, settings.leader)
    lost = leave_with(os.getppid())
    watch = Watch(Connection(connection), lost, {CutOff: launch.cut_off})
    return run_session(settings, lambda config: FirstRank(config, settings, watch, log, launch))


class _Phases:
    """Lets a test's phases be cut off, and nothing around them."""

    def __init__(self, launch: Launch) -> None:
        self._busy = launch.busy

    def _phase(self) -> Generator[None, object, object]:
        self._busy.set()
        try:
            return (yield)
        finally:
            self._busy.clear()

    pytest_runtest_setup = pytest.hookimpl(wrapper=True, tryfirst=True)(_phase)
    pytest_runtest_call = pytest.hookimpl(wrapper=True, tryfirst=True)(_phase)
    pytest_runtest_teardown = pytest.hookimpl(wrapper=True, tryfirst=True)(_phase)


def _open_world(config: pytest.Config, launch: Launch) -> group.World:
    """Opens the first process group; what is connected before belongs to none."""
    config.pluginmanager.register(_Phases(launch), "neural-prep-phases")
    launch.kept |= group.sockets()
    return launch.open_world(0)


class _Renewable(Rank):
    """A rank that cannot be replaced: it is mended in place."""

    _launch: Launch
    _watch: Watch

    def answer(self, asked: Any, session: pytest.Session) -> None:
        """Opens a new process group."""
        assert isinstance(asked, Renew)
        self.world = self._launch.renew_world(session, asked.generation)
        self._watch.say(Renewed())


class FirstRank(_Renewable, StartedRank):
    """Hooks of rank 0's part, in a child of its process."""

    def __init__(
        self, config: pytest.Config, settings: Settings, watch: Watch, log: int, launch: Launch
    ) -> None:
        super().__init__(config, settings, watch, -1, log)
        self._launch = launch

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Does what the leader sends."""
        super().pytest_runtestloop(session)
        self._watch.say(Left())
        return True

    def pytest_sessionstart(self) -> None:
        """Opens the world."""
        self.world = _open_world(self._config, self._launch)


class LaunchedRank(_Renewable):
    """Hooks of ranks 1 and above."""

    def __init__(self, config: pytest.Config, launch: Launch, connection: Connection) -> None:
        leave = lambda _=None: os._exit(1)  # noqa: E731 - a name for two uses
        self._watch = Watch(connection, leave, {CutOff: launch.cut_off, Leave: leave})
        super().__init__(config, self._watch)
        self._launch = launch
        self._measure = take_over_coverage(config)

    def open_world(self) -> None:
        """Opens the world."""
        self.world = _open_world(self._config, self._launch)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Does what the leader sends, and says when this rank's coverage is written."""
        super().pytest_runtestloop(session)
        if self._measure is not None:
            self._measure.stop()
            self._measure.save()
        self._watch.say(Left())
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Leaves the verdict to rank 0: the launcher would end it while it reports."""
        verdicts = (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        if session.exitstatus in verdicts:
            session.exitstatus = pytest.ExitCode.OK
