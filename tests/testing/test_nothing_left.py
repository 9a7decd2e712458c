"""Processes, sockets, ports and shared memory: nothing is left, however pytest ends."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Everything that a test can leave behind, and then what it does.
SOURCE = """
import json, os, subprocess, sys, time
from multiprocessing import shared_memory
from pathlib import Path
import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.multigpu_static

def leave_much(world):
    memory = shared_memory.SharedMemory(name=f"MARK-{{world.rank}}", create=True, size=4096)
    tensor = torch.ones(1000).share_memory_()
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    child = subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)
    ones = torch.ones(())
    dist.all_reduce(ones)
    told = {{"port": int(os.environ["MASTER_PORT"]), "pid": os.getpid(), "parent": os.getppid()}}
    path = Path(f"told{{world.rank}}.tmp")
    path.write_text(json.dumps(told))
    path.rename(f"told{{world.rank}}.json")
    return memory, tensor, child

def test_it(world):
    kept = leave_much(world)
    {then}
"""
THEN = {
    "passes": ("pass", 0),
    "fails": ("assert world.rank == 0", 1),
    "hangs": ("time.sleep(1000) if world.rank else dist.barrier()", 1),
    "dies": ("os._exit(3) if world.rank else None", 1),
}


@pytest.fixture
def start(pytester, traces):
    """Starts pytest on two ranks with a test that leaves much and then does what is asked."""
    processes = []

    def run(then, *args):
        source = SOURCE.format(then=then).replace("MARK", traces.mark)
        pytester.makepyfile(test_it=source)
        command = [sys.executable, "-m", "pytest", "--multigpu-static", "--nproc-per-node", "2"]
        process = subprocess.Popen(
            [*command, *args],
            cwd=pytester.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # Whoever runs these tests in the background may have it ignored, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(condition, patience=60.0):
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def read_told(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("told?.json"))]


def check_nothing_is_left(folder, traces):
    """Checks what the ranks of this test's run have told of themselves."""
    told = read_told(folder)
    assert [len(told), traces.none_left()] == [2, True]
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # but for TIME_WAIT
        free.bind(("127.0.0.1", told[0]["port"]))
    numbers = [str(pid) for rank in told for pid in (rank["pid"], rank["parent"])]
    memory = [path.name for path in Path("/dev/shm").iterdir()]
    assert [name for name in memory if traces.mark in name] == []
    assert [name for name in memory if set(name.split("_")) & set(numbers)] == []


@pytest.mark.parametrize(("then", "status"), THEN.values(), ids=THEN)
def test_after_a_test_that(start, traces, pytester, then, status):
    process = start(then, "--multigpu-timeout", "1", "--multigpu-grace", "0.5")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == status, out
    check_nothing_is_left(pytester.path, traces)


def test_the_check_finds_what_is_left(start, traces, pytester):
    process = start("time.sleep(1000)")
    wait_for(lambda: len(read_told(pytester.path)) == 2)
    assert (
        len(traces.pids()) >= 1 + 1 + 2 + 2 * 2
    )  # pytest, what forks ranks, ranks, their children
    with pytest.raises(AssertionError):
        check_nothing_is_left(pytester.path, traces)
    (port,) = {told["port"] for told in read_told(pytester.path)}
    with socket.socket() as free, pytest.raises(OSError, match="in use"):
        free.bind(("127.0.0.1", port))
    process.kill()
    process.communicate(timeout=30)
    check_nothing_is_left(pytester.path, traces)


SIGNALS = {
    "Ctrl-C": (signal.SIGINT, True, 2),
    "SIGINT": (signal.SIGINT, False, 2),
    "SIGTERM": (signal.SIGTERM, False, -signal.SIGTERM),
    "SIGKILL": (signal.SIGKILL, False, -signal.SIGKILL),
}


@pytest.mark.parametrize(("number", "to_all", "status"), SIGNALS.values(), ids=SIGNALS)
def test_after_a_signal_in_a_test(start, traces, pytester, number, to_all, status):
    process = start("time.sleep(1000) if world.rank else dist.barrier()")
    wait_for(lambda: len(read_told(pytester.path)) == 2)
    begun = time.monotonic()
    os.killpg(process.pid, number) if to_all else process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == status, out
    assert time.monotonic() - begun < 10
    if status > 0:
        assert "KeyboardInterrupt" in out
        assert "no tests ran in" in out
    check_nothing_is_left(pytester.path, traces)


@pytest.mark.parametrize(("number", "to_all", "status"), SIGNALS.values(), ids=SIGNALS)
def test_after_a_signal_during_start_up(start, traces, number, to_all, status):
    process = start("pass")
    wait_for(lambda: len(traces.pids()) == 2)  # torch is being imported
    os.killpg(process.pid, number) if to_all else process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    # An interrupted import may abort, or end in an error of pytest's own, which has no line for it.
    assert process.returncode in (status, 1, -signal.SIGABRT), out
    assert traces.none_left()
