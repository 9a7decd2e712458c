"""One defect is one failure: whichever test fails on some rank, exactly that test fails."""

# For each kind of defect, and before, between and after collectives, another one of five tests
# has it.
FIVE_TESTS = """
WHO = {
    "rank 1": {1: "bad"},
    "rank 0": {0: "bad"},
    "differently": {0: "bad 0", 1: "bad 1"},
    "alike": {0: "bad", 1: "bad"},
}
DEFECTS = {("before", 0), ("between", 2), ("after", 4)}

def reduced(number):
    value = torch.tensor(10.0 * number + RANK)
    dist.all_reduce(value)
    return float(value)

@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("where", ["before", "between", "after"])
@pytest.mark.parametrize("who", WHO)
def test(who, where, number):
    def trouble(here):
        if RANK in WHO[who] and here == where and (where, number) in DEFECTS:
            raise ValueError(WHO[who][RANK])

    trouble("before")
    assert reduced(number) == 20 * number + 1
    trouble("between")
    assert reduced(number + 1) == 20 * number + 21
    trouble("after")
"""
SHOWN = {
    "rank 1": {"on rank 1:": "bad"},
    "rank 0": {"on rank 0:": "bad"},
    "differently": {"on rank 0:": "bad 0", "on rank 1:": "bad 1"},
    "alike": {"on ranks 0-1:": "bad"},
}
HURRIED = ("--multigpu-grace", 0.5)


def test_of_five_tests_the_one_with_the_defect_fails(run_static):
    done = run_static(FIVE_TESTS, *HURRIED)
    defects = ("before-0", "between-2", "after-4")
    assert done.failed == {f"test[{who}-{defect}]" for who in SHOWN for defect in defects}
    assert list(done.outcomes.values()).count("passed") == 60 - 12
    for name in done.failed:
        shown = SHOWN[name.removeprefix("test[").partition("-")[0]]
        lines = done.texts[name].splitlines()
        headings = [line for line in lines if line.startswith("on rank") and line.endswith(":")]
        errors = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
        said = dict(zip(headings, errors, strict=True))  # whoever failed first comes first
        assert said == {heading: f"ValueError: {text}" for heading, text in shown.items()}, name


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
