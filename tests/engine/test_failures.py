"""A rank that fails ends the job: its error once, its status, no process left, old files whole."""

import os
import signal
import time

import numpy as np
import pytest

ARGS = ("--data.split", "train", "--data.block_bytes", "1", "--data.piece_steps", "1")
SECONDS = 15.0  # in which the job ends, start-up apart
OLD = '{"schema": "an older result"}'


def spoil(samples, step=-1):
    """Puts an infinity into these samples, at one step."""

    def apply(number, values):
        if number in samples:
            values[step, 1, 2, 1] = np.inf

    return apply


@pytest.mark.parametrize("torchrun", [False, True], ids=["launcher", "torchrun"])
@pytest.mark.parametrize("sample", [0, 7], ids=["rank 0", "rank 1"])
def test_a_rank_that_raises(start_job, start_up, write_samples, tmp_path, sample, torchrun):
    root, _ = write_samples(tmp_path / "store", 8, spoil=spoil([sample]))
    out = tmp_path / "out"
    out.mkdir()
    (out / "statistics.json").write_text(OLD)
    args = ("--data.path", root, *ARGS, "--output.dir", out)
    job = start_job(*args, ranks=2, torchrun=torchrun)
    done = job.wait()
    assert done.seconds < start_up + SECONDS
    assert done.status == (1 if torchrun else 2)  # torchrun has a status of its own
    assert done.err.count("feature_1 is infinite in") == 1
    day, member = divmod(sample, 4)
    assert f"nwp_202201{day + 1:02d}00_mbr{member:03d}.npy, step 12" in done.err
    assert "data.infinite: missing" in done.err
    if not torchrun:  # which prints a traceback of its own
        assert "Traceback" not in done.err
    assert job.none_left()
    assert (out / "statistics.json").read_text() == OLD
    assert {path.name for path in out.iterdir()} == {"statistics.json", "journal"}


@pytest.mark.parametrize(
    ("sample", "torchrun"),
    [(7, False), (3, False), (3, True)],
    ids=["rank 1", "rank 0", "rank 0 torchrun"],
)
def test_a_rank_that_raises_while_its_peer_waits(
    start_job, write_samples, tmp_path, sample, torchrun
):
    # The peer's samples are read in a moment; the failing rank masks a missing value in each of its
    # many steps and meets the infinity last.
    def slow(number, values):
        if number // 4 == sample // 4:
            values[:, 0, 0] = np.nan
        spoil([sample])(number, values)

    root, _ = write_samples(tmp_path / "store", 8, steps=60, grid=(200, 300), spoil=slow)
    lags = "[1,2,3,4,5,6,7,8]"
    args = ("--data.path", root, *ARGS, "--model.lags", lags, "--output.dir", tmp_path / "out")
    job = start_job(*args, ranks=2, torchrun=torchrun)
    done = job.wait()
    assert (done.status, done.err.count("is infinite in")) == (1 if torchrun else 2, 1)
    assert job.none_left()


def test_both_ranks_raise_and_one_is_heard(start_job, write_samples, tmp_path):
    root, _ = write_samples(tmp_path / "store", 8, spoil=spoil([0, 4], step=0))
    job = start_job("--data.path", root, *ARGS, "--output.dir", tmp_path / "out", ranks=2)
    done = job.wait()
    assert (done.status, done.err.count("is infinite in")) == (2, 1)
    assert job.none_left()


@pytest.fixture
def long_job(start_long_job):
    """A job of two ranks that is reading, for long enough to be disturbed."""
    return start_long_job()


@pytest.fixture(scope="module")
def long_store(write_samples, tmp_path_factory):
    """A store that takes a few seconds to read, with its many steps and lags."""
    folder = tmp_path_factory.mktemp("long")
    return write_samples(folder / "store", 12, steps=300, grid=(60, 100), features=17)[0]


