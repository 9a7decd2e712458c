"""`neural-prep check`: the cases of a file on ranks of its own, or on a launcher's."""

from __future__ import annotations

import fnmatch
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from neural_prep.checks.cases import Case, in_float32
from neural_prep.checks.coverage import Survey
from neural_prep.checks.launched import LaunchedWorld, LostError
from neural_prep.checks.loading import load_cases
from neural_prep.checks.names import nearest
from neural_prep.checks.options import parse_options
from neural_prep.checks.report import Row, show
from neural_prep.checks.samples import load_samples
from neural_prep.checks.started import StartedWorld
from neural_prep.checks.survey import check_target, tell_survey
from neural_prep.checks.verdict import HOLDS, REFUSES, Verdict
from neural_prep.errors import InputError
from neural_prep.interrupts import before_exit, is_first_to_end, leave
from neural_prep.world.environment import is_launched
from neural_prep.world.ranks import WorldError
from neural_prep.world.slurm import as_launched

_DONE, _FAILED, _WRONG_INPUT = 0, 1, 2
_TURN = 2.0  # seconds in which rank 0 reports what all ranks find


@dataclass(slots=True)
class _Run:
    """A run of some cases: what has been found so far, and told."""

    cases: Sequence[Case]
    ranks: int
    report: Callable[[Sequence[Row], str], None]  # tells what was found, and why no more was
    fine: Collection[str]  # verdicts with which all is well
    rows: list[Row] = field(default_factory=list)
    current: Case | None = None
    begun: float = 0.0
    told: threading.Lock = field(default_factory=threading.Lock)  # taken by whoever reports

    def note(self, verdict: Verdict) -> None:
        """Takes in the verdict of the case that is running."""
        assert self.current is not None
        seconds = time.monotonic() - self.begun
        self.rows.append(Row(str(self.current), self.ranks, verdict, seconds))
        self.current = None

    def tell(self, ended: str = "") -> int:
        """Prints the report, once, and returns the exit status."""
        if self.told.acquire(blocking=False):
            try:
                self.report(self.rows, ended)
                sys.stdout.flush()
            except (BrokenPipeError, SystemExit):  # `| head`; the latter is rich's
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        holds = not ended and all(row.verdict.word in self.fine for row in self.rows)
        return _DONE if holds else _FAILED

    def not_run(self) -> str:
        """How many cases are left, in words."""
        count = len(self.cases) - len(self.rows)
        return f"{count} case{'s' * (count != 1)} did not run"


def run_check(args: Sequence[str]) -> int:
    """Runs `neural-prep check` with these arguments and returns the exit status."""
    os.environ.update(as_launched(os.environ))
    launched = is_launched(os.environ)
    speaks = not launched or os.environ["RANK"] == "0"
    sys.path.insert(0, os.getcwd())  # where a user's own functions are, as for `python -m`
    try:
        return _check(parse_options(args), launched=launched)
    except InputError as error:
        return _refuse(error, _WRONG_INPUT, speaks=speaks)
    except WorldError as error:
        return _refuse(error, _FAILED, speaks=speaks)
    except SystemExit as error:  # from --help and the like
        return int(error.code or 0)
    except Exception:
        if is_first_to_end():
            traceback.print_exc()
        return _FAILED


def _refuse(error: Exception, status: int, *, speaks: bool) -> int:
    """Tells the user in a line; a launcher ends all ranks with the first that ends."""
    if speaks:
        sys.stderr.write(f"neural-prep: {error}\n")
        sys.stderr.flush()
    else:
        time.sleep(_TURN)
    return status


def _check(options: Any, *, launched: bool) -> int:
    if launched:
        return _run_launched(options)
    plan = _plan(options)
    world = StartedWorld(options.nproc_per_node, options.timeout)
    run = plan(world.size)
    try:
        _run_all(run, world)
    except WorldError as error:
        return run.tell(f"the run ended: {error}; {run.not_run()}")
    finally:
        world.close()
    return run.tell()


def _run_launched(options: Any) -> int:
    """Runs the cases as one of a launcher's ranks; rank 0 alone reports and has the status."""
    size = int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    if options.nproc_per_node not in (None, local):
        raise InputError(
            f"--nproc-per-node: {options.nproc_per_node}, but the launcher has started {local}; "
            "leave it out"
        )
    run = _plan(options)(size)
    speaks = os.environ["RANK"] == "0"

    def lose(verdict: Verdict) -> None:
        run.note(verdict)
        _leave_with(run, speaks=speaks)

    if speaks:
        before_exit(lambda: _tell_ended(run))
    try:
        world = LaunchedWorld(options.timeout, lose)
        _run_all(run, world)
    except LostError as lost:
        lose(lost.verdict)
    world.close()
    return run.tell() if speaks else _DONE  # with another status the launcher would end rank 0


def _leave_with(run: _Run, *, speaks: bool) -> None:
    """Ends this rank, as another one or itself cannot go on; rank 0 reports."""
    if speaks:
        _tell_ended(run)
    else:
        time.sleep(_TURN)
    leave(_FAILED)


def _tell_ended(run: _Run) -> None:
    last = run.rows[-1].name if run.rows else "the first case"
    run.tell(
        f"the run ended in {run.current or last}: ranks that a launcher has started cannot be "
        f"replaced; {run.not_run()}"
    )


def _plan(options: Any) -> Callable[[int], _Run]:
    """What to run on so many ranks; what is wrong with files shows before.

    Raises:
        InputError: if anything is.
    """
    if options.coverage is not None:
        return _plan_survey(options)
    cases = _select(options)
    return lambda ranks: _run_of(cases, ranks, options.dtype)


def _run_of(cases: Sequence[Case], ranks: int, dtype: str) -> _Run:
    """The run of those cases that are for so many ranks, and have such a dtype."""
    able = in_float32(cases) if dtype == "float32" else cases
    chosen = [case for case in able if ranks in case.ranks]
    left_out = len(cases) - len(chosen)

    def report(rows: Sequence[Row], ended: str) -> None:
        show(rows, ranks, left_out, ended)

    return _Run(chosen, ranks, report, (HOLDS,))


def _plan_survey(options: Any) -> Callable[[int], _Run]:
    """All trials of samples, on so many ranks."""
    check_target(options.coverage)
    samples = load_samples(options.config)

    def survey_on(ranks: int) -> _Run:
        survey = Survey.of(samples, ranks)
        cases = [trial.case for trial in survey.trials.values()]

        def report(rows: Sequence[Row], ended: str) -> None:
            tell_survey(survey, rows, options.coverage, ended)

        return _Run(cases, ranks, report, (HOLDS, REFUSES))

    return survey_on


def _run_all(run: _Run, world: StartedWorld | LaunchedWorld) -> None:
    console = Console(stderr=True)
    console.quiet = not (world.speaks and console.is_terminal)
    with console.status("") as status:
        for number, case in enumerate(run.cases, 1):
            status.update(f"{number} of {len(run.cases)}: {case}")
            world.ready()
            run.current, run.begun = case, time.monotonic()
            run.note(world.run(case))


def _select(options: Any) -> list[Case]:
    """The cases that are asked for.

    Raises:
        InputError: if the file is wrong, or no case has such a name.
    """
    cases = load_cases(options.config)
    if options.only is not None:
        found = [case for case in cases if fnmatch.fnmatchcase(case.name, options.only)]
        if not found:
            near = nearest(options.only.strip("*?"), [case.name for case in cases])
            raise InputError(
                f"--only: no case of {options.config} has a name like {options.only}{near}"
            )
        return found
    return cases
