"""The plugin's options, and what can be said of them before anything runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from neural_prep.testing.kinds import DYNAMIC, SINGLE, STATIC
from neural_prep.world.environment import is_launched

OUTSIDE = pytest.StashKey[Mapping[str, str]]()  # the environment that pytest was started in
LONGEST = 7 * 86400.0  # seconds: a time limit that is none, for threads and for gloo
PRELOAD = "multigpu_preload"
_PRELOAD_HELP = (
    "modules that are imported once, before ranks are forked, besides torch: heavy ones that start "
    "no threads and don't touch CUDA, such as lightning.pytorch"
)
_HELP = {
    "--multigpu-static": "run tests marked multigpu_static on one world of ranks, started once",
    "--multigpu-dynamic": "run tests marked multigpu_dynamic, each in a fresh world of ranks",
    "--multigpu-all": "run single-process tests, then dynamic, then static ones",
    "--nproc-per-node": "number of ranks (default: that of GPUs, else 2); with 1, static tests "
    "run in pytest's own process",
    "--multigpu-timeout": "seconds that a distributed test may take (default: 60)",
    "--multigpu-grace": "seconds that the other ranks have once one has failed or skipped a test "
    "(default: 2)",
    "--multigpu-output": "rank0 (default): output as in a single process, other ranks' shown with "
    "failing tests; all: everything at once, each line with its rank",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What a run was asked for.

    Attributes:
        kinds: The kinds of tests that run, in order; empty in a plain run of pytest.
        ranks: Number of ranks; None for the number of GPUs.
        timeout: Seconds that a test may take.
        grace: Seconds that ranks have once one has failed.
        output: `rank0` or `all`.
        under_launcher: Whether torchrun, or srun, has started this process as a rank.
    """

    kinds: tuple[str, ...]
    ranks: int | None
    timeout: float
    grace: float
    output: str
    under_launcher: bool

    @property
    def in_process(self) -> bool:
        """Whether static tests run in pytest's own process."""
        return self.ranks == 1 and not self.under_launcher


def add_options(parser: pytest.Parser) -> None:
    """Adds the options to pytest's."""
    group = parser.getgroup("multigpu", "distributed tests")
    for name in ("--multigpu-static", "--multigpu-dynamic", "--multigpu-all"):
        group.addoption(name, action="store_true", help=_HELP[name])
    group.addoption("--nproc-per-node", type=int, metavar="N", help=_HELP["--nproc-per-node"])
    for name, default in (("--multigpu-timeout", 60.0), ("--multigpu-grace", 2.0)):
        group.addoption(name, type=float, default=default, metavar="SECONDS", help=_HELP[name])
    group.addoption(
        "--multigpu-output",
        choices=("rank0", "all"),
        default="rank0",
        help=_HELP["--multigpu-output"],
    )
    parser.addini(PRELOAD, _PRELOAD_HELP, type="args", default=[])


def read_options(config: pytest.Config, environment: Mapping[str, str] = os.environ) -> Options:
    """Reads the options.

    Raises:
        pytest.UsageError: for those that cannot be, alone or together.
    """
    option = config.option
    kinds: tuple[str, ...] = (SINGLE, DYNAMIC, STATIC) if option.multigpu_all else ()
    if not kinds and option.multigpu_dynamic:
        kinds += (DYNAMIC,)
    if not option.multigpu_all and option.multigpu_static:
        kinds += (STATIC,)
    ranks = option.nproc_per_node
    for name, value in (
        ("--nproc-per-node", ranks),
        ("--multigpu-timeout", option.multigpu_timeout),
        ("--multigpu-grace", option.multigpu_grace),
    ):
        if value is not None and not value > 0:
            raise pytest.UsageError(f"{name}: {value:g} must be positive")
    launched = bool(kinds) and is_launched(environment)
    if launched and DYNAMIC in kinds:
        raise pytest.UsageError(
            "dynamic tests start ranks of their own, which they can't where a launcher has started "
            "this one: run `pytest --multigpu-dynamic` (or --multigpu-all) without torchrun or "
            "srun, and `torchrun -m pytest --multigpu-static` for static tests"
        )
    if launched:
        size = int(environment["WORLD_SIZE"])
        local = int(environment.get("LOCAL_WORLD_SIZE", size))
        if ranks not in (None, local):
            raise pytest.UsageError(
                f"--nproc-per-node: {ranks}, but the launcher has started {local}; leave it out"
            )
        ranks = size
    if (option.usepdb or option.trace) and STATIC in kinds and ranks != 1:
        raise pytest.UsageError(
            "ranks have no terminal for a debugger: add --nproc-per-node 1, and static tests run "
            "in pytest's own process"
        )
    return Options(
        kinds,
        ranks,
        min(option.multigpu_timeout, LONGEST),
        min(option.multigpu_grace, LONGEST),
        option.multigpu_output,
        launched,
    )


def act_as_worker(config: pytest.Config, rank: int, size: int, run: str) -> None:
    """Has plugins that write a session's files leave that to the leader, as under pytest-xdist."""
    config.workerinput = {  # type: ignore[attr-defined]
        "workerid": f"rank{rank}",
        "workercount": size,
        "testrunuid": run,
    }
