"""Rank 0's session under a launcher: it leads the ranks, its own part of them in a child.

What a test on some ranks has broken is mended by a new process group. Ranks that are gone or hang
cannot be replaced here: then the run ends, with the report of what ran and what did not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from _pytest.reports import TestReport
from _pytest.terminal import TerminalReporter

from neural_prep.testing.accounts import Account
from neural_prep.testing.calls import Reception
from neural_prep.testing.coverage import coverage_settings
from neural_prep.testing.following import Course
from neural_prep.testing.kinds import STATIC, Kind
from neural_prep.testing.leading import Leading, agree, limits_of, not_run, skipped, unknown
from neural_prep.testing.messages import (
    Captures,
    Collected,
    CutOff,
    Exited,
    Finish,
    Leave,
    Left,
    Renew,
    Renewed,
    Run,
    Settings,
    Warned,
)
from neural_prep.testing.options import Options
from neural_prep.testing.outputs import Output
from neural_prep.testing.preload import start_nursery
from neural_prep.testing.problems import About, Limits
from neural_prep.testing.verdict import merge
from neural_prep.testing.worlds import python_path, rank_options
from neural_prep.world.ranks import Gone, Ranks, WorldError

_ENTRY = "neural_prep.testing.launched:main"
_MEETING = 300.0  # seconds until all ranks must have met, and have collected
_RENEWING = 30.0  # seconds until all must have a new process group
_RETURNING = 3.0  # seconds until a rank whose test is cut off must be back
_LEAVING = 5.0  # seconds that ranks have to tear down and end
_POLL = 0.2  # seconds between looks for a signal


class LaunchedLeader(Leading):
    """Hooks of rank 0's session."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        """Starts rank 0's part and waits until the other ranks have called."""
        super().__init__(config, options)
        self._size = int(os.environ["WORLD_SIZE"])
        self._path = python_path()
        self._folder: Path = config._tmp_path_factory.getbasetemp() / "world"  # type: ignore[attr-defined]
        self._folder.mkdir()
        self._every: list[Collected] = []
        self._generation = 0
        self._number = 0
        self._over = ""  # why no more tests can run
        self._left: list[str] = []  # tests that did not run
        self._terminated: float | None = None  # when SIGTERM came
        self._output = Output(0, options.output)
        self._nursery = start_nursery(config, self._path, self._size)
        signal.signal(signal.SIGTERM, self._note_signal)
        reception = Reception(os.environ)
        try:
            self._ranks = self._start(reception.address)
            self._receive(reception)
        except BaseException:
            self._nursery.close()
            raise
        finally:
            reception.close()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Waits for what all ranks have collected; at the end, sends them home."""
        gently = False
        try:
            if len(session.items) or not session.testsfailed:
                self._every = self._await(Collected, _MEETING)
            if self._over:
                self._left = [item.nodeid for item in session.items]
                raise session.Failed(self._over)
            result = yield
            gently = True
            self._tell_strangers(self._every, session)
            return result
        except (pytest.Session.Failed, pytest.Session.Interrupted):
            gently = True
            raise
        finally:
            self._end_ranks(gently=gently and not self._over)

    def pytest_unconfigure(self) -> None:
        """Ends whatever an error has left."""
        self._nursery.close()
        self._output.close()

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Says why the run ended, and which tests did not run."""
        if not self._over:
            return
        count = len(self._left)
        terminalreporter.section("ranks lost", red=True, bold=True)
        terminalreporter.line(
            f"{self._over}; ranks that a launcher has started cannot be replaced, so "
            f"{count} test{'s' * (count != 1)} did not run{':' * bool(count)}"
        )
        for nodeid in self._left:
            terminalreporter.line(f"  {nodeid}")

    def _start(self, address: str) -> Ranks:
        """Starts rank 0's part, with this process' place among the launcher's."""
        options = self._options
        own = {"basetemp": str(self._folder / "rank0")}
        if options.output == "all":
            own["capture"] = "no"
        settings = Settings(
            rank=0,
            size=self._size,
            options={**rank_options(self._config), **own},
            args=list(self._config.args),
            files=None,
            kind=STATIC,
            shared_temp=str(self._folder / "shared"),
            patience=2 * options.timeout + 60,
            process_group=True,
            coverage=coverage_settings(self._config),
            leader=address,
        )
        ranks = Ranks(
            self._nursery,
            1,
            entry=_ENTRY,
            payload=lambda rank: settings,
            path=self._path,
            directory=str(self._config.invocation_params.dir),
            environment=lambda rank, port: dict(os.environ),
            outputs=lambda rank: self._output.handles,
            logs=lambda rank: self._output.log,
        )
        self._output.started()
        return ranks

    def _receive(self, reception: Reception) -> None:
        """Takes in the other ranks."""
        deadline = time.monotonic() + _MEETING
        called: dict[int, Any] = {}
        while len(called) < self._size - 1:
            found = reception.accept(self._ranks.connections, deadline - time.monotonic())
            if found is not None:
                called[found[0]] = found[1]
                continue
            heard = self._ranks.listen(0.0)
            if any(isinstance(event, Gone) for event in heard) or time.monotonic() > deadline:
                said = self._output.unread().strip()
                raise pytest.UsageError(f"the ranks did not meet; rank 0 wrote: {said}")
            self._keep_captures(heard)
        for rank in sorted(called):
            self._ranks.join(called[rank])

    def _keep_captures(self, heard: Sequence[Any]) -> None:
        for event in heard:
            if isinstance(getattr(event, "content", None), Captures):
                self._output.keep(event.files)

    def _run(
        self, item: pytest.Item, kind: Kind, nextitem: pytest.Item | None
    ) -> Sequence[TestReport]:
        about = About(item.nodeid, item.location, dict.fromkeys(item.keywords, 1))
        limits = limits_of(item, kind, self._options)
        reason = kind.reason_to_skip(self._size)
        if reason is not None:
            return skipped(about, reason)
        knowing = [rank for rank, one in enumerate(self._every) if item.nodeid in one.ids]
        if len(knowing) < self._size:
            return not_run(about, unknown(self._every, knowing))
        self._number += 1
        folder = self._folder / "shared" / f"{self._number}"
        following = nextitem.nodeid if nextitem is not None else None
        self._ranks.send(Run(item.nodeid, following, str(folder)))
        accounts = self._follow(limits, item)
        if not self._over and not agree(accounts):
            self._renew()
        if self._over:
            items = item.session.items
            self._left = [one.nodeid for one in items[items.index(item) + 1 :]]
            item.session.shouldfail = self._over
        if self._over.startswith("stopped"):
            return not_run(about, self._over)
        return merge(about, accounts, limits)

    def _follow(self, limits: Limits, item: pytest.Item) -> list[Account]:
        """Follows a test on all ranks, and cuts off those that don't come to its end."""
        course = self._course()
        course.follow(limits, stopped=lambda: self._terminated is not None, poll=_POLL)
        course.ask_where()
        gone = [account for account in course.accounts if account.gone]
        gone.sort(key=lambda account: account.failed_at or 0)
        if self._terminated is not None and all(
            account.gone_at > self._terminated for account in gone
        ):
            self._over = "stopped by SIGTERM"
        elif gone:
            self._over = f"{gone[0].fate()} in {item.nodeid}"
        elif course.left and not course.in_trouble:
            self._over = f"{item.nodeid} hung"
        if course.left:
            self._cut_off(course, item)
        return course.accounts

    def _cut_off(self, course: Course, item: pytest.Item) -> None:
        """Brings ranks back from a test that they would not end."""
        self._ranks.send(CutOff())
        rest = self._course()
        rest.expect([account.rank for account in course.left])
        rest.follow(Limits(_RETURNING, _RETURNING))
        for account in course.left:
            account.later = rest.accounts[account.rank].sections
        if rest.left:
            self._over = self._over or f"{rest.left[0].fate()} after {item.nodeid}"

    def _course(self) -> Course:
        return Course(
            self._config,
            self._ranks,
            self._size,
            warn=self._warn,
            output=lambda rank: "" if rank else self._output.unread(),
        )

    def _renew(self) -> None:
        """Has all ranks tear down and open a new process group."""
        self._generation += 1
        self._ranks.send(Renew(self._generation))
        if len(self._await(Renewed, _RENEWING)) < self._size:
            self._over = self._over or "a rank did not come to a new process group"

    def _await(self, kind: type, patience: float) -> list[Any]:
        """What each rank says, of this kind, in the order of ranks."""
        deadline = time.monotonic() + patience
        found: dict[int, Any] = {}
        while len(found) < self._size and not self._over:
            heard = self._ranks.listen(deadline - time.monotonic())
            self._keep_captures(heard)
            for event in heard:
                content = getattr(event, "content", None)
                if isinstance(event, Gone):
                    self._over = f"rank {event.rank} is gone"
                elif isinstance(content, kind):
                    found[event.rank] = content
                elif isinstance(content, Warned):
                    self._warn(content)
                elif isinstance(content, Exited):
                    raise pytest.exit.Exception(content.message, content.status)
            if not heard:
                break
        return [found[rank] for rank in sorted(found)]

    def _end_ranks(self, *, gently: bool) -> None:
        """Sends the ranks home, with time to tear down or at once."""
        self._ranks.send(Finish() if gently else Leave())
        with contextlib.suppress(WorldError):
            if gently:
                self._await(Left, _LEAVING)
            self._ranks.end(_LEAVING if gently else 0.0)

    def _note_signal(self, signum: int, frame: FrameType | None) -> None:
        """A launcher ends all ranks when one is gone: there is time to report."""
        self._terminated = self._terminated or time.monotonic()
