"""Under pytest-xdist, distributed tests go to one worker, once, while others run beside them."""

import pytest

TESTS = """
import os, time
from pathlib import Path
import pytest

WORKER = os.environ["PYTEST_XDIST_WORKER"]

def note(name):
    with open(f"ran-{WORKER}-{os.environ.get('RANK', '')}", "a") as file:
        file.write(f"{name}\\n")

def meet(name, other):
    \"\"\"Waits for a test in another process.\"\"\"
    Path(name).touch()
    deadline = time.monotonic() + 30
    while not Path(other).exists():
        assert time.monotonic() < deadline, f"{other} is not there"
        time.sleep(0.01)

@pytest.mark.multigpu_static
@pytest.mark.parametrize("number", range(3))
def test_static(world, number):
    note(f"static {number}")

@pytest.mark.multigpu_static
def test_fails(world):
    note("fails")
    assert world.rank == 0

@pytest.mark.multigpu_dynamic(world_size=2)
class TestDynamic:
    def test_first(self, world):
        note("dynamic 1")
        meet("distributed", "single")

    def test_second(self, world):
        note("dynamic 2")
"""
SINGLE = """
from test_it import meet, note

def test_beside():
    note("beside")
    meet("single", "distributed")

def test_more():
    note("more")
"""


@pytest.mark.parametrize("how", ["load", "loadfile"])
def test_one_worker_runs_all_distributed_tests(run_tests, pytester, how):
    pytester.makepyfile(test_single=SINGLE)
    pytester.makeini("[pytest]\npythonpath = .\n")
    done = run_tests(TESTS, "--multigpu-all", "--nproc-per-node=2", "-n", 2, "--dist", how)
    assert done.failed == {"test_fails"}, done.out
    assert "on rank 1:" in done.texts["test_fails"]
    assert len(done.outcomes) == 8
    assert done.status == 1
    ran = {path.name: path.read_text().splitlines() for path in pytester.path.glob("ran-*")}
    (worker,) = {name.split("-")[1] for name in ran if name[-1].isdigit() and name[-2] == "-"}
    for rank in (0, 1):
        names = ["dynamic 1", "dynamic 2", "fails", "static 0", "static 1", "static 2"]
        assert sorted(ran[f"ran-{worker}-{rank}"]) == names
    single = [name for key, names in ran.items() if key.endswith("-") for name in names]
    assert sorted(single) == ["beside", "more"]


FEW = """
import os
import pytest

@pytest.mark.multigpu_static
def test_static(world, worker_id):
    assert worker_id == f"rank{world.rank}"

@pytest.mark.multigpu_static
def test_never(world): assert 0
"""


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        (["-n", 2, "-k", "test_static"], {"test_static": "passed"}),
        (["-n", 0], {"test_static": "passed", "test_never": "failed"}),
    ],
    ids=["fewer tests than workers", "-n 0"],
)
def test_few_tests(run_tests, options, ran):
    done = run_tests(FEW, "--multigpu-static", "--nproc-per-node=2", *options)
    assert done.outcomes == ran, done.out
