"""Static tests on the ranks that torchrun has started: rank 0 leads, and is a rank itself.

What a test on some ranks has broken is mended by a new process group. Ranks that are gone or hang
cannot be replaced here: then the run ends, with the report of what ran and what did not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from _pytest.config import create_terminal_writer
from _pytest.reports import TestReport
from _pytest.runner import runtestprotocol
from _pytest.terminal import TerminalReporter

from neural_prep.testing import examples
from neural_prep.testing.accounts import Account
from neural_prep.testing.coverage import take_over_coverage
from neural_prep.testing.fixtures import RANK
from neural_prep.testing.following import Course
from neural_prep.testing.kinds import Kind
from neural_prep.testing.launch import (
    Launch,
    LineToRanks,
    call_leader,
    join_ranks,
)
from neural_prep.testing.leading import Leading, agree, not_run, seconds, skipped, unknown
from neural_prep.testing.messages import (
    Collected,
    CutOff,
    Done,
    Finish,
    Leave,
    Left,
    Renew,
    Renewed,
    Reported,
    Run,
    Warned,
)
from neural_prep.testing.options import Options
from neural_prep.testing.outputs import Pump
from neural_prep.testing.rank import Rank, prepare, tear_down
from neural_prep.testing.verdict import About, Limits, merge
from neural_prep.world import group
from neural_prep.world.watch import Watch, find_stacks

_COLLECTING = 300.0  # seconds until all ranks must have collected
_RENEWING = 30.0  # seconds until all must have a new process group
_RETURNING = 3.0  # seconds until a rank whose test is cut off must be back
_POLL = 0.2  # seconds between looks for a signal


def register(config: pytest.Config, options: Options) -> None:
    """Meets the other ranks and registers this one's part."""
    launch = join_ranks(2 * options.timeout + 60)
    rank: LaunchedRank | LocalRank
    if options.output == "all":
        _prefix_output(config, launch.rank)
    if launch.rank:
        _be_quiet(config, capture=options.output != "all")
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
        self.world = _renew(self._launch, session, asked.generation)
        self._watch.say(Renewed())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Leaves the verdict to rank 0: the launcher would end it while it reports."""
        verdicts = (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        if session.exitstatus in verdicts:
            session.exitstatus = pytest.ExitCode.OK


class LocalRank:
    """Rank 0 as a rank, for fixtures."""

    def __init__(self, config: pytest.Config, launch: Launch, connection: Connection) -> None:
        self.world: group.World | None = None
        self.folder = ""
        self._config = config
        self._launch = launch
        self._connection = connection

    def run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        """Runs a test's phases and says what comes of it, to the leader in this process."""
        prepare(item)
        with self._reports_intercepted():
            runtestprotocol(item, nextitem=following, log=True)
        assert self.world is not None
        self._connection.send(Done(group.position(), group.is_open(self.world)))

    @contextlib.contextmanager
    def _reports_intercepted(self) -> Iterator[None]:
        """Keeps this rank's own reports from the session's, which are those of all ranks."""
        hooks: Any = self._config.hook
        original = hooks.pytest_runtest_logreport
        hooks.pytest_runtest_logreport = _Interceptor(self._config, self._connection)
        try:
            yield
        finally:
            hooks.pytest_runtest_logreport = original


class _Interceptor:
    """Stands in for a hook while a test runs: sends reports to the leader."""

    _hookimpls: Sequence[Any] = ()  # pluggy looks here for plugins to leave out

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def __call__(self, report: TestReport) -> None:
        hook = self._config.hook.pytest_report_to_serializable
        self._connection.send(Reported(hook(config=self._config, report=report)))


