"""What the pytest that leads and the ranks' sessions say to one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neural_prep.world.ways import Way


@dataclass(frozen=True, slots=True)
class Settings:
    """What a rank's session is told when it starts.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        options: pytest's options, as the leading session has parsed them.
        args: What to collect.
        files: The only files that need be collected; None for all.
        kind: The kind of tests that are run.
        shared_temp: Folder for those that ranks share.
        patience: Seconds that a collective may take.
        process_group: Whether the world is made before the tests.
        coverage: Arguments of `coverage.Coverage`, where it is measured.
        leader: Where other ranks of a launcher reach the leading session.
    """

    rank: int
    size: int
    options: dict[str, Any]
    args: list[str]
    files: frozenset[str] | None
    kind: str
    shared_temp: str
    patience: float
    process_group: bool
    coverage: dict[str, Any] | None
    leader: str = ""


@dataclass(frozen=True, slots=True)
class Captures:
    """With it come `files` open files, which hold what the running phase has written."""

    files: int


@dataclass(frozen=True, slots=True)
class Collected:
    """A rank is ready for work.

    Attributes:
        pid: Its process.
        ids: Its tests, in order.
        errors: What went wrong in collecting them.
        skipped: Files that were skipped as a whole, and why.
    """

    pid: int
    ids: tuple[str, ...]
    errors: tuple[str, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Asks for one test; `following` is the next of this world, None where there is none."""

    nodeid: str
    following: str | None
    folder: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Asks a rank to tear down what is left, and to end."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A phase's, or a subtest's, report, as pytest serialises it."""

    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning, as a rank's pytest recorded it."""

    message: Warning
    filename: str
    lineno: int
    when: str
    nodeid: str
    location: tuple[str, int, str] | None


@dataclass(frozen=True, slots=True)
class Done:
    """A rank has finished a test.

    Attributes:
        position: How many collectives each of its groups has run.
        messages: How many messages it has sent to each other rank and received from it.
        alive: Whether the world's process group is still there.
        report: That of the tear-down, if it passed and wasn't sent by itself.
    """

    position: dict[str, int]
    messages: dict[Way, int]
    alive: bool
    report: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CutOff:
    """Ends the collective, or the sleep, that a rank is in; for ranks that cannot be replaced."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Asks a rank to tear everything down and to open a new process group, number `generation`."""

    generation: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """A rank has done so."""


@dataclass(frozen=True, slots=True)
class Left:
    """A rank has finished: nothing of it is needed any more."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Ends a rank at once, whatever it is doing."""


@dataclass(frozen=True, slots=True)
class Exited:
    """A test has called `pytest.exit`."""

    message: str
    status: int | None
