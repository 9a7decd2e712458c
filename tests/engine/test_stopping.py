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


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_during_a_read_that_hangs(signum):
    command = [sys.executable, "-c", SCRIPT]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "reading\n"
        begun = time.monotonic()
        process.send_signal(signum)
        _, err = process.communicate(timeout=20)
        assert time.monotonic() - begun < 10.0
    assert process.returncode == 75
    assert err == f"neural-prep: stopped by {signum.name}; start again to continue\n"