class LaunchedLeader(Leading):
    """Hooks of rank 0's session."""

    def __init__(self, config: pytest.Config, options: Options, launch: Launch) -> None:
        super().__init__(config, options)
        self._launch = launch
        self._line = LineToRanks(launch)
        self.local = LocalRank(config, launch, self._line.own)
        self._every: list[Collected] = []
        self._generation = 0
        self._number = 0
        self._over = ""  # why no more tests can run
        self._left: list[str] = []  # tests that did not run
        self._later: list[Warned] = []
        self._terminated = False
        signal.signal(signal.SIGTERM, self._note_signal)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Waits for what all ranks have collected; at the end, sends them home."""
        self._every = [Collected(os.getpid(), tuple(item.nodeid for item in session.items), ())]
        self._every += self._await(Collected, _COLLECTING)
        try:
            if self._over:
                self._left = [item.nodeid for item in session.items]
                raise session.Failed(self._over)
            result = yield
            self._tell_strangers(self._every, session)
            return result
        finally:
            self._line.send(Leave() if self._over else Finish())
            for warned in self._later:
                self._warn(warned)
            if not self._over:
                group.close_world()
                self._await(Left, _RETURNING)

    def pytest_warning_recorded(self, warning_message: Any, nodeid: str) -> None:
        """Remembers this rank's own warnings, so that other ranks' come once."""
        self._remember(warning_message, nodeid)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Says why the run ended, and which tests did not run."""
        if self._left:
            terminalreporter.section("ranks lost", red=True, bold=True)
            terminalreporter.line(
                f"{self._over}; ranks that a launcher has started cannot be replaced, so "
                f"{len(self._left)} test{'s' * (len(self._left) > 1)} did not run:"
            )
            for nodeid in self._left:
                terminalreporter.line(f"  {nodeid}")

    def _run(
        self, item: pytest.Item, kind: Kind, nextitem: pytest.Item | None
    ) -> Sequence[TestReport]:
        about = About(item.nodeid, item.location, dict.fromkeys(item.keywords, 1))
        limits = Limits(seconds(item, kind, self._options.timeout), self._options.grace)
        reason = kind.reason_to_skip(self._launch.size)
        if reason is not None:
            return skipped(about, reason)
        knowing = [rank for rank, one in enumerate(self._every) if item.nodeid in one.ids]
        if len(knowing) < self._launch.size:
            return not_run(about, unknown(self._every, knowing))
        accounts = self._run_on_all(item, nextitem, limits, about)
        if not self._over and not agree(accounts):
            self._renew(item.session)
        if self._over:
            self._end(item)
        return merge(about, accounts, limits)

    def _run_on_all(
        self, item: pytest.Item, nextitem: pytest.Item | None, limits: Limits, about: About
    ) -> list[Account]:
        """Runs a test here and elsewhere, while a thread follows it on all ranks."""
        self._number += 1
        self.local.folder = str(self._folder / f"{self._number}")
        following = nextitem.nodeid if nextitem is not None else None
        course = Course(self._config, self._line, self._launch.size, warn=self._later.append)
        watcher = threading.Thread(
            target=self._follow, args=(course, limits, item, about), name="leader", daemon=True
        )
        self._line.send(Run(item.nodeid, following, self.local.folder))
        watcher.start()
        self.local.run(item, nextitem)
        watcher.join()
        return course.accounts

    def _follow(self, course: Course, limits: Limits, item: pytest.Item, about: About) -> None:
        """Follows a test on all ranks, and cuts off those that don't come to its end."""
        course.follow(limits, stopped=lambda: self._terminated, poll=_POLL)
        course.ask_where(own=find_stacks)
        gone = sorted(
            (one for one in course.accounts if one.gone), key=lambda one: one.failed_at or 0
        )
        if gone:
            self._over = f"{gone[0].fate()} in {item.nodeid}"
        elif course.left and not course.in_trouble:
            self._over = f"{item.nodeid} hung"
        elif self._terminated:
            self._over = "stopped by SIGTERM"
        if not course.left:
            return
        self._line.send(CutOff())
        self._launch.cut_off()
        rest = Course(self._config, self._line, self._launch.size, warn=self._later.append)
        rest.expect([account.rank for account in course.left])
        rest.follow(Limits(_RETURNING, _RETURNING))
        for account in course.left:
            account.later = rest.accounts[account.rank].sections
        if rest.left:
            self._over = self._over or f"{rest.left[0].fate()} after {item.nodeid}"
        if 0 in [account.rank for account in rest.left]:
            self._report_without_main_thread(merge(about, course.accounts, limits), item)

    def _renew(self, session: pytest.Session) -> None:
        """Has all ranks tear down and open a new process group."""
        self._generation += 1
        self._line.send(Renew(self._generation))
        self.local.world = _renew(self._launch, session, self._generation)
        if len(self._await(Renewed, _RENEWING)) < self._launch.size - 1:
            self._over = self._over or "a rank did not come to a new process group"

    def _await(self, kind: type, patience: float) -> list[Any]:
        """What each of the other ranks says, of this kind, in the order of ranks."""
        deadline = time.monotonic() + patience
        found: dict[int, Any] = {}
        while len(found) < self._launch.size - 1:
            heard = self._line.listen(deadline - time.monotonic())
            for event in heard:
                content = getattr(event, "content", None)
                if isinstance(content, kind):
                    found[event.rank] = content
                elif isinstance(content, Warned):
                    self._later.append(content)
                elif content is None:
                    self._over = f"rank {event.rank} is gone"
            if not heard or self._over:
                break
        return [found[rank] for rank in sorted(found)]

    def _end(self, item: pytest.Item) -> None:
        """Runs no further test."""
        items = item.session.items
        self._left = [one.nodeid for one in items[items.index(item) + 1 :]]
        item.session.shouldfail = self._over

    def _report_without_main_thread(self, reports: Sequence[TestReport], item: pytest.Item) -> None:
        """Reports from this thread and ends, as nothing brings the main one back."""
        self._end(item)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        session, config = item.session, item.config
        config.hook.pytest_sessionfinish(session=session, exitstatus=pytest.ExitCode.TESTS_FAILED)
        config._ensure_unconfigure()
        os._exit(1)

    def _note_signal(self, signum: int, frame: FrameType | None) -> None:
        """A launcher ends all ranks when one is gone: there is time to report."""
        self._terminated = True

    @property
    def _folder(self) -> Path:
        return Path(self._config._tmp_path_factory.getbasetemp()) / "shared"  # type: ignore[attr-defined]


