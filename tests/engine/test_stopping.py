"""A rank whose main thread does not come back, from a read that hangs, still hears a signal."""

import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import threading
from neural_prep.engine.module import StatsModule
from neural_prep.engine.peers import Peers
from neural_prep.engine.stopping import StopEverywhere

module, stopping = StatsModule(), StopEverywhere()
module._peers = Peers()
module.peers.start()
stopping.on_predict_start(None, module)
print("reading", flush=True)
threading.Event().wait()
"""


def send(*signals):
    """Sends signals to a process whose read hangs; returns what it says, and after how long."""
    command = [sys.executable, "-c", SCRIPT]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "reading\n"
        begun = time.monotonic()
        for signum in signals:
            process.send_signal(signum)
            time.sleep(0.2)
        _, err = process.communicate(timeout=20)
        seconds = time.monotonic() - begun
    assert process.returncode == 75
    return err, seconds


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_during_a_read_that_hangs(signum):
    err, seconds = send(signum)
    assert err == f"neural-prep: stopped by {signum.name}; start again to continue\n"
    assert seconds < 10.0


def test_a_job_that_is_ended_while_it_stops_says_why_it_stopped():
    # Slurm sends SIGUSR1 to all tasks, and SIGTERM to the rest as soon as one has ended.
    err, _ = send(signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM)
    assert err == "neural-prep: stopped by SIGUSR1; start again to continue\n"


def test_a_person_who_asks_twice_need_not_wait():
    err, seconds = send(signal.SIGINT, signal.SIGINT)
    assert err == "neural-prep: stopped by SIGINT; start again to continue\n"
    assert seconds < 3.0  # of the five that a read is given
