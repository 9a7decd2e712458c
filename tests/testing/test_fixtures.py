"""Fixtures, classes, xfail, subtests and `pytest.raises`, as in a single process."""

import re

# Each test, and its outcome, is what a single process would give if rank 1's trouble were its own.
FIXTURES = """
@pytest.fixture
def bad_set_up():
    total()
    if RANK == 1: raise ValueError("bad set-up")

@pytest.fixture
def bad_tear_down():
    yield 5
    total()
    if RANK == 1: raise ValueError("bad tear-down")

@pytest.fixture(params=["a", "b"])
def letter(request):
    return request.param

@pytest.fixture
def folder(tmp_path, shared_tmp_path):
    (tmp_path / "own").touch()
    return shared_tmp_path

def test_set_up(bad_set_up): pass

def test_tear_down(bad_tear_down): assert total() == 2

def test_body_and_tear_down(bad_tear_down):
    if RANK == 1: raise LookupError("bad body")

def test_letter(letter): assert total() == 2

@pytest.mark.parametrize("number", [1, 2])
def test_numbers(number, letter): assert total() == 2

def test_folder(folder, world):
    (folder / f"{RANK}").touch()
    world.barrier()
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]

@pytest.mark.usefixtures("letter")
class TestClass:
    @pytest.fixture(autouse=True)
    def summed(self):
        self.sum = total()

    @classmethod
    def setup_class(cls): cls.set_up = total()

    def test_one(self): assert (self.sum, self.set_up) == (2, 2)

    def test_two(self): assert total() == 2
"""


def test_fixtures(run_static):
    done = run_static(FIXTURES, "--multigpu-grace", 0.5, "-v")
    bad = {
        "test_set_up": "error",
        "test_tear_down": "error",
        "test_body_and_tear_down": "failed",
    }
    assert {name: how for name, how in done.outcomes.items() if how != "passed"} == bad
    assert len(done.outcomes) == 3 + 2 + 4 + 1 + 4
    # As in a single process, a test whose tear-down fails has passed, or failed, besides.
    assert "1 failed, 12 passed, 3 errors" in done.lines[-1]
    said = done.texts["test_body_and_tear_down"]
    assert said.index("on rank 1: LookupError: bad body") < said.index("on rank 1: ValueError: bad")
    assert "on rank 1: ValueError: bad set-up" in done.texts["test_set_up"]
    assert "on rank 1: ValueError: bad tear-down" in done.texts["test_tear_down"]


SCOPES = """
import os
import pytest
import torch
import torch.distributed as dist

RANK = os.environ.get("RANK")

def log(text):
    ones = torch.ones(())
    dist.all_reduce(ones)
    with open(f"log{RANK}", "a") as file:
        print(text, int(ones), file=file)

@pytest.fixture(scope="session")
def session():
    log("session up")
    yield log
    log("session down")

@pytest.fixture(scope="module")
def module(session, request):
    log(f"{request.module.__name__} up")
    yield
    log(f"{request.module.__name__} down")

@pytest.fixture(autouse=True)
def each(module, request, session):
    session(request.node.name)
"""
TWO_FILES = {
    name: f"import pytest\n@pytest.mark.multigpu_static\ndef test_{name}(): assert 1\n"
    for name in ("test_one", "test_two")
}
LOG = """\
session up 2
test_it up 2
test_a 2
test_b 2
test_it down 2
test_one up 2
test_test_one 2
test_one down 2
test_two up 2
test_test_two 2
test_two down 2
session down 2
"""


def test_fixtures_of_modules_and_sessions(run_static, pytester):
    pytester.makeconftest(SCOPES)
    pytester.makepyfile(**TWO_FILES)
    done = run_static("def test_a(): pass\ndef test_b(): pass")
    assert set(done.outcomes.values()) == {"passed"}
    for rank in (0, 1):
        assert (pytester.path / f"log{rank}").read_text() == LOG


def test_fixtures_are_torn_down_after_a_failure(run_static, pytester):
    pytester.makeconftest(SCOPES)
    done = run_static("def test_a(): assert RANK == 0\ndef test_b(): pass")
    assert done.outcomes == {"test_a": "failed", "test_b": "passed"}
    one = ["session up 2", "test_it up 2", "test_a 2", "test_it down 2", "session down 2"]
    for rank in (0, 1):
        lines = (pytester.path / f"log{rank}").read_text().splitlines()
        assert lines == one + [line.replace("test_a", "test_b") for line in one]