def _renew(launch: Launch, session: pytest.Session, generation: int) -> group.World:
    """Tears down all fixtures, whatever they say, and opens a new process group."""
    with contextlib.suppress(BaseException):
        tear_down(session)
    group.close_world()
    return launch.open_world(generation)


def _be_quiet(config: pytest.Config, *, capture: bool) -> None:
    """Has a rank above 0 report nothing; what it captures goes into rank 0's report."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        reporter._tw = create_terminal_writer(config, nowhere)
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    if capture and manager is not None and manager._method == "no":
        _capture_by(manager, "fd")


def _prefix_output(config: pytest.Config, rank: int) -> None:
    """Writes what tests write at once, each line with its rank; the report stays as it is."""
    terminal = os.fdopen(os.dup(1), "w")
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter._tw = create_terminal_writer(config, terminal)
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    if manager is not None:
        _capture_by(manager, "no")
    pump = Pump(rank, terminal.fileno())
    streams = (1, 2)
    for stream in streams:
        os.dup2(pump.writing, stream)

    def restore() -> None:
        for stream in streams:
            os.dup2(terminal.fileno(), stream)
        pump.close()

    config.add_cleanup(restore)


def _capture_by(manager: Any, method: str) -> None:
    """Begins to capture in another way than pytest was started with."""
    manager.stop_global_capturing()
    manager._method = method
    manager.start_global_capturing()
    manager.suspend_global_capture()
