"""What made a test fail on its ranks: what went wrong by itself, and what merely followed.

Ranks whose tracebacks read the same have one problem together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)
from _pytest.reports import TestReport

from neural_prep.testing.accounts import PHASES, Account, Phase
from neural_prep.world.ranks import is_of_lost_peer
from neural_prep.world.watch import shorten_dump

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
class Problem:
    """Something that makes the test fail: on which ranks, in which phase, and its text."""

    ranks: tuple[int, ...]
    when: Phase
    longrepr: object


def judge(
    about: About, accounts: Sequence[Account], limits: Limits
) -> tuple[list[Problem], list[str]]:
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
    problems = [_gone(about, account) for account in gone] + group_by_text(first)
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
            return [Problem((), when, message(text, about.location, text))], []
    if problems:
        remarks += [f"{account.fate()} {limits.grace:g} s later" for account in left]
    elif left:
        problems.append(_hung(about, accounts, left, limits))
    if not problems:
        differing = differing_positions(accounts)
        if differing is not None:
            text = f"the ranks left the test at different points: {differing}"
            problems.append(Problem((), "call", message(text, about.location, text)))
    return problems, remarks


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
    return _unpaired(accounts)


def _unpaired(accounts: Sequence[Account]) -> str | None:
    """Messages that one rank has sent and another not received, or the other way round.

    >>> from neural_prep.world.ways import Way
    >>> sent = Account(0, messages={Way("0", 0, 1): 2})
    >>> _unpaired([sent, Account(1, messages={Way("0", 0, 1): 1})])
    'group 0: 2 messages sent from rank 0 to rank 1, 1 received'
    """
    ranks = {account.rank: account for account in accounts}
    ways = dict.fromkeys(way for account in accounts for way in account.messages)
    takes_any = {(way.group, way.target) for way in ways if way.source < 0}
    for way in ways:
        if way.source not in ranks or way.target not in ranks:
            continue
        sent = ranks[way.source].messages.get(way, 0)
        received = ranks[way.target].messages.get(way, 0)
        if sent != received and (way.group, way.target) not in takes_any:
            return (
                f"group {way.group}: {sent} message{'s' * (sent != 1)} sent from rank "
                f"{way.source} to rank {way.target}, {received} received"
            )
    return None


def message(text: str, location: tuple[str, int | None, str], headline: str) -> ExceptionChainRepr:
    """A failure that is no exception, in the shape of one."""
    path, line, _ = location
    trace = ReprTraceback([ReprEntryNative([f"{text.rstrip()}\n"])], None, "native")
    return ExceptionChainRepr([(trace, ReprFileLocation(path, (line or 0) + 1, headline), None)])


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


def is_strict(report: TestReport) -> bool:
    """Whether a test passed that was expected to fail, strictly."""
    return isinstance(report.longrepr, str) and report.longrepr.startswith(_STRICT)


def _expected(
    accounts: Sequence[Account], failed: list[tuple[Account, TestReport]], gone: list[Account]
) -> bool:
    """Whether the test failed as it should: on one rank at least, and nowhere otherwise."""
    if not any(account.xfailed for account in accounts) or gone:
        return False
    return all(_follows(report) or is_strict(report) for _, report in failed)


def group_by_text(failed: list[tuple[Account, TestReport]]) -> list[Problem]:
    """One problem for all ranks whose tracebacks read the same."""
    groups: dict[tuple[str, str], list[tuple[Account, TestReport]]] = {}
    for account, report in failed:
        assert report.when is not None
        groups.setdefault((report.when, _told(report.longrepr)), []).append((account, report))
    return [
        Problem(
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


def _gone(about: About, account: Account) -> Problem:
    text = account.fate()
    lines = shorten_dump(account.output).strip().splitlines()[-10:]
    if lines:
        text = "\n".join([f"{text}; its last lines:", *(f"    {line}" for line in lines)])
    return Problem((), account.phase, message(text, about.location, account.fate()))


def _hung(
    about: About, accounts: Sequence[Account], left: list[Account], limits: Limits
) -> Problem:
    headline = f"timed out after {limits.timeout:g} s: " + ", ".join(
        account.fate() for account in accounts
    )
    text = [f"timed out after {limits.timeout:g} s"]
    for account in accounts:
        text.append(f"{account.fate()}")
        if account.stacks is not None:
            text.append(account.stacks.text.rstrip())
    when = min((account.phase for account in left), key=PHASES.index)
    return Problem((), when, message("\n".join(text), about.location, headline))


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
    return is_of_lost_peer(_headline(report))


def _headline(report: TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr).strip() if crash is None else crash.message
    return str(text).split("\n", 1)[0]
