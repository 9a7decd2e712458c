"""Merges the ranks' accounts of a test into the reports of one test.

A test passes when it passed on every rank. Else what failed first is shown in full, once where
ranks agree, and what merely follows from it in one line.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from _pytest._code.code import (
    ExceptionChainRepr,
    ExceptionRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)
from _pytest.reports import TestReport

from neural_prep.testing.accounts import PHASES, Account, Phase
from neural_prep.testing.problems import (
    About,
    Limits,
    Problem,
    group_by_text,
    is_strict,
    judge,
    message,
    on_ranks,
)


def merge(about: About, accounts: Sequence[Account], limits: Limits) -> list[TestReport]:
    """The reports of one test, in the order in which a single process would give them.

    Args:
        about: The test.
        accounts: Every rank's account of it.
        limits: What ranks were allowed.
    """
    problems, remarks = judge(about, accounts, limits)
    reports = [_subtest(about, group) for group in _matching_subtests(accounts)]
    failed = len([report for report in reports if report.failed])
    for when in PHASES:
        report = _phase(about, when, accounts, [p for p in problems if p.when == when], remarks)
        if report is None:
            continue
        if when == "call" and report.passed and any(p.when == "setup" for p in problems):
            continue  # ranks whose set-up went well went on
        if when == "call" and report.passed and failed:  # pytest counts those of its own process
            report.outcome = "failed"
            report.longrepr = f"contains {failed} failed subtest{'s' * (failed > 1)}"
        if report.failed:
            remarks = []  # once
        elif problems:
            report = copy.copy(report)  # its rank's own is looked at again
            report.sections = _sections(accounts, when)
        reports.append(report)
    return reports


def _phase(
    about: About,
    when: Phase,
    accounts: Sequence[Account],
    problems: list[Problem],
    remarks: list[str],
) -> TestReport | None:
    """One phase of the merged test; None where no rank came to it."""
    found = [account.phases[when] for account in accounts if when in account.phases]
    if problems:
        return _failure(about, when, accounts, found, problems, remarks)
    if not found and when != "teardown":
        return None
    usual = [report for report in found if not report.failed and not report.skipped]
    xfailed = [report for report in found if hasattr(report, "wasxfail") and report.skipped]
    skipped = [report for report in found if report.skipped]
    strict = [report for report in found if is_strict(report)]
    chosen = (xfailed or (skipped if len(skipped) == len(found) else []) or strict or usual)[:1]
    if not chosen:  # every rank was given up in this phase, for what went wrong in another
        return TestReport(about.nodeid, about.location, about.keywords, "passed", None, when)
    chosen[0].duration = max(report.duration for report in found)
    return chosen[0]


def _failure(
    about: About,
    when: Phase,
    accounts: Sequence[Account],
    found: list[TestReport],
    problems: list[Problem],
    remarks: list[str],
) -> TestReport:
    label = len(accounts) > 1
    whole = ExceptionChainRepr(
        [link for problem in problems for link in _chain(problem, about, label=label)]
    )
    crash = whole.chain[0][1] if problems else None
    whole.chain = [(trace, crash, text) for trace, _, text in whole.chain]
    whole.reprcrash = crash
    if remarks:
        whole.addsection("what followed", "\n".join(remarks))
    properties = [pair for report in found[:1] for pair in report.user_properties]
    return TestReport(
        about.nodeid,
        about.location,
        about.keywords,
        "failed",
        whole,
        when,
        sections=_sections(accounts, when),
        duration=max(
            [report.duration for report in found] + [account.seconds for account in accounts]
        ),
        start=min((report.start for report in found), default=0.0),
        stop=max((report.stop for report in found), default=0.0),
        user_properties=properties,
    )


def _chain(
    problem: Problem, about: About, *, label: bool
) -> list[tuple[ReprTraceback, ReprFileLocation | None, str | None]]:
    """A problem's tracebacks, the first of them headed by its ranks."""
    shown = problem.longrepr
    if not isinstance(shown, ExceptionRepr):
        text = str(shown)
        lines = [line for line in text.strip().splitlines() if line.strip()]
        shown = message(text, about.location, lines[-1] if lines else "failed")
    if isinstance(shown, ExceptionChainRepr):
        links = list(shown.chain)
    else:
        links = [(shown.reprtraceback, shown.reprcrash, None)]
    if not label or not problem.ranks:
        return links
    heading = on_ranks(problem.ranks)
    trace, crash, description = links[0]
    entries = [ReprEntryNative([f"{heading}:\n"]), *trace.reprentries]
    links[0] = (ReprTraceback(entries, trace.extraline, trace.style), crash, description)
    last = links[-1][1]
    if last is not None:
        last = ReprFileLocation(last.path, last.lineno, f"{heading}: {last.message}")
    return [(trace, last, text) for trace, _, text in links]


def _sections(accounts: Sequence[Account], when: Phase) -> list[tuple[str, str]]:
    return [
        (name if account.rank == 0 else f"{name}, rank {account.rank}", text)
        for account in accounts
        for name, text in account.sections_until(when)
    ]


def _matching_subtests(accounts: Sequence[Account]) -> list[list[tuple[Account, TestReport]]]:
    """The ranks' reports of each subtest; the n-th of a name is the same on every rank."""
    groups: dict[tuple[str, int], list[tuple[Account, TestReport]]] = {}
    for account in accounts:
        seen: dict[str, int] = {}
        for report in account.subtests:
            name = str(getattr(report, "context", ""))
            seen[name] = seen.get(name, 0) + 1
            groups.setdefault((name, seen[name]), []).append((account, report))
    return list(groups.values())


def _subtest(about: About, group: list[tuple[Account, TestReport]]) -> TestReport:
    """One subtest's report: the first rank's that failed, with every failure in it."""
    failed = [(account, report) for account, report in group if report.failed]
    if not failed:
        return group[0][1]
    chosen = failed[0][1]
    links = [
        link for problem in group_by_text(failed) for link in _chain(problem, about, label=True)
    ]
    chosen.longrepr = ExceptionChainRepr(links)
    return chosen
