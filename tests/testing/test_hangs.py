"""A test that hangs fails after its time limit, with every rank's stack; the next one passes."""

SLEEP = """
import re

def sleep_for_ever():
    time.sleep(1000)

@pytest.fixture
def stuck_before():
    if RANK == 1:
        sleep_for_ever()

@pytest.fixture
def stuck_after():
    yield
    if RANK == 1:
        sleep_for_ever()
"""
ONE_SLEEPS = ["rank 0 had finished", "rank 1 was still running at test_it.py:"]
HANGS = {
    "sleeps": ("if RANK == 1: sleep_for_ever()", [*ONE_SLEEPS, "in sleep_for_ever"]),
    "all_sleep": (
        "sleep_for_ever()",
        [
            "rank 0 was still running at test_it.py:20 in sleep_for_ever",
            "rank 1 was still running at test_it.py:20 in sleep_for_ever",
        ],
    ),
    "unpaired": (
        "if RANK == 0: total()",
        [
            "rank 0 was still running at test_it.py:12 in total, in all_reduce",
            "rank 1 had finished",
        ],
    ),
    "unpaired_and_asleep": (
        "total() if RANK == 0 else sleep_for_ever()",
        [
            "rank 0 was still running at test_it.py:12 in total, in all_reduce",
            "rank 1 was still running at test_it.py:20 in sleep_for_ever",
            "    dist.all_reduce(ones)",
            "    time.sleep(1000)",
        ],
    ),
    "receives": (
        "if RANK == 0: dist.recv(torch.ones(()), 1)",
        ["rank 0 was still running at test_it.py:", "in recv", "rank 1 had finished"],
    ),
    "set_up(stuck_before)": ("pass", ["in sleep_for_ever", "in stuck_before"]),
    "tear_down(stuck_after)": ("pass", ["in sleep_for_ever", "in stuck_after"]),
    "keeps_the_lock": (
        "if RANK == 1: sum(range(10**13))",
        [
            "rank 0 had finished",
            "rank 1 was still running at code that keeps Python's lock",
            "in test_keeps_the_lock",
        ],
    ),
    "matches_a_pattern": (
        "if RANK == 1: re.fullmatch('(a|aa)+b', 'a' * 99)",
        ["rank 1 was still running", "in test_matches_a_pattern"],
    ),
    "catches_everything": (
        """
        while RANK == 1:
            try:
                sleep_for_ever()
            except BaseException:
                pass
        """,
        [*ONE_SLEEPS, "in sleep_for_ever"],
    ),
}


def test_hangs(run_cases):
    done = run_cases(HANGS, "--multigpu-timeout", 1, before=SLEEP)
    for name in done.failed:
        assert "timed out after 1 s: rank 0 " in done.texts[name].splitlines()[0], name
    assert done.seconds < len(HANGS) * 6 + 20  # each its timeout, its stacks and a new world


def test_time_limits(run_static):
    done = run_static(
        """
        def test_option(): time.sleep(1000)

        @pytest.mark.multigpu_static(timeout=0.5)
        def test_marker(): time.sleep(1000)

        @pytest.mark.timeout(0.7)
        def test_marker_of_pytest_timeout(): time.sleep(1000)

        @pytest.mark.multigpu_static(timeout=20)
        def test_more():
            time.sleep(1.5)
            assert total() == 2
        """,
        *("--multigpu-timeout", 1),
    )
    said = {name: text.partition(":")[0] for name, text in done.texts.items()}
    assert said == {
        "test_option": "timed out after 1 s",
        "test_marker": "timed out after 0.5 s",
        "test_marker_of_pytest_timeout": "timed out after 0.7 s",
        "test_more": "",
    }


def test_a_dynamic_test_hangs(run_tests):
    done = run_tests(
        """
        import time
        import pytest

        @pytest.mark.multigpu_dynamic(world_size=[1, 2, 3], timeout=1)
        def test_sleeps(world):
            if world.rank == world.size - 1:
                time.sleep(1000)
            world.barrier()

        @pytest.mark.multigpu_dynamic(world_size=3)
        def test_next(world):
            world.barrier()
        """,
        "--multigpu-dynamic",
    )
    for size in (1, 2, 3):
        text = done.texts[f"test_sleeps[ranks={size}]"]
        assert text.startswith("timed out after 1 s: rank 0 was still running at test_it.py:"), size
        assert text.count("was still running at test_it.py:") == 2 * size
    assert done.outcomes["test_next[ranks=3]"] == "passed"
