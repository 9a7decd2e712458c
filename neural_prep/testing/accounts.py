"""One rank's account of one test: its reports, how it ended, what it wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from _pytest.reports import TestReport

from neural_prep.world.ranks import ending
from neural_prep.world.watch import Stacks
from neural_prep.world.ways import Way

Phase = Literal["setup", "call", "teardown"]
PHASES: tuple[Phase, ...] = ("setup", "call", "teardown")


@dataclass(slots=True)
class Account:
    """What is known of a test on one rank.

    Attributes:
        rank: The rank.
        phases: Its report of each phase that it has ended.
        subtests: Its subtests' reports.
        failed_at: The place of its first failure among all ranks' events; None if it didn't fail.
        done: Whether it has finished the test.
        alive: Whether its process group was still there at the end.
        position: How many collectives each of its groups had run at the end.
        messages: How many messages it had sent to each other rank and received from it.
        gone: Whether its process has ended.
        gone_at: When that was heard, on the monotonic clock.
        status: Its exit status, if it is gone and that is known; negative for a signal.
        seconds: When it was gone or given up, from the test's start.
        stacks: Where it was when it was given up.
        output: What it wrote before it was gone or given up.
        later: What was captured of it by the time it had been cut off.
    """

    rank: int
    phases: dict[Phase, TestReport] = field(default_factory=dict)
    subtests: list[TestReport] = field(default_factory=list)
    failed_at: int | None = None
    done: bool = False
    alive: bool = True
    position: dict[str, int] = field(default_factory=dict)
    messages: dict[Way, int] = field(default_factory=dict)
    gone: bool = False
    gone_at: float = 0.0
    status: int | None = None
    seconds: float = 0.0
    stacks: Stacks | None = None
    output: str = ""
    later: list[tuple[str, str]] = field(default_factory=list)

    @property
    def phase(self) -> Phase:
        """The phase that it was in, or ended in."""
        if "setup" not in self.phases:
            return "setup"
        if "call" in self.phases or not self.phases["setup"].passed:
            return "teardown"
        return "call"

    @property
    def skipped(self) -> TestReport | None:
        """The report that says that the test was skipped here; an expected failure is none."""
        for report in self.phases.values():
            if report.skipped and not hasattr(report, "wasxfail"):
                return report
        return None

    @property
    def xfailed(self) -> TestReport | None:
        """The report of an expected failure."""
        for report in self.phases.values():
            if report.skipped and hasattr(report, "wasxfail"):
                return report
        return None

    @property
    def failures(self) -> list[TestReport]:
        """The reports of phases that failed."""
        return [report for report in self.phases.values() if report.failed]

    @property
    def has_failed(self) -> bool:
        """Whether a phase, or a subtest, has failed."""
        return any(report.failed for report in [*self.phases.values(), *self.subtests])

    @property
    def sections(self) -> list[tuple[str, str]]:
        """All that was captured here."""
        return self.sections_until("teardown")

    def sections_until(self, when: Phase) -> list[tuple[str, str]]:
        """What was captured here up to the end of a phase, and what a lost rank wrote."""
        if self.later:
            return self.later
        phases = PHASES[: PHASES.index(when) + 1]
        reports = [self.phases[phase] for phase in phases if phase in self.phases]
        found = list(reports[-1].sections) if reports else []
        return [*found, ("Captured output", self.output)] if self.output.strip() else found

    def fate(self) -> str:
        """How its process ended, or where it still is.

        >>> Account(1, gone=True, status=3).fate()
        'rank 1 ended with exit code 3'
        >>> Account(0, gone=True, status=-9).fate()
        'rank 0 was killed by SIGKILL'
        """
        if self.gone:
            return f"rank {self.rank} {ending(self.status)}"
        if self.done:
            return f"rank {self.rank} had finished"
        where = f" at {self.stacks.line}" if self.stacks else ""
        return f"rank {self.rank} was still running{where}"
