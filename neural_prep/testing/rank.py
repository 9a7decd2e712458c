"""A rank's side: it runs the tests that it is sent, and tells of every phase."""

from __future__ import annotations

import os
import pickle
import warnings
from typing import Any, Protocol

import pytest
from _pytest.runner import runtestprotocol

from neural_prep.testing import examples
from neural_prep.testing.kinds import seed_of
from neural_prep.testing.messages import Collected, Done, Exited, Finish, Reported, Run, Warned
from neural_prep.world import group


class LineToLeader(Protocol):
    """A rank's line to the leading session."""

    def say(self, content: Any) -> None:
        """Sends a message."""

    def work(self) -> Any:
        """Waits for the next message."""


class Rank:
    """Hooks of a session that runs what a leader sends.

    Attributes:
        world: All ranks; None where the tests make their own process group.
        folder: The running test's `shared_tmp_path`.
    """

    def __init__(self, config: pytest.Config, leader: LineToLeader) -> None:
        self.world: group.World | None = None
        self.folder = ""
        self._config = config
        self._leader = leader
        self._errors: list[str] = []
        self._last: dict[str, Any] | None = None
        self._skipped: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remembers errors in collecting, and files that are skipped."""
        if report.failed:
            self._errors.append(f"{report.nodeid}: {report.longreprtext}")
        elif report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self._skipped.append(f"{report.nodeid}: {reason}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Does what the leader sends, until it has had enough."""
        items = {item.nodeid: item for item in session.items}
        told = (tuple(items), tuple(self._errors), tuple(self._skipped))
        self._leader.say(Collected(os.getpid(), *told))
        while not isinstance(asked := self._leader.work(), Finish):
            if isinstance(asked, Run):
                self.folder = asked.folder
                item = items[asked.nodeid]
                following = items.get(asked.following) if asked.following else None
                try:
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                except pytest.exit.Exception as exit_:
                    self._leader.say(Exited(exit_.msg, exit_.returncode))
                    raise
                self._leader.say(self.done())
            else:
                self.answer(asked, session)
        tear_down(session)
        group.close_world()
        return True

    def answer(self, asked: Any, session: pytest.Session) -> None:
        """Does what is asked besides tests: nothing, in a rank that can be replaced."""
        raise TypeError(f"a rank cannot {asked}")

    def done(self) -> Done:
        """Where this rank stands after a test."""
        is_open = self.world is None or group.is_open(self.world)
        last, self._last = self._last, None
        return Done(group.position(), group.messages(), is_open, last)

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Runs a test's phases as pytest's own hook would, whatever came of those before."""
        prepare(item)
        # Skipped tests are not sent: one of them may have been the last of the module before.
        item.session._setupstate.teardown_exact(item)
        item.session.shouldfail = item.session.shouldstop = False
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runtestprotocol(item, nextitem=nextitem, log=True)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sends a phase's report."""
        hook = self._config.hook.pytest_report_to_serializable
        data = hook(config=self._config, report=report)
        if report.when == "teardown" and report.passed:
            self._last = data  # goes with the word that the test is done
        else:
            self._leader.say(Reported(data))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Sends a warning."""
        message = _portable(warning_message)
        where = (warning_message.filename, warning_message.lineno)
        self._leader.say(Warned(message, *where, when, nodeid, location))

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self) -> bool:
        """Leaves time limits to the leader: a signal does not end a blocked collective."""
        return True


def prepare(item: pytest.Item) -> None:
    """Makes what a test draws the same on all ranks."""
    group.seed_generators(seed_of(item.nodeid))
    examples.prepare(item)


def tear_down(session: pytest.Session) -> None:
    """Tears down all fixtures that are set up."""
    session._setupstate.teardown_exact(None)


def _portable(record: warnings.WarningMessage) -> Warning:
    """A warning's message in a form that another process can read."""
    message = record.message
    if isinstance(message, str):
        message = record.category(message)
    try:
        pickle.loads(pickle.dumps(message))
    except Exception:
        return UserWarning(f"{record.category.__name__}: {message}")
    return message
