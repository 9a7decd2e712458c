"""One defect is one failure: whichever test fails on some rank, exactly that test fails."""

import pytest

# The defect is in another one of the five tests before, between and after their collectives.
FIVE_TESTS = """
DEFECTS = {("before", 0), ("between", 2), ("after", 4)}

def reduced(number):
    value = torch.tensor(10.0 * number + RANK)
    dist.all_reduce(value)
    return float(value)

@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("where", ["before", "between", "after"])
def test(where, number):
    def trouble(here):
        if RANK in WHO and here == where and (where, number) in DEFECTS:
            raise ValueError(MESSAGE)

    trouble("before")
    assert reduced(number) == 20 * number + 1
    trouble("between")
    assert reduced(number + 1) == 20 * number + 21
    trouble("after")
"""
HURRIED = ("--multigpu-grace", 0.5)
DEFECTS = {"test[before-0]", "test[between-2]", "test[after-4]"}


@pytest.mark.parametrize(
    ("who", "message", "shown"),
    [
        ([1], "'bad'", {"on rank 1:": "bad"}),
        ([0], "'bad'", {"on rank 0:": "bad"}),
        ([0, 1], "f'bad {RANK}'", {"on rank 0:": "bad 0", "on rank 1:": "bad 1"}),
        ([0, 1], "'bad'", {"on ranks 0-1:": "bad"}),
    ],
    ids=["rank 1", "rank 0", "both, differently", "both, alike"],
)
def test_of_five_tests_the_one_with_the_defect_fails(run_static, who, message, shown):
    done = run_static(f"WHO, MESSAGE = {who}, {message}\n{FIVE_TESTS}", *HURRIED)
    assert done.status == 1
    assert set(done.outcomes.values()) == {"passed", "failed"}
    assert (len(done.outcomes), done.failed) == (15, DEFECTS)
    for name in DEFECTS:
        lines = done.texts[name].splitlines()
        assert [
            line for line in lines if line.startswith("on rank") and line.endswith(":")
        ] == list(shown)
        errors = [line for line in lines if line.startswith("E ")]
        assert errors == [f"E           ValueError: {text}" for text in shown.values()]


def test_ranks_get_two_seconds_once_one_has_failed(run_static):
    done = run_static("""
        def test_waits():
            assert RANK, "rank 0 is bad"
            total()

        def test_comes_in_time():
            assert RANK, "rank 0 is bad"
            time.sleep(1)
            assert not RANK, "rank 1 is bad, too"

        def test_next():
            assert total() == 2
        """)
    assert done.failed == {"test_waits", "test_comes_in_time"}
    waits = done.texts["test_waits"].splitlines()
    assert waits[0] == "on rank 0: AssertionError: rank 0 is bad"
    assert "rank 1 was still running at test_it.py:12 in total, in all_reduce 2 s later" in waits
    comes = done.texts["test_comes_in_time"]
    assert "2 s later" not in comes
    assert comes.index("on rank 0:\n") < comes.index("on rank 1:\n")  # the first error comes first
    assert "AssertionError: rank 1 is bad, too" in comes
    assert done.seconds < 15  # neither the timeout of a test nor that of a collective


def test_what_follows_is_one_line(run_static):
    done = run_static(
        """
        def test_error_of_the_peer():
            if RANK == 1:
                raise LookupError("the cause")
            time.sleep(0.2)
            raise RuntimeError("[gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:5")

        def test_nothing_but_that():
            if RANK == 0:
                raise RuntimeError("Connection closed by peer")

        def test_next():
            assert total() == 2
        """,
        *HURRIED,
    )
    assert done.failed == {"test_error_of_the_peer", "test_nothing_but_that"}
    text = done.texts["test_error_of_the_peer"]
    assert text.startswith("on rank 1: LookupError: the cause")
    follows = "rank 0: RuntimeError: [gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:5"
    assert text.splitlines()[-1] == follows
    assert text.count("Connection closed") == 1
    alone = done.texts["test_nothing_but_that"]
    assert alone.startswith("on rank 0: RuntimeError: Connection closed by peer")


def test_equal_tracebacks_are_shown_once(run_static):
    done = run_static(
        """
        def test_all():
            assert total() == 5

        def test_even():
            if RANK % 2 == 0:
                raise ValueError("even")
            total()

        def test_next():
            assert total() == 4
        """,
        *HURRIED,
        ranks=4,
    )
    assert done.failed == {"test_all", "test_even"}
    assert done.texts["test_all"].count("assert total() == 5") == 1
    assert "on ranks 0-3:" in done.texts["test_all"].splitlines()
    assert done.texts["test_even"].count("E       ") == 1
    assert "on ranks 0, 2:" in done.texts["test_even"].splitlines()
    assert "rank 1 was still running" in done.texts["test_even"]
    assert "rank 3 was still running" in done.texts["test_even"]