XFAIL = """
xfail = pytest.mark.xfail

@xfail
def test_all(): assert total() == 3

@xfail(strict=True)
def test_strict(): assert total() == 3

@xfail
def test_one_rank(): assert RANK == 0

@xfail(strict=True)
def test_one_rank_strict():
    assert RANK == 0
    total()

@xfail(reason="not yet")
def test_unexpected_pass(): assert total() == 2

@xfail(strict=True, reason="not yet")
def test_unexpected_pass_strict(): assert total() == 2

@xfail(raises=ValueError)
def test_other_error():
    if RANK: raise LookupError("another")
    raise ValueError("the one")

@xfail(run=False)
def test_not_run(): os._exit(3)

def test_imperative():
    if RANK == 0: pytest.xfail("not on this one")
    total()

@xfail
def test_dies(): os._exit(RANK and 3)

def test_next(): assert total() == 2
"""


def test_xfail(run_static):
    done = run_static(XFAIL, "--multigpu-grace", 0.5, "-rx")
    xfailed = ("all", "strict", "one_rank", "one_rank_strict", "not_run", "imperative")
    assert done.outcomes == {
        **{f"test_{name}": "skipped" for name in xfailed},
        "test_unexpected_pass": "passed",
        "test_unexpected_pass_strict": "failed",
        "test_other_error": "failed",
        "test_dies": "failed",
        "test_next": "passed",
    }
    assert "3 failed, 1 passed, 6 xfailed, 1 xpassed" in done.lines[-1]
    assert "[XPASS(strict)] not yet" in done.texts["test_unexpected_pass_strict"]
    assert "on rank 1: LookupError: another" in done.texts["test_other_error"]
    assert "XFAIL test_it.py::test_imperative - not on this one" in done.lines


RAISES = """
from datetime import timedelta

def test_before_it_begins():
    with pytest.raises(ValueError):
        dist.all_gather([torch.ones(1)], torch.ones(1), group="no group")
    assert total() == 2

def test_in_a_group_of_its_own():
    short = dist.new_group(timeout=timedelta(seconds=0.3))
    if RANK:
        time.sleep(0.8)
    with pytest.raises(RuntimeError):
        dist.barrier(short)

def test_in_the_world():
    ones = torch.ones(())
    if RANK:
        time.sleep(0.8)
        dist.all_reduce(ones)
    else:
        work = dist.all_reduce(ones, async_op=True)
        with pytest.raises(RuntimeError):
            work.wait(timedelta(seconds=0.3))
        work.wait()
    assert ones == 2

def test_next():
    assert total() == 2
"""


def test_raises_around_a_collective(run_static):
    done = run_static(RAISES)
    assert done.outcomes == dict.fromkeys(done.outcomes, "passed")
    assert len(done.outcomes) == 4


SUBTESTS = """
def test_bad(subtests):
    for number in range(3):
        with subtests.test("part", number=number):
            assert total() == 2
            assert (RANK, number) != (1, 1)

def test_good(subtests):
    for number in range(3):
        with subtests.test(number=number):
            assert total() == 2

def test_bad_on_all(subtests):
    with subtests.test("first"):
        raise ValueError(f"bad {RANK}")
    with subtests.test("second"):
        raise ValueError("bad")
    assert total() == 2
"""


def test_subtests(run_static):
    done = run_static(SUBTESTS, "-v")
    bad = [
        line.partition(" - ")[0].replace("'", "")
        for line in done.lines
        if line.startswith("SUBFAILED")
    ]
    assert bad == [
        "SUBFAILED[part] (number=1) test_it.py::test_bad",
        "SUBFAILED[first] test_it.py::test_bad_on_all",
        "SUBFAILED[second] test_it.py::test_bad_on_all",
    ]
    headings = [line for line in done.lines if re.fullmatch("on ranks? .*:", line)]
    assert headings == ["on rank 1:", "on rank 0:", "on rank 1:", "on ranks 0-1:"]
    summary = re.sub(" in .*", "", done.lines[-1].strip("= "))
    assert summary == "5 failed, 1 passed, 5 subtests passed"
