"""A signal during start-up: status 75 and one line at once, on whichever rank it comes."""

import os
import signal
import subprocess
import sys
import time

import pytest

STORE = ["--data.path", "tests/data/meps_example", "--data.split", "train"]


@pytest.fixture
def start(tmp_path, request):
    """Starts the command with two ranks, in a process group of its own."""
    processes = []

    def run(*args, **environment):
        command = [sys.executable, "-m", "neural_prep.cli", "stats", *STORE]
        process = subprocess.Popen(
            [*command, "--trainer.devices", "2", "--output.dir", str(tmp_path), *args],
            env={**os.environ, **environment},
            cwd=request.config.rootpath,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("after", [0.5, 2.0, 4.0], ids=lambda seconds: f"after {seconds} s")
@pytest.mark.parametrize("whole_group", [True, False], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_during_start_up(start, after, whole_group):
    process = start()
    time.sleep(after)
    begun = time.monotonic()
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    _, err = process.communicate(timeout=20)
    if process.returncode == 0:
        pytest.skip("the run had ended")
    assert process.returncode == 75, err
    (said,) = [line for line in err.splitlines() if line.startswith("neural-prep: ")]
    signum = "SIGINT" if whole_group else "SIGTERM"
    assert said == f"neural-prep: stopped by {signum}; start again to continue"
    assert time.monotonic() - begun < 5.0
    assert "Traceback" not in err


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 1), (signal.SIGUSR1, 75)])
def test_a_signal_among_tasks_of_slurm(start, signum, status):
    # srun sends SIGTERM where another task has failed, and returns the highest status of all.
    process = start(SLURM_STEP_NUM_TASKS="2")
    time.sleep(1.0)
    process.send_signal(signum)
    _, err = process.communicate(timeout=20)
    assert process.returncode == status
    assert ("neural-prep: stopped by" in err) == (signum == signal.SIGUSR1)


def test_a_signal_while_ranks_are_waited_for(start):
    # The other node never comes: only a thread can hear the signal.
    process = start("--trainer.num_nodes", "2", NODE_RANK="0", MASTER_ADDR="localhost")
    time.sleep(9.0)
    process.terminate()
    _, err = process.communicate(timeout=10)
    assert process.returncode == 75, err
    assert err.count("neural-prep: stopped by SIGTERM; start again to continue") == 1