@pytest.fixture
def start_long_job(start_job, long_store, tmp_path):
    """Starts such a job."""
    root = long_store
    lags = str(list(range(1, 30)))
    args = ("--data.path", root, *ARGS, "--model.lags", lags, "--output.dir", tmp_path / "out")

    def start(ranks=2, *, wait=wait_until_reading, **how):
        job = start_job(*args, ranks=ranks, **how)
        wait(job, root, ranks)
        return job

    return start


def wait_until_reading(job, root, ranks):
    wait_for_ranks(job, root, ranks, wanted=lambda pid: str(root) in read_maps(pid))


def wait_for_ranks(job, root, ranks, wanted=lambda pid: True):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if len([pid for pid in job.pids() if wanted(pid)]) == ranks:
            return
        assert job.process.poll() is None, job.process.stderr.read()
        time.sleep(0.05)
    pytest.fail("the ranks did not start to read")


def read_maps(pid):
    try:
        with open(f"/proc/{pid}/maps") as maps:
            return maps.read()
    except OSError:
        return ""


def child_of(job):
    return next(pid for pid in job.pids() if pid != job.process.pid)


@pytest.mark.parametrize(
    ("victim", "signum", "status", "said"),
    [
        ("rank 1", signal.SIGKILL, 128 + signal.SIGKILL, "rank 1 was killed by SIGKILL"),
        ("rank 0", signal.SIGKILL, -signal.SIGKILL, ""),
        ("rank 1", signal.SIGTERM, 75, "stopped by SIGTERM"),
        ("rank 0", signal.SIGTERM, 75, "stopped by SIGTERM"),
        ("rank 0", signal.SIGINT, 75, "stopped by SIGINT"),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else str(value),
)
def test_a_signal_ends_all_ranks(long_job, tmp_path, victim, signum, status, said):
    begun = time.monotonic()
    os.kill(long_job.process.pid if victim == "rank 0" else child_of(long_job), signum)
    done = long_job.wait(timeout=SECONDS)
    assert time.monotonic() - begun < SECONDS
    assert done.status == status
    lines = said_by(done)
    assert len(lines) == 1 or (len(lines) == 0 and not said)
    assert said in done.err
    assert "Traceback" not in done.err
    assert long_job.none_left()
    assert not (tmp_path / "out" / "statistics.json").exists()


def test_one_death_among_three_is_one_line(start_long_job):
    job = start_long_job(ranks=3)
    os.kill(child_of(job), signal.SIGKILL)
    done = job.wait(timeout=SECONDS)
    assert done.status == 128 + signal.SIGKILL
    (line,) = said_by(done)
    assert "was killed by SIGKILL" in line
    assert job.none_left()


def test_a_death_under_torchrun(start_long_job):
    job = start_long_job(torchrun=True)
    ranks = [pid for pid in job.pids() if "neural_prep.cli" in command_of(pid)]
    os.kill(max(ranks), signal.SIGKILL)
    done = job.wait(timeout=SECONDS)
    assert done.status == 1
    assert job.none_left()


def command_of(pid):
    with open(f"/proc/{pid}/cmdline") as command:
        parts = command.read().split("\0")
    return "" if "torch.distributed.run" in parts else " ".join(parts)


def said_by(done):
    return [line for line in done.err.splitlines() if line.startswith("neural-prep: ")]


@pytest.mark.parametrize("delay", [0.0, 2.5, 3.5, 4.5])
@pytest.mark.parametrize("victims", ["all ranks", "rank 0", "rank 1"])
def test_a_signal_at_any_time_is_one_line(start_long_job, victims, delay):
    job = start_long_job(wait=wait_for_ranks)
    time.sleep(delay)
    pids = {"rank 0": [job.process.pid], "rank 1": [child_of(job)], "all ranks": job.pids()}
    for pid in pids[victims]:  # all at once as Ctrl-C in a terminal does, and srun
        os.kill(pid, signal.SIGTERM)
    done = job.wait(timeout=SECONDS)
    assert done.status == 75
    (line,) = said_by(done)
    rank = "rank 1 was " if victims == "rank 1" and "rank 1" in line else ""
    assert line.startswith(f"neural-prep: {rank}stopped by")
    assert "Traceback" not in done.err
    assert job.none_left()
