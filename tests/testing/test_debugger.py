"""With one rank, static tests run in pytest's own process, where debuggers work."""

import sys

import pytest

IN_PROCESS = """
import os
import pytest
import torch
import torch.distributed as dist

@pytest.mark.multigpu_static
def test_static(world, distributed_mesh):
    assert os.environ["LEADER"] == str(os.getpid())
    assert (world.rank, world.size, distributed_mesh.size()) == (0, 1, 1)
    ones = torch.ones(())
    dist.all_reduce(ones)
    assert ones == 1

@pytest.mark.multigpu_static
def test_fails(world):
    assert world.size == 2

def test_single():
    assert os.environ["LEADER"] == str(os.getpid())

@pytest.mark.multigpu_dynamic
def test_dynamic(world):
    assert os.environ.get("LEADER") != str(os.getpid())
    assert world.size == 1
"""
CONFTEST = """
import os

def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # not in ranks
        os.environ["LEADER"] = str(os.getpid())
"""


def test_static_tests_of_one_rank_run_in_process(run_tests, pytester):
    pytester.makeconftest(CONFTEST)
    done = run_tests(IN_PROCESS, "--multigpu-all", "--nproc-per-node", 1)
    outcomes = [(name, outcome) for name, outcome in done.outcomes.items()]
    assert outcomes == [
        ("test_single", "passed"),
        ("test_dynamic", "passed"),
        ("test_static", "passed"),
        ("test_fails", "failed"),
    ], done.out
    assert "on rank" not in done.out


DEBUGGED = """
import pytest

@pytest.mark.multigpu_static
def test_debugged(world):
    seen = 41 + world.size
    {stop}
"""


@pytest.mark.parametrize(
    ("stop", "options", "outcome"),
    [
        ("assert not seen", ["--pdb"], "1 failed"),
        ("breakpoint()", [], "1 passed"),
        ("pass", ["--trace"], "1 passed"),
    ],
    ids=["--pdb", "breakpoint", "--trace"],
)
def test_debuggers_work(pytester, traces, stop, options, outcome):
    pytester.makepyfile(test_it=DEBUGGED.format(stop=stop))
    said = b"n\np seen, world.rank\nc\n" if "--trace" in options else b"p seen, world.rank\nc\n"
    command = [sys.executable, "-m", "pytest", "--multigpu-static", "--nproc-per-node=1", *options]
    ended = pytester.run(*command, stdin=said, timeout=60)
    ended.stdout.fnmatch_lines(["*(42, 0)", f"*= {outcome}*"])
    assert traces.none_left()


def test_a_breakpoint_on_several_ranks_fails_at_once(run_static):
    done = run_static("""
    def test_stops():
        breakpoint()

    def test_after(world):
        assert total() == 2
    """)
    assert done.outcomes == {"test_stops": "failed", "test_after": "passed"}, done.out
    assert "debugger" in done.texts["test_stops"]
    assert done.seconds < 30
