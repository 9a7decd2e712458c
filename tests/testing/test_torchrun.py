"""Static tests on ranks that torchrun has started: one report, and a run that always ends."""

import re
import subprocess
import sys
import textwrap
import time

import pytest

TORCHRUN = ("-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
HEADER = """\
import os, re, signal, time
import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.multigpu_static
RANK = int(os.environ["RANK"])


def total():
    ones = torch.ones(())
    dist.all_reduce(ones)
    return int(ones)


"""
MIXED = """
def test_a(world):
    assert total() == world.size == 2

def test_rank_1_fails_before(world):
    assert RANK == 0
    total()

def test_b():
    print("said by b")
    assert total() == 2

def test_rank_0_fails_between():
    total()
    assert RANK == 1, "not here"
    total()

def test_both_fail():
    found = total()
    assert found == 7

def test_leaves_another_point():
    if RANK == 0:
        dist.all_reduce(torch.ones(1), async_op=True)

def test_skips_on_one():
    if RANK == 1:
        pytest.skip("not on one")

@pytest.mark.skipif(True, reason="nowhere")
def test_skips_everywhere():
    total()

def test_sleeps_after_a_failure():
    assert RANK == 1
    time.sleep(50)

@pytest.mark.xfail(strict=True)
def test_expected_on_one():
    assert RANK == 0

class TestOfClass:
    @pytest.fixture(scope="class")
    def sum_of_ranks(self, world):
        yield total()
        total()

    def test_c(self, sum_of_ranks):
        assert sum_of_ranks == 2

    def test_d(self, sum_of_ranks, distributed_mesh, shared_tmp_path, world):
        (shared_tmp_path / f"{RANK}").touch()
        world.barrier()
        assert len(list(shared_tmp_path.iterdir())) == distributed_mesh.size() == 2

def test_subtests(subtests):
    for part in range(2):
        with subtests.test(part=part):
            assert part == 0 or RANK == 0
"""


class Launched:
    """What torchrun's pytest has written, and how it ended."""

    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    def outcomes(self):
        lines = re.findall(
            r"^test_it\.py::(\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)", self.out, re.M
        )
        return dict(lines)

    def section(self, name):
        return re.split(r"^_{3,} .* _{3,}$", self.out.split(f" {name} ___", 1)[1], flags=re.M)[0]


@pytest.fixture
def launch(pytester, traces):
    """Runs a file of static tests under torchrun."""

    def run(source, *args, ranks=2, timeout=60, options=lambda rank: ()):
        pytester.makepyfile(test_it=HEADER + textwrap.dedent(source))
        command = [sys.executable, *TORCHRUN, "--nproc-per-node", str(ranks)]
        command += ["-m", "pytest", "-p", "no:zarr"]  # zarr's plugin takes a second to import
        command += ["--multigpu-static", "-v", *args]
        begun = time.monotonic()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # The shell's process becomes the launcher's.
        shell = ["sh", "-c", 'LAUNCHER=$$ exec "$@"', "sh", *command]
        process = subprocess.Popen(shell, cwd=pytester.path, **pipes)
        out, err = process.communicate(timeout=timeout)
        seconds = time.monotonic() - begun
        assert traces.none_left(), "processes are left"
        return Launched(process.returncode, out, err, seconds)

    return run


def test_each_defect_is_one_failure(launch, pytester):
    ended = launch(MIXED, "--multigpu-timeout=20", "--junitxml=junit.xml", "--durations=3")
    assert ended.outcomes() == {
        "test_a": "PASSED",
        "test_rank_1_fails_before": "FAILED",
        "test_b": "PASSED",
        "test_rank_0_fails_between": "FAILED",
        "test_both_fail": "FAILED",
        "test_leaves_another_point": "FAILED",
        "test_skips_on_one": "FAILED",
        "test_skips_everywhere": "SKIPPED",
        "test_sleeps_after_a_failure": "FAILED",
        "test_expected_on_one": "XFAIL",
        "TestOfClass::test_c": "PASSED",
        "TestOfClass::test_d": "PASSED",
        "test_subtests": "FAILED",
    }
    first = ended.section("test_rank_1_fails_before")
    assert "on rank 1:" in first
    assert "rank 0 was still running at test_it.py:12 in total, in all_reduce 2 s later" in first
    assert "not here" in ended.section("test_rank_0_fails_between")
    assert ended.section("test_both_fail").count("assert found == 7") == 1
    assert "on ranks 0-1:" in ended.section("test_both_fail")
    assert "collectives on rank 0" in ended.section("test_leaves_another_point")
    assert "rank 1: skipped (not on one)" in ended.section("test_skips_on_one")
    assert "slowest 3 durations" in ended.out
    assert (pytester.path / "junit.xml").read_text().count("<testcase") == 13
    assert ended.status == 1


def test_output_and_one_report(launch, pytester):
    source = """
        import warnings

        def test_fails():
            print(f"printed by {RANK}")
            os.write(2, f"written by {RANK}\\n".encode())
            warnings.warn("on all ranks")
            assert total() == 3

        def test_passes():
            print(f"quiet {RANK}")
        """
    ended = launch(source)
    assert ended.outcomes() == {"test_fails": "FAILED", "test_passes": "PASSED"}
    failed = ended.section("test_fails")
    for said in ("printed by 0", "printed by 1", "written by 0", "written by 1"):
        assert failed.count(said) == 1
    assert re.search(r"Captured stdout call, rank 1 -+\nprinted by 1", failed)
    assert "quiet" not in ended.out
    assert ended.out.count("UserWarning: on all ranks") == 1
    assert ended.out.count("test session starts") == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os._exit(3) if RANK == 1 else total()", "rank 1 is gone"),
        ("os._exit(3) if RANK == 0 else total()", "rank 0 ended with exit code 3"),
        ("time.sleep(99) if RANK == 0 else total()", r"rank 0 was still running at .* in test_b"),
        ("time.sleep(99) if RANK == 1 else total()", r"rank 1 was still running at .* in test_b"),
        ("RANK == 0 and dist.barrier()", r"rank 0 was still .* in test_b, in barrier"),
        (
            "RANK == 0 and dist.distributed_c10d._get_default_store().wait(['never'])",
            r"rank 0 was still .* in test_b",
        ),
        ("RANK == 0 and re.match(r'(a+)+$', 'a' * 40 + 'b')", "rank 0 was still running"),
    ],
    ids=[
        "exit",
        "rank 0 exits",
        "rank 0 sleeps",
        "rank 1 sleeps",
        "unpaired collective",
        "deaf",
        "lock held",
    ],
)
def test_a_rank_lost_ends_the_run(launch, body, said):
    source = f"""
        def test_a():
            assert total() == 2

        def test_b():
            {body}

        def test_c():
            total()

        def test_d():
            total()
        """
    ended = launch(source, "--multigpu-timeout=3")
    assert ended.outcomes() == {"test_a": "PASSED", "test_b": "FAILED"}
    assert re.search(said, ended.section("test_b"))
    assert "so 2 tests did not run" in ended.out
    left = re.findall(r"^  (test_it\S+)$", ended.out, re.M)
    assert left == ["test_it.py::test_c", "test_it.py::test_d"]
    assert ended.status == 1
    assert ended.seconds < 30


