"""A signal during start-up: status 75 and one line at once, on whichever rank it comes."""

import os
import re
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

    def run():
        command = [sys.executable, "-m", "neural_prep.cli", "stats", *STORE]
        process = subprocess.Popen(
            [*command, "--trainer.devices", "2", "--output.dir", str(tmp_path)],
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
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    _, err = process.communicate(timeout=20)
    if process.returncode == 0:
        pytest.skip("the run had ended")
    assert process.returncode == 75, err
    (said,) = [line for line in err.splitlines() if line.startswith("neural-prep: ")]
    # Where rank 0 waits for a rank that has ended already, it says so.
    assert re.fullmatch(r"neural-prep: (rank 1 was )?stopped by .*; start again", said)
    assert "Traceback" not in err
