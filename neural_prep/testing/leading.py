"""What every session that leads ranks does: it knows what was collected, and speaks for all."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from _pytest.reports import CollectReport, TestReport

from neural_prep.testing.accounts import Account
from neural_prep.testing.kinds import DYNAMIC, STATIC, Kind, kind_of
from neural_prep.testing.messages import Collected, Warned
from neural_prep.testing.options import LONGEST, Options
from neural_prep.testing.problems import About, Limits, differing_positions, message


class Leading:
    """Hooks of a session that leads ranks, whoever has started them."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._collected: dict[str, set[str]] = {STATIC: set(), DYNAMIC: set()}
        self._told: set[str] = set()  # tests that only ranks collected
        self._warned: set[tuple[Any, ...]] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Remembers what was collected, left out or not, with the markers that others add."""
        collected = list(items)
        yield
        for item in collected:
            kind = kind_of(item)
            if kind is not None:
                self._collected[kind.name].add(item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Runs a distributed test on its ranks."""
        kind = self._distributed(item)
        if kind is None:
            if nextitem is None or self._distributed(nextitem) is None:
                return None
            # What this process has set up is torn down now: the rest runs elsewhere.
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            return True
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._run(item, kind, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """Keeps pytest-timeout from tests that run elsewhere; their time limit is the leader's."""
        return None if self._distributed(item) is None else True

    def _distributed(self, item: pytest.Item) -> Kind | None:
        """The kind of a test that ranks run; None for those of this process."""
        kind = kind_of(item)
        return None if kind and kind.is_static and self._options.in_process else kind

    def _run(
        self, item: pytest.Item, kind: Kind, nextitem: pytest.Item | None
    ) -> Sequence[TestReport]:
        """The reports of one distributed test."""
        raise NotImplementedError

    def _tell_strangers(self, every: Sequence[Collected], session: pytest.Session) -> None:
        """Reports tests that ranks have collected and this session has not, once each."""
        knows_less = getattr(self._config.option, "lf", False)  # ranks collect what passed, too
        for rank, collected in enumerate(every):
            strange = set(collected.ids) - self._collected[STATIC] - self._told
            strange = set() if knows_less else strange
            errors = [text for text in collected.errors if text not in self._told]
            self._told |= strange | set(errors)
            said = [
                f"{nodeid}: collected on rank {rank}, not by the session that leads the ranks; "
                "tests must be the same in every process, so don't make them from a set, random "
                "numbers or the rank"
                for nodeid in sorted(strange)
            ]
            said += [f"rank {rank} could not collect {text}" for text in errors]
            for text in said:
                report = CollectReport(text.split(":")[0], "failed", text, [])
                session.config.hook.pytest_collectreport(report=report)

    def _warn(self, warned: Warned) -> None:
        """Records a rank's warning, once for all ranks."""
        kind = type(warned.message)
        record = warnings.WarningMessage(warned.message, kind, warned.filename, warned.lineno)
        if self._remember(record, warned.nodeid):
            self._config.hook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": record,
                    "when": warned.when,
                    "nodeid": warned.nodeid,
                    "location": warned.location,
                }
            )

    def _remember(self, record: warnings.WarningMessage, nodeid: str) -> bool:
        """Whether this is the first such warning of any rank."""
        key = (record.category, str(record.message), record.filename, record.lineno, nodeid)
        is_new = key not in self._warned
        self._warned.add(key)
        return is_new


def agree(accounts: Sequence[Account]) -> bool:
    """Whether all ranks may go on together."""
    if not all(account.done and account.alive for account in accounts):
        return False
    if any(account.has_failed for account in accounts):
        return False
    outcomes = {tuple(report.outcome for report in account.phases.values()) for account in accounts}
    return len(outcomes) == 1 and differing_positions(accounts) is None


def limits_of(item: pytest.Item, kind: Kind, options: Options) -> Limits:
    """A test's time limits: its marker's, else those of pytest-timeout's marker."""
    seconds = kind.options.get("timeout")
    mark = item.get_closest_marker("timeout")
    if seconds is None and mark is not None:
        seconds = mark.args[0] if mark.args else mark.kwargs.get("timeout")
    return Limits(min(float(seconds or options.timeout), LONGEST), options.grace)


def skipped(about: About, reason: str) -> list[TestReport]:
    """The reports of a test that these ranks cannot run."""
    path, line, _ = about.location
    longrepr = (os.path.abspath(path), (line or 0) + 1, f"Skipped: {reason}")
    return _ended_in_setup(about, "skipped", longrepr)


def not_run(about: About, text: str) -> list[TestReport]:
    """The reports of a test that could not be run: an error, as in a fixture's set-up."""
    headline = text.splitlines()[0]
    return _ended_in_setup(about, "failed", message(text, about.location, headline))


def _ended_in_setup(about: About, outcome: Any, longrepr: Any) -> list[TestReport]:
    nodeid, location, keywords = about.nodeid, about.location, about.keywords
    return [
        TestReport(nodeid, location, keywords, outcome, longrepr, "setup"),
        TestReport(nodeid, location, keywords, "passed", None, "teardown"),
    ]


def unknown(every: Sequence[Collected], knowing: Sequence[int]) -> str:
    """Says which ranks did not collect a test, and what they collected."""
    lines = [
        "the ranks collected different tests: make them the same in every process, not from a set, "
        "random numbers or the rank"
    ]
    for rank, collected in enumerate(every):
        seen = "collected it too" if rank in knowing else "did not collect it"
        others = ", ".join(collected.ids[:8]) + (", ..." if len(collected.ids) > 8 else "")
        lines.append(f"rank {rank} {seen}; its tests: {others or 'none'}")
        lines += [f"rank {rank} could not collect {text}" for text in collected.errors]
        lines += [f"rank {rank} skipped {text}" for text in collected.skipped]
    return "\n".join(lines)
