"""pytest-cov counts what only ranks run."""

import json

import pytest

PACKAGE = """\
def by_single():
    return 1

def by_dynamic(rank):
    if rank == 1:
        return 2
    return 3

def by_static(rank):
    if rank == 1:
        return 4
    return 5

def before_a_failure():
    return 6

def by_nobody():
    return 7
"""
TESTS = """
import pytest
import measured

def test_single():
    measured.by_single()

@pytest.mark.multigpu_dynamic
def test_dynamic(world):
    measured.by_dynamic(world.rank)

@pytest.mark.multigpu_static
def test_static(world):
    measured.by_static(world.rank)

@pytest.mark.multigpu_static
def test_fails(world):
    if world.rank == 1:
        measured.before_a_failure()
        raise AssertionError

@pytest.mark.multigpu_static
def test_after_it(world): pass
"""


@pytest.mark.parametrize(
    ("config", "options", "branches"),
    [
        ("", ["--cov=measured"], None),
        ("", ["--cov=measured", "-n", "2"], None),
        ("source = measured\nbranch = true\nparallel = true", ["--cov"], 4),
    ],
    ids=["", "-n 2", "branches and parallel files"],
)
def test_lines_that_only_ranks_run_are_counted(run_tests, pytester, config, options, branches):
    pytester.makepyfile(measured=PACKAGE)
    (pytester.path / ".coveragerc").write_text(f"[run]\n{config}\n")
    pytester.makeini("[pytest]\npythonpath = .\n")
    done = run_tests(TESTS, "--multigpu-all", "--nproc-per-node=2", *options, "--cov-report=json")
    assert done.failed == {"test_fails"}, done.out
    assert len(done.outcomes) == 5
    (found,) = json.loads((pytester.path / "coverage.json").read_text())["files"].values()
    assert found["missing_lines"] == [18]
    assert found["summary"].get("covered_branches") == branches
    left = [path.name for path in pytester.path.glob(".coverage*")]
    assert sorted(left) == [".coverage", ".coveragerc"]
    assert "CoverageWarning" not in done.out
