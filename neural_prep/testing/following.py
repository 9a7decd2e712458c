"""Follows one test on all ranks to its end, and gives up ranks that don't come to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import pytest

from neural_prep.testing.accounts import Account
from neural_prep.testing.messages import Done, Exited, Reported, Warned
from neural_prep.testing.problems import Limits
from neural_prep.world.ranks import Gone, Message
from neural_prep.world.watch import Stacks, TellStacks

_ANSWER = 1.0  # seconds until a rank must have told its stacks


class Line(Protocol):
    """The leader's line to all ranks."""

    def send(self, content: Any, ranks: Sequence[int] | None = None) -> None:
        """Sends the same to all ranks, or to these."""

    def listen(self, timeout: float) -> list[Message | Gone]:
        """Waits until something is said or a rank ends; empty after `timeout` seconds."""


class Course:
    """One test's course on all ranks.

    Attributes:
        accounts: Every rank's account of it.
        in_trouble: Whether a rank has failed, skipped or is gone.
    """

    def __init__(
        self,
        config: pytest.Config,
        line: Line,
        size: int,
        *,
        warn: Callable[[Warned], None],
        output: Callable[[int], str] = lambda rank: "",
    ) -> None:
        """Prepares for the test's start.

        Args:
            config: Knows how reports are serialised.
            line: To the ranks.
            size: Number of ranks.
            warn: Called with the ranks' warnings.
            output: What a rank has written in its running phase.
        """
        self.accounts = [Account(rank) for rank in range(size)]
        self.in_trouble = False
        self._config = config
        self._line = line
        self._warn = warn
        self._output = output
        self._events = 0
        self._begun = time.monotonic()

    @property
    def left(self) -> list[Account]:
        """The ranks that are still in the test."""
        return [account for account in self.accounts if not account.done and not account.gone]

    def follow(
        self,
        limits: Limits,
        stopped: Callable[[], bool] = lambda: False,
        poll: float = math.inf,
    ) -> None:
        """Listens until every rank has finished, or time is up.

        Args:
            limits: How long to wait.
            stopped: Whether somebody wants the test to end as if a rank had failed.
            poll: Seconds between two looks at that.
        """
        deadline = self._begun + limits.timeout
        while self.left and time.monotonic() < deadline:
            before = self.in_trouble
            self.hear(min(deadline - time.monotonic(), poll))
            self.in_trouble = self.in_trouble or stopped()
            if self.in_trouble and not before:
                deadline = min(deadline, time.monotonic() + limits.grace)
        seconds = time.monotonic() - self._begun
        for account in self.accounts:
            if not account.done:
                account.seconds = seconds

    def expect(self, ranks: Iterable[int]) -> None:
        """Waits for these ranks alone."""
        for account in self.accounts:
            account.done = account.rank not in ranks

    def ask_where(self, own: Callable[[], Stacks] | None = None) -> None:
        """Finds out where the ranks are that have not come to the test's end.

        Args:
            own: Finds where rank 0 is, if that is this process.
        """
        if own is not None and not self.accounts[0].done:
            self.accounts[0].stacks = own()
        asked = self.left
        self._line.send(TellStacks(), [account.rank for account in asked])
        deadline = time.monotonic() + _ANSWER
        while any(one.stacks is None and not one.gone for one in asked):
            if not self.hear(deadline - time.monotonic()):
                break
        for account in asked:
            account.output = account.output or self._output(account.rank)

    def hear(self, timeout: float) -> bool:
        """Takes in what ranks say; False when nothing comes for `timeout` seconds."""
        heard = self._line.listen(timeout)
        for event in heard:
            self._events += 1
            self._take(self.accounts[event.rank], event)
        return bool(heard)

    def _take(self, account: Account, event: Message | Gone) -> None:
        if isinstance(event, Gone):
            if not account.done:  # else it will be missed by the next test
                account.gone, account.gone_at = True, time.monotonic()
                account.status = event.status
                account.output = self._output(account.rank)
                self._note_trouble(account)
            return
        content = event.content
        if isinstance(content, Warned):
            self._warn(content)
        elif isinstance(content, Exited):
            raise pytest.exit.Exception(content.message, content.status)
        elif isinstance(content, Stacks):
            account.stacks = content
        elif isinstance(content, Done):
            if content.report is not None:
                self._take_report(account, content.report)
            account.done, account.alive = True, content.alive
            account.position, account.messages = content.position, content.messages
        elif isinstance(content, Reported):
            self._take_report(account, content.data)

    def _take_report(self, account: Account, data: dict[str, Any]) -> None:
        hook = self._config.hook.pytest_report_from_serializable
        report = hook(config=self._config, data=data)
        if hasattr(report, "context"):
            account.subtests.append(report)
            return
        account.phases[report.when] = report
        if report.failed or report.skipped:
            self._note_trouble(account)

    def _note_trouble(self, account: Account) -> None:
        self.in_trouble = True
        account.failed_at = account.failed_at or self._events
