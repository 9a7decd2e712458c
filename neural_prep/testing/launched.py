"""A session on a rank that torchrun has started: it meets the others and takes its part."""

from __future__ import annotations

import os
from collections.abc import Generator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from neural_prep.testing import examples
from neural_prep.testing.coverage import take_over_coverage
from neural_prep.testing.fixtures import RANK
from neural_prep.testing.launch import (
    Launch,
    call_leader,
    join_ranks,
    renew,
)
from neural_prep.testing.launched_leader import LaunchedLeader, LocalRank
from neural_prep.testing.messages import (
    CutOff,
    Leave,
    Left,
    Renew,
    Renewed,
)
from neural_prep.testing.options import Options
from neural_prep.testing.quiet import be_quiet, prefix_output
from neural_prep.testing.rank import Rank
from neural_prep.world import group
from neural_prep.world.watch import Watch


def register(config: pytest.Config, options: Options) -> None:
    """Meets the other ranks and registers this one's part."""
    launch = join_ranks(2 * options.timeout + 60)
    rank: LaunchedRank | LocalRank
    if options.output == "all":
        prefix_output(config, launch.rank)
    if launch.rank:
        be_quiet(config, capture=options.output != "all")
        rank = LaunchedRank(config, launch, call_leader(launch))
    else:
        leader = LaunchedLeader(config, options, launch)
        rank = leader.local
        config.pluginmanager.register(leader, "neural-prep-leader")
    config.pluginmanager.register(rank, RANK)
    config.pluginmanager.register(_Phases(launch), "neural-prep-phases")
    launch.kept |= group.sockets()
    rank.world = launch.open_world(0)
    examples.configure()


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


class LaunchedRank(Rank):
    """Hooks of ranks 1 and above."""

    def __init__(self, config: pytest.Config, launch: Launch, connection: Connection) -> None:
        leave = lambda _=None: os._exit(1)  # noqa: E731 - a name for two uses
        self._watch = Watch(connection, leave, {CutOff: launch.cut_off, Leave: leave})
        super().__init__(config, self._watch)
        self._launch = launch
        self._measure = take_over_coverage(config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Does what the leader sends, and says when this rank's coverage is written."""
        super().pytest_runtestloop(session)
        if self._measure is not None:
            self._measure.stop()
            self._measure.save()
        self._watch.say(Left())
        return True

    def answer(self, asked: Any, session: pytest.Session) -> None:
        """Opens a new process group."""
        assert isinstance(asked, Renew)
        self.world = renew(self._launch, session, asked.generation)
        self._watch.say(Renewed())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Leaves the verdict to rank 0: the launcher would end it while it reports."""
        verdicts = (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        if session.exitstatus in verdicts:
            session.exitstatus = pytest.ExitCode.OK
