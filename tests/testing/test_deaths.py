"""A rank that dies fails its test, which names it and its last words; the next test passes."""

FIXTURES = """
@pytest.fixture
def dies_before():
    if RANK == 1:
        os._exit(5)

@pytest.fixture
def dies_after():
    yield
    if RANK == 1:
        os._exit(6)
"""
# "its last lines" come from stdout and from C, below Python's streams.
DEATHS = {
    "exits": (
        """
        if RANK == 1:
            print("last words")
            os.write(2, b"words of C++\\n")
            os._exit(3)
        total()
        """,
        [
            "rank 1 ended with exit code 3; its last lines:",
            "    last words\n",
            "    words of C++\n",
            "rank 0: ",
        ],
    ),
    "all_exit": (
        "os._exit(3)",
        ["rank 0 ended with exit code 3", "rank 1 ended with exit code 3"],
    ),
    "rank_0_exits": (
        """
        if RANK == 0:
            print("last words of rank 0", flush=True)
            os._exit(4)
        """,
        ["rank 0 ended with exit code 4; its last lines:", "    last words of rank 0"],
    ),
    "is_killed": (
        "if RANK == 1: os.kill(os.getpid(), signal.SIGKILL)",
        ["rank 1 was killed by SIGKILL"],
    ),
    "is_terminated": (
        """
        if RANK == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        total()
        """,
        ["rank 0 was killed by SIGTERM"],
    ),
    "segfaults": (
        "if RANK == 1: ctypes.string_at(0)",
        ["rank 1 was killed by SIGSEGV", "    Current thread 0x", "in test_segfaults"],
    ),
    "aborts": ("if RANK == 1: os.abort()", ["rank 1 was killed by SIGABRT"]),
    "set_up(dies_before)": ("total()", ["rank 1 ended with exit code 5"]),
    "tear_down(dies_after)": ("total()", ["rank 1 ended with exit code 6"]),
    "closes_its_files": (
        "if RANK == 1: os.closerange(3, 4096); os._exit(7)",
        ["rank 1 ended with exit code 7"],
    ),
    "forks": (
        """
        if RANK == 1 and os.fork() == 0:
            time.sleep(1000)  # holds copies of the rank's files
        if RANK == 1:
            os._exit(8)
        """,
        ["rank 1 ended with exit code 8"],
    ),
}
# What ends a rank's session in its own words.
LEAVINGS = {
    "sys_exit": ("if RANK == 1: sys.exit(2)", ["on rank 1:", "SystemExit: 2"]),
    "interrupts": (
        "if RANK == 1: raise KeyboardInterrupt",
        ["rank 1 ended with exit code 2", "test_it.py:23: KeyboardInterrupt"],
    ),
    "signals": (
        "if RANK == 1: os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
        ["rank 1 ended with exit code 2", "test_it.py:28: KeyboardInterrupt"],
    ),
    "destroys_the_group": (
        "if RANK == 1: dist.destroy_process_group()",
        ["different points: the world's process group is gone on rank 1 alone"],
    ),
}


def test_deaths(run_cases):
    done = run_cases(DEATHS, "--multigpu-grace", 0.5, before=FIXTURES)
    assert done.seconds < 60  # no test waits for its timeout


def test_leavings(run_cases):
    run_cases(LEAVINGS, "--multigpu-grace", 0.5)


def test_dynamic_tests_die(run_tests):
    done = run_tests(
        """
        import os
        import pytest

        @pytest.mark.multigpu_dynamic(world_size=[1, 3])
        def test_exits(world):
            if world.rank == world.size - 1:
                os._exit(3)
            world.barrier()

        @pytest.mark.multigpu_dynamic(world_size=[1, 3])
        def test_next(world):
            world.barrier()
        """,
        "--multigpu-dynamic",
    )
    assert done.failed == {"test_exits[ranks=1]", "test_exits[ranks=3]"}
    assert list(done.outcomes.values()).count("passed") == 2
    for size in (1, 3):
        text = done.texts[f"test_exits[ranks={size}]"]
        assert text.startswith(f"rank {size - 1} ended with exit code 3\n")


def test_pytest_exit_ends_the_run(run_static):
    source = """
        def test_a():
            total()

        def test_b():
            pytest.exit("enough", 9)

        def test_c():
            total()
        """
    done = run_static(source)
    assert (done.status, done.outcomes) == (9, {"test_a": "passed"})
    assert "_pytest.outcomes.Exit: enough" in done.out


def test_a_forked_child_speaks_for_nobody(run_static):
    source = """
        @pytest.mark.multigpu_static(timeout=3)
        def test_forks():
            pid = os.fork()
            if pid == 0:
                return
            os.waitpid(pid, 0)

        def test_next():
            assert total() == 2
        """
    done = run_static(source)
    assert done.outcomes == {"test_forks": "failed", "test_next": "passed"}
    assert "in test_forks" in done.texts["test_forks"]


def test_what_a_dead_rank_wrote_is_shown_once(run_static):
    source = """
        @pytest.fixture
        def speaking():
            print(f"set up {RANK}")

        def test_dies(speaking):
            if RANK == 1:
                os._exit(3)
            total()
        """
    done = run_static(source)
    for rank in range(2):
        assert done.out.count(f"set up {rank}\n") == 1
