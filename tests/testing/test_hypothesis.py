"""Hypothesis in ranks: the same examples everywhere, and a failure with its own, unshrunk."""

import re

HYPOTHESIS = """
from hypothesis import assume, example, given, settings, strategies as st

def log(value):
    with open(f"log{RANK}", "a") as file:
        print(value, file=file)

def agree(value):
    found = [None, None]
    dist.all_gather_object(found, value)
    assert found[0] == found[1]

@given(st.integers(), st.lists(st.floats(), max_size=3))
def test_alike(number, numbers):
    assume(number % 5)
    agree((number, str(numbers)))

@settings(deadline=1, max_examples=5, derandomize=False)
@given(st.integers())
def test_no_deadline(number):
    time.sleep(0.01)
    agree(number)

@given(number=st.integers(0, 10**6))
def test_bad(number):
    log(number)
    agree(number)
    assert number < 1000 or RANK == 0

@given(data=st.data())
def test_bad_data(data):
    length = data.draw(st.integers(0, 9), label="length")
    numbers = data.draw(st.lists(st.integers(), min_size=length, max_size=length))
    agree(numbers)
    if RANK == 1 and length > 2:
        raise ValueError(f"length {length}")

@example(number=7)
@given(number=st.integers())
def test_bad_example(number):
    assert number != 7

class TestClass:
    @given(st.booleans())
    @settings(max_examples=5)
    def test_bad(self, flag):
        agree(flag)
        assert RANK == 0 or not flag

def test_next():
    assert total() == 2
"""


def test_hypothesis(run_static, pytester):
    done = run_static(HYPOTHESIS, "--multigpu-grace", 0.5)
    assert done.failed == {"test_bad", "test_bad_data", "test_bad_example", "TestClass::test_bad"}
    assert len(done.outcomes) == 7
    assert done.seconds < 60  # nobody waits for a peer in an example that is run again
    bad = done.texts["test_bad"]
    ran = [int(line) for line in (pytester.path / "log1").read_text().splitlines()]
    (shown,) = re.findall(
        r"(?:Falsifying example|Failing test case): test_bad\(\s+number=(\d+)", bad
    )
    assert int(shown) == ran[-1] >= 1000
    assert all(number < 1000 for number in ran[:-1])  # not shrunk, nor run again
    assert "on rank 1:" in bad.splitlines()
    assert "on rank 0:" not in bad.splitlines()
    assert re.search(r"Draw 1 \(length\): [3-9]\n.*Draw 2: \[", done.texts["test_bad_data"], re.S)
    assert "explicit example: test_bad_example(" in done.texts["test_bad_example"]
    assert "on ranks 0-1:" in done.texts["test_bad_example"].splitlines()
    assert "flag=True" in done.texts["TestClass::test_bad"]
    assert not list(pytester.path.glob(".hypothesis/examples/*"))