def test_ranks_that_collect_different_tests(launch):
    source = """
        @pytest.mark.parametrize("value", [RANK, "both"])
        def test_values(value):
            total()
        """
    ended = launch(source)
    assert ended.outcomes() == {"test_values[0]": "ERROR", "test_values[both]": "PASSED"}
    assert "rank 0 collected it too" in ended.out
    assert "rank 1 did not collect it; its tests: test_it.py::test_values[1]" in ended.out
    assert "test_values[1]: collected on rank 1" in ended.out
    assert ended.status == 1


def test_a_test_that_ends_the_run(launch):
    source = """
        def test_a():
            total()

        def test_b():
            pytest.exit("enough", 9)

        def test_c():
            total()
        """
    ended = launch(source)
    assert ended.outcomes() == {"test_a": "PASSED"}
    assert "Exit: enough" in ended.out


def test_a_signal_to_the_launcher(launch):
    source = """
        def test_a():
            total()

        def test_b():
            if RANK == 0:
                os.kill(int(os.environ["LAUNCHER"]), signal.SIGTERM)
            time.sleep(60)

        def test_c():
            total()
        """
    ended = launch(source)
    assert ended.outcomes() == {"test_a": "PASSED", "test_b": "ERROR"}
    assert "stopped by SIGTERM" in ended.out
    assert "so 1 test did not run" in ended.out


@pytest.mark.parametrize("flag", ["--multigpu-dynamic", "--multigpu-all"])
def test_other_kinds_are_refused(pytester, traces, flag):
    pytester.makepyfile("def test_a(): pass")
    command = [sys.executable, *TORCHRUN, "--nproc-per-node", "2", "-m", "pytest", flag]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=pytester.path, timeout=60)
    assert ended.returncode == 1  # torchrun's own
    assert "run `pytest --multigpu-dynamic` (or --multigpu-all) without torchrun" in ended.stderr
