"""Statistics as Slurm's jobs: the same bits; stopped, queued again, ended when a task is lost."""

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "slurm/stats.sbatch"
STEPS = (25_000, 400, 400, 400)  # one block each: rank 1 of two has the last three, and waits
BLOCK = 40 + 8 * 2 * 3 * 8  # bytes in the journal: a frame, two kinds of three variables
SLOWLY = ("--data.piece_steps", 1)
SECONDS = 15.0  # in which a job ends that has lost a task


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of four blocks, one of them long."""
    root = tmp_path_factory.mktemp("store")
    write_store(root, STEPS)
    return root


def write_store(root, samples, *, spoil=False):
    """Writes samples of so many steps, the first with an infinity."""
    folder = root / "samples" / "train"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for day, steps in enumerate(samples, start=1):
        values = generator.normal(1e5, 3.0, (steps, 4, 5, 3)).astype(np.float32)
        if spoil and day == 1:
            values[-1, 0, 0, 1] = np.inf
        np.save(folder / f"nwp_202201{day:02d}00_mbr000.npy", values)


@pytest.fixture(scope="module")
def arguments(store):
    """What all runs have in common."""
    return ("--data.path", store, "--data.split", "train", "--data.block_bytes", 1)


@pytest.fixture(scope="module")
def one_process(cluster, arguments, tmp_path_factory):
    """Where the result of one process is, outside Slurm."""
    out = tmp_path_factory.mktemp("one")
    done = cluster.call(*command(*arguments, "--output.dir", out))
    assert done.status == 0, done.said
    return out


def command(*args):
    return ("bash", "-c", '. .venv/bin/activate; exec neural-prep stats "$@"', "neural-prep", *args)


def wait_for_blocks(job, folder, wanted):
    """Waits until so many blocks are in a journal, by its files' size alone."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        contents = [path.read_bytes() for path in folder.glob("*.blocks")]
        blocks = sum((len(text) - text.find(b"\n") - 1) // BLOCK for text in contents)
        if blocks >= wanted:
            return
        time.sleep(0.02)
    pytest.fail(f"{wanted} blocks did not get done: {job.look()}")


def wait_for_words(job, words):
    """Waits until a job has said something."""
    deadline = time.monotonic() + 60
    while words not in job.look().said:
        assert time.monotonic() < deadline, job.look()
        time.sleep(0.1)


def said_by(ended):
    return re.findall(r"^neural-prep: .*$", ended.said, re.M)


def test_two_tasks_on_each_of_two_nodes(cluster, arguments, one_process, read_result, tmp_path):
    done = cluster.submit(SCRIPT, *arguments, "--output.dir", tmp_path, tasks=2).wait()
    assert (done.state, done.status, done.restarts) == ("COMPLETED", 0, 0), done
    assert "4 blocks on 4 ranks" in done.said
    assert read_result(tmp_path) == read_result(one_process)


@pytest.mark.parametrize(
    ("step", "ranks"),
    [
        # Slurm goes on to tell tasks that there are two on each node.
        (("srun", "--nodes=2", "--ntasks=2"), ("--trainer.num_nodes", 2)),
        ((), ("--trainer.devices", 2)),
    ],
    ids=["a task on each node", "a shell's own ranks"],
)
def test_an_interactive_allocation(
    cluster, arguments, one_process, read_result, tmp_path, step, ranks
):
    run = command(*arguments, "--output.dir", tmp_path, *ranks)
    done = cluster.call("salloc", "--nodes=2", "--ntasks-per-node=2", *step, *run)
    assert done.status == 0, done.said
    assert "4 blocks on 2 ranks" in done.said
    assert read_result(tmp_path) == read_result(one_process)


def test_a_job_that_is_told_to_stop_queues_itself_again(
    cluster, arguments, one_process, read_result, tmp_path
):
    job = cluster.submit(SCRIPT, *arguments, *SLOWLY, "--output.dir", tmp_path)
    wait_for_blocks(job, tmp_path / "journal", 3)  # rank 1 has done all that it had to
    job.signal("USR1")
    begun = time.monotonic()
    while job.look().restarts == 0:
        assert time.monotonic() - begun < SECONDS, job.look()
        time.sleep(0.1)
    done = job.wait()
    assert (done.state, done.status, done.restarts) == ("COMPLETED", 0, 1), done
    assert set(re.findall(r"task \d: Exited with exit code (\d+)", done.said)) == {"75"}
    stopped = "stopped by SIGUSR1; start again to continue (3 of 4 blocks done)"
    assert said_by(done) == [f"neural-prep: {stopped}"]
    assert "resuming: 3 of 4 blocks done" in done.said
    assert read_result(tmp_path) == read_result(one_process)
    assert not (tmp_path / "journal").exists()


def test_a_task_that_is_killed_ends_the_job(cluster, arguments, one_process, read_result, tmp_path):
    for rank in (1, 0):
        job = cluster.submit(SCRIPT, *arguments, *SLOWLY, "--output.dir", tmp_path)
        wait_for_blocks(job, tmp_path / "journal", 3)
        if rank == 0:
            wait_for_words(job, "resuming: ")  # which means that all ranks are there
        os.kill(job.task(rank), signal.SIGKILL)
        done = job.wait(timeout=SECONDS)
        assert (done.state, done.status, done.restarts) == ("FAILED", 128 + signal.SIGKILL, 0)
    assert "resuming: 3 of 4 blocks done" in done.said
    done = cluster.submit(SCRIPT, *arguments, "--output.dir", tmp_path).wait()
    assert (done.state, done.status) == ("COMPLETED", 0), done
    assert "resuming: 3 of 4 blocks done" in done.said
    assert read_result(tmp_path) == read_result(one_process)


def test_a_job_that_is_cancelled_is_not_queued_again(cluster, arguments, tmp_path):
    job = cluster.submit(SCRIPT, *arguments, *SLOWLY, "--output.dir", tmp_path)
    wait_for_blocks(job, tmp_path / "journal", 3)
    job.signal("")
    job.wait(timeout=SECONDS)
    time.sleep(1.0)
    done = job.look()
    assert (done.state, done.restarts) == ("CANCELLED", 0), done


@pytest.mark.parametrize(
    ("steps", "said"),
    [(STEPS[:0], "has no samples"), (STEPS[1:], "feature_1 is infinite in ")],
    ids=["no samples", "infinity"],
)
def test_a_mistake_is_told_once_and_not_queued_again(cluster, tmp_path, steps, said):
    # srun's status is the highest: ranks that it then ends must not say that they were stopped.
    write_store(tmp_path / "store", steps, spoil=True)
    where = ("--data.path", tmp_path / "store", "--data.split", "train")
    done = cluster.submit(SCRIPT, *where, "--output.dir", tmp_path / "out").wait()
    assert (done.state, done.status, done.restarts) == ("FAILED", 2, 0), done
    (line,) = said_by(done)
    assert said in line


def test_tasks_that_are_not_the_ranks(cluster, arguments, tmp_path):
    run = command(*arguments, "--output.dir", tmp_path, "--trainer.devices", 3)
    done = cluster.call("srun", "--nodes=1", "--ntasks=2", *run)
    assert done.status == 2
    assert said_by(done) == [
        "neural-prep: trainer.devices: 3 ranks on 1 node, but srun started 2 tasks on 1 node; "
        "start a task for each rank, or set --trainer.devices 2 --trainer.num_nodes 1"
    ]
