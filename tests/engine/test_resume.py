"""A run that was stopped goes on, on any number of ranks, and ends with the same bits."""

import contextlib
import os
import random
import re
import signal
import time

import pytest

BLOCKS = 40


def stopped(said, signum):
    """The number of finished blocks in the line that a run ends with which a signal has stopped."""
    (line,) = [line for line in said.splitlines() if line.startswith("neural-prep: ")]
    found = re.fullmatch(
        rf"neural-prep: stopped by {signum.name}; start again to continue "
        rf"\((\d+) of {BLOCKS} blocks done\)",
        line,
    )
    assert found, line
    return int(found[1])


@pytest.mark.parametrize(
    ("signum", "whom"),
    [
        (signal.SIGTERM, [0]),
        (signal.SIGTERM, [1]),
        (signal.SIGTERM, [0, 1, 2]),
        (signal.SIGINT, [0]),
        (signal.SIGUSR1, [0, 1, 2]),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else str(value),
)
def test_a_signal_ends_all_ranks_and_loses_nothing(
    forks, kills, reading, long_samples, undisturbed, read_result, said_of, tmp_path, signum, whom
):
    job = reading(ranks=3, blocks=4)
    job.kill(signum, whom)
    begun = time.monotonic()
    ended = job.wait()
    assert time.monotonic() - begun < 10
    assert ended.statuses == (75, 75, 75), ended.err
    kept = kills.records_in(tmp_path / "out")
    assert max(kept.values()) == 1
    # Others end the block that they are at after rank 0 has counted.
    assert len(kept) - 3 <= stopped(ended.err, signum) <= len(kept)
    ended = forks.run(*long_samples, "--output.dir", tmp_path / "out", ranks=2)
    assert (ended.status, said_of(ended)) == (0, (len(kept), BLOCKS, 0)), ended.err
    assert read_result(tmp_path / "out") == undisturbed


def test_a_rank_that_waits_for_others_hears_a_signal(reading, kills, tmp_path):
    job = reading(ranks=2)
    job.kill(signal.SIGSTOP, [1])  # not rank 0, which serves the store that ranks talk through
    kept = -1
    while kept < (kept := len(kills.records_in(tmp_path / "out"))):
        time.sleep(0.5)  # a block takes a tenth of that
    begun = time.monotonic()
    job.kill(signal.SIGTERM, [0])
    while not job.ended[0]:
        assert time.monotonic() - begun < 5
        time.sleep(0.01)
    job.kill(signal.SIGKILL, [1])
    assert job.wait().status == 75


def victims(job, whom):
    """The processes to hit: all, the one that was started (rank 0, or torchrun), or one other."""
    others = [pid for pid in job.pids() if pid != job.process.pid]
    return {"all": [job.process.pid, *others], "first": [job.process.pid], "other": others[:1]}[
        whom
    ]


def wait_for_blocks(job, records_in, out, wanted):
    deadline = time.monotonic() + 60
    while job.process.poll() is None and sum(records_in(out).values()) < wanted:
        assert time.monotonic() < deadline, f"{wanted} blocks did not get done"
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("torchrun", "ways"),
    [
        pytest.param(
            False,
            [
                (2, signal.SIGKILL, "other", 137),
                (3, signal.SIGTERM, "first", 75),
                (2, signal.SIGKILL, "first", -9),
                (1, signal.SIGUSR1, "all", 75),
            ],
            id="launcher",
        ),
        pytest.param(
            True,
            [
                (2, signal.SIGKILL, "first", -9),
                (3, signal.SIGTERM, "first", 1),
            ],
            id="torchrun",
        ),
    ],
)
def test_a_run_that_is_stopped_over_and_over(
    start_job,
    forks,
    kills,
    long_samples,
    undisturbed,
    read_result,
    said_of,
    tmp_path,
    torchrun,
    ways,
):
    args = (*long_samples, "--output.dir", tmp_path)
    dice = random.Random(f"{torchrun}")
    before = 0
    for ranks, signum, whom, status in ways:
        job = start_job(*args, ranks=ranks, torchrun=torchrun)
        wait_for_blocks(job, kills.records_in, tmp_path, before + dice.randint(1, 4))
        for pid in victims(job, whom):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        ended = job.wait()
        assert job.none_left(), "ranks are left"
        assert ended.status == status, ended.err
        assert said_of(ended) == ((before, BLOCKS, 0) if before else None)
        kept = kills.records_in(tmp_path)
        assert (max(kept.values()), len(kept) > before) == (1, True)
        before = len(kept)
    ended = forks.run(*args, ranks=2)
    assert (ended.status, said_of(ended)) == (0, (before, BLOCKS, 0)), ended.err
    assert read_result(tmp_path) == undisturbed
    assert not (tmp_path / "journal").exists()


def test_kills_at_random_moments(kills, forks, tmp_path):
    said = kills.kill_runs(forks, tmp_path, rounds=42, seed=0)
    assert said.startswith("42 kills of ")
