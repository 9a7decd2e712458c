"""Merges the ranks' accounts of a test into the reports of one test.

A test passes when it passed on every rank. Else what failed first is shown in full, once where
ranks agree, and what merely follows from it in one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from _pytest._code.code import (
    ExceptionChainRepr,
    ExceptionRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)
from _pytest.reports import TestReport

from neural_prep.testing.accounts import PHASES, Account, Phase
from neural_prep.world.watch import shorten_dump

_FOLLOWS = re.compile(
    r"(closed|reset) by peer|broken pipe|connection (was |is )?(refused|lost|closed|aborted)"
    r"|pair closure|DistNetworkError|remote process exited|ncclRemoteError|socket (is )?closed",
    re.IGNORECASE,
)  # errors of a collective whose peer is gone
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_STRICT = "[XPASS(strict)]"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a test may take, and that ranks have once one has failed or skipped."""

    timeout: float
    grace: float


@dataclass(frozen=True, slots=True)
class About:
    """What every report of a test says: where it is and what it is called."""

    nodeid: str
    location: tuple[str, int | None, str]
    keywords: Mapping[str, Literal[1]]


@dataclass(frozen=True, slots=True)
class _Problem:
    """Something that makes the test fail: on which ranks, in which phase, and its text."""

    ranks: tuple[int, ...]
    when: Phase
    longrepr: object


def merge(about: About, accounts: Sequence[Account], limits: Limits) -> list[TestReport]:
    """The reports of one test, in the order in which a single process would give them.

    Args:
        about: The test.
        accounts: Every rank's account of it.
        limits: What ranks were allowed.
    """
    problems, remarks = _judge(about, accounts, limits)
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
            report.sections = _sections(accounts, when)
        reports.append(report)
    return reports


def differing_positions(accounts: Sequence[Account]) -> str | None:
    """Where ranks that all finished a test stand at different points; None where they agree.

    >>> ran = [Account(rank, position={"group 0": count}) for rank, count in enumerate([3, 2])]
    >>> differing_positions(ran)
    'group 0: 3 collectives on rank 0, 2 on rank 1'
    """
    closed = [account.rank for account in accounts if not account.alive]
    if 0 < len(closed) < len(accounts):
        return f"the world's process group is gone {on_ranks(closed)} alone"
    for name in dict.fromkeys(name for account in accounts for name in account.position):
        found = {
            account.rank: account.position[name] for account in accounts if name in account.position
        }
        if len(set(found.values())) > 1:
            unit = "" if name == "groups made" else " collectives"
            counts = [f"{count}{unit} on rank {rank}" for rank, count in found.items()]
            counts[1:] = [text.replace(unit, "", 1) if unit else text for text in counts[1:]]
            return f"{name}: {', '.join(counts)}"
    return None


def on_ranks(ranks: Sequence[int]) -> str:
    """Names ranks.

    >>> on_ranks([1]), on_ranks([0, 1, 2, 3]), on_ranks([0, 2])
    ('on rank 1', 'on ranks 0-3', 'on ranks 0, 2')
    """
    if len(ranks) == 1:
        return f"on rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"on ranks {ranks[0]}-{ranks[-1]}"
    return f"on ranks {', '.join(map(str, ranks))}"


def message(text: str, location: tuple[str, int | None, str], headline: str) -> ExceptionChainRepr:
    """A failure that is no exception, in the shape of one."""
    path, line, _ = location
    trace = ReprTraceback([ReprEntryNative([f"{text.rstrip()}\n"])], None, "native")
    return ExceptionChainRepr([(trace, ReprFileLocation(path, (line or 0) + 1, headline), None)])


def _judge(
    about: About, accounts: Sequence[Account], limits: Limits
) -> tuple[list[_Problem], list[str]]:
    """All that makes the test fail, and in a line each what follows from it."""
    failed = sorted(
        ((account, report) for account in accounts for report in account.failures),
        key=lambda pair: pair[0].failed_at or 0,
    )
    gone = sorted((one for one in accounts if one.gone), key=lambda one: one.failed_at or 0)
    left = [account for account in accounts if not account.gone and not account.done]
    if _expected(accounts, failed, gone):
        return [], []
    remarks = []
    first = [pair for pair in failed if not _follows(pair[1])]
    if not first and not gone:
        first = failed[:1]
    problems = [_gone(about, account) for account in gone] + _grouped(first)
    for account, report in failed:
        if not any(report is own for _, own in first):
            remarks.append(f"rank {account.rank}: {_headline(report)}")
    skips = [account for account in accounts if account.skipped]
    if skips and len(skips) < len(accounts):
        text = _divided(accounts)
        if problems:
            remarks += [_skip_line(account) for account in skips]
        else:
            when = skips[0].skipped.when  # type: ignore[union-attr]
            problems.append(_Problem((), when, message(text, about.location, text)))
    if problems:
        remarks += [f"{account.fate()} {limits.grace:g} s later" for account in left]
    elif left:
        problems.append(_hung(about, accounts, left, limits))
    if not problems:
        differing = differing_positions(accounts)
        if differing is not None:
            text = f"the ranks left the test at different points: {differing}"
            problems.append(_Problem((), "call", message(text, about.location, text)))
    return problems, remarks


