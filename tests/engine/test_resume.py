"""A run that was stopped goes on, on any number of ranks, and ends with the same bits."""

import contextlib
import os
import random
import re
import signal
import time

import pytest

ARGS = ("--data.split", "train", "--data.block_bytes", "1", "--model.lags", "[1,2,3,5,8]")
BLOCKS = 24


@pytest.fixture(scope="module")
def store(write_samples, tmp_path_factory):
    """A store of 24 blocks that take about a second."""
    return write_samples(
        tmp_path_factory.mktemp("resume") / "store", BLOCKS, steps=60, grid=(50, 60), features=9
    )[0]


@pytest.fixture(scope="module")
def undisturbed(store, tmp_path_factory, module_job, read_result):
    """The result of a run that nobody stops."""
    out = tmp_path_factory.mktemp("undisturbed")
    done = module_job("--data.path", store, *ARGS, "--output.dir", out).wait()
    assert done.status == 0, done.err
    assert not (out / "journal").exists()
    return read_result(out)


def blocks_in(folder):
    """Finished blocks in a journal, by the size of its files alone."""
    size = 24 + 8 * 6 * 9 * 8  # a frame, and a record of six kinds and nine variables
    contents = [path.read_bytes() for path in folder.glob("*.blocks")]
    return sum((len(content) - content.find(b"\n") - 1) // size for content in contents)


def wait_for_blocks(job, folder, wanted):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if folder.exists() and blocks_in(folder) >= wanted:
            return
        if job.process.poll() is not None:
            return
        time.sleep(0.005)
    pytest.fail(f"{wanted} blocks did not get done")


def resumed(done):
    found = re.search(r"^resuming: (\d+) of (\d+) blocks done$", done.err, re.M)
    return (0, BLOCKS) if found is None else (int(found[1]), int(found[2]))


@pytest.mark.parametrize(
    ("signum", "whom", "status"),
    [
        (signal.SIGKILL, "all", -9),
        (signal.SIGKILL, "rank 1", 137),
        (signal.SIGKILL, "rank 0", -9),
        (signal.SIGTERM, "rank 0", 75),
        (signal.SIGUSR1, "all", 75),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else str(value),
)
def test_a_stopped_run_goes_on(
    start_job, store, undisturbed, read_result, tmp_path, signum, whom, status
):
    args = ("--data.path", store, *ARGS, "--output.dir", tmp_path)
    generator = random.Random(f"{signum} {whom}")
    before = 0
    for ranks in (2, 3, 1, 2):
        job = start_job(*args, ranks=ranks)
        wait_for_blocks(job, tmp_path / "journal", before + generator.randint(1, 4))
        pids = job.pids()
        first = [job.process.pid]
        others = [pid for pid in pids if pid not in first]
        chosen = {"all": pids, "rank 0": first, "rank 1": others[:1] or first}[whom]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        ended = job.wait()
        assert job.none_left()
        assert ended.status in (status, -signum, 0)
        if ended.status == 0:
            break
        done, blocks = resumed(ended)
        assert (done >= before, blocks) == (True, BLOCKS)
        before = blocks_in(tmp_path / "journal")
    ended = start_job(*args, ranks=2).wait()
    assert ended.status == 0, ended.err
    assert read_result(tmp_path) == undisturbed
    assert not (tmp_path / "journal").exists()
