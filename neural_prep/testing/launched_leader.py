"""Rank 0's session under a launcher: it leads the ranks, and is one of them.

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
from _pytest.reports import TestReport
from _pytest.runner import runtestprotocol
from _pytest.terminal import TerminalReporter

from neural_prep.testing.accounts import Account
from neural_prep.testing.following import Course
from neural_prep.testing.kinds import Kind
from neural_prep.testing.launch import (
    Launch,
    LineToRanks,
    renew,
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
from neural_prep.testing.problems import About, Limits
from neural_prep.testing.rank import prepare
from neural_prep.testing.verdict import merge
from neural_prep.world import group
from neural_prep.world.watch import find_stacks

_COLLECTING = 300.0  # seconds until all ranks must have collected
_RENEWING = 30.0  # seconds until all must have a new process group
_RETURNING = 3.0  # seconds until a rank whose test is cut off must be back
_POLL = 0.2  # seconds between looks for a signal


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
        self.local.world = renew(self._launch, session, self._generation)
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