def _expected(
    accounts: Sequence[Account], failed: list[tuple[Account, TestReport]], gone: list[Account]
) -> bool:
    """Whether the test failed as it should: on one rank at least, and nowhere otherwise."""
    if not any(account.xfailed for account in accounts) or gone:
        return False
    return all(_follows(report) or _is_strict(report) for _, report in failed)


def _phase(
    about: About,
    when: Phase,
    accounts: Sequence[Account],
    problems: list[_Problem],
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
    strict = [report for report in found if _is_strict(report)]
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
    problems: list[_Problem],
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
    problem: _Problem, about: About, *, label: bool
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


def _grouped(failed: list[tuple[Account, TestReport]]) -> list[_Problem]:
    """One problem for all ranks whose tracebacks read the same."""
    groups: dict[tuple[str, str], list[tuple[Account, TestReport]]] = {}
    for account, report in failed:
        assert report.when is not None
        groups.setdefault((report.when, _told(report.longrepr)), []).append((account, report))
    return [
        _Problem(
            tuple(sorted(account.rank for account, _ in group)),
            group[0][1].when,
            group[0][1].longrepr,
        )
        for group in groups.values()
    ]


def _told(longrepr: object) -> str:
    """A failure's text without what differs between ranks by nature: arguments and addresses."""
    if isinstance(longrepr, ExceptionChainRepr):
        entries = [entry for trace, _, _ in longrepr.chain for entry in trace.reprentries]
        places = [getattr(entry, "reprfileloc", None) for entry in entries]
        text = "\n".join([*(line for entry in entries for line in entry.lines), *map(str, places)])
    else:
        text = str(longrepr)
    return _ADDRESS.sub("0x", text)


def _gone(about: About, account: Account) -> _Problem:
    text = account.fate()
    lines = shorten_dump(account.output).strip().splitlines()[-10:]
    if lines:
        text = "\n".join([f"{text}; its last lines:", *(f"    {line}" for line in lines)])
    return _Problem((), account.phase, message(text, about.location, account.fate()))


def _hung(
    about: About, accounts: Sequence[Account], left: list[Account], limits: Limits
) -> _Problem:
    headline = f"timed out after {limits.timeout:g} s: " + ", ".join(
        account.fate() for account in accounts
    )
    text = [f"timed out after {limits.timeout:g} s"]
    for account in accounts:
        text.append(f"{account.fate()}")
        if account.stacks is not None:
            text.append(account.stacks.text.rstrip())
    when = min((account.phase for account in left), key=PHASES.index)
    return _Problem((), when, message("\n".join(text), about.location, headline))


def _divided(accounts: Sequence[Account]) -> str:
    """Says which ranks skipped a test that others did not."""
    said = []
    for account in accounts:
        if account.skipped:
            said.append(_skip_line(account))
        elif account.done:
            said.append(f"rank {account.rank}: passed")
        else:
            said.append(account.fate())
    return "skipped on some ranks alone: " + "; ".join(said)


def _skip_line(account: Account) -> str:
    assert account.skipped is not None
    longrepr = account.skipped.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple | list) else str(longrepr)
    return f"rank {account.rank}: skipped ({str(reason).removeprefix('Skipped: ')})"


def _follows(report: TestReport) -> bool:
    return _FOLLOWS.search(_headline(report)) is not None


def _headline(report: TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr).strip() if crash is None else crash.message
    return str(text).split("\n", 1)[0]


def _is_strict(report: TestReport) -> bool:
    return isinstance(report.longrepr, str) and report.longrepr.startswith(_STRICT)


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
    links = [link for problem in _grouped(failed) for link in _chain(problem, about, label=True)]
    chosen.longrepr = ExceptionChainRepr(links)
    return chosen
