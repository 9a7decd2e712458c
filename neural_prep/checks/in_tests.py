"""Checks a case inside a distributed test: the verdict is that of all ranks."""

from __future__ import annotations

import itertools

from neural_prep.checks.cases import Case
from neural_prep.checks.check import run_case
from neural_prep.checks.gather import hear, tell
from neural_prep.checks.verdict import Fate, Verdict, judge
from neural_prep.world.group import World

_GRACE = 2.0  # seconds that other ranks have once one has failed
_PATIENCE = 3600.0  # seconds to wait for ranks that have not: who runs the tests gives up sooner

_numbers = itertools.count()


def check_case(case: Case, world: World) -> None:
    """Checks a case; every rank of the world does so.

    Args:
        case: The case.
        world: The fixture `world`.

    Raises:
        AssertionError: on every rank alike, if the case does not hold on all of them.
    """
    __tracebackhide__ = True
    verdict = find_verdict(case, world)
    if not verdict.holds:
        raise AssertionError("\n".join([f"{case} {verdict.word}", *verdict.lines]))


def find_verdict(case: Case, world: World) -> Verdict:
    """What all ranks together find of a case; every rank of the world asks, and hears the same."""
    key = f"check {next(_numbers)} {case}"
    outcome = run_case(case, world)
    tell(world.store, key, world.rank, outcome)
    patience = _GRACE if outcome.failed else _PATIENCE
    outcomes = hear(world.store, key, world.size, patience)
    late = Fate(f"was still running {_GRACE:g} s later")
    fates = {rank: late for rank in range(world.size) if rank not in outcomes}
    return judge(outcomes, fates)
