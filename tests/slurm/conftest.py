"""A Slurm of two nodes on this machine, started by the project's own script, and jobs on it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neural_prep.stats.accumulate import warm_up

ROOT = Path(__file__).parents[2]
REQUIRED = "NEURAL_PREP_REQUIRE_SLURM"  # where set, these tests fail where they would be skipped
BEGUN_ELSEWHERE = ("SLURM", "RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "GROUP_")
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


@dataclass(frozen=True)
class Finished:
    """A command of Slurm's that has ended, or a job: then its last state and all it has logged."""

    status: int
    said: str
    state: str = ""
    restarts: int = 0


class Job:
    """A job in the queue."""

    def __init__(self, cluster: Cluster, number: str, log: Path) -> None:
        self._cluster, self.number, self._log = cluster, number, log

    def wait(self, timeout: float = 100.0) -> Finished:
        """Waits until the job has left the queue."""
        deadline = time.monotonic() + timeout
        while (found := self.look()).state not in ENDED:
            if time.monotonic() > deadline:
                self._cluster.call("scancel", self.number)
                pytest.fail(f"job {self.number} did not end in {timeout} s: {found}")
            time.sleep(0.1)
        return found

    def look(self) -> Finished:
        """What Slurm says of it now."""
        shown = self._cluster.call("scontrol", "show", "job", "--oneliner", self.number).said
        fields = dict(re.findall(r"(\w+)=(\S*)", shown))
        said = self._log.read_text() if self._log.exists() else ""
        status = int(fields["ExitCode"].split(":")[0])
        return Finished(status, said, fields["JobState"], int(fields["Restarts"]))

    def signal(self, name: str) -> None:
        """Sends a signal as a user does."""
        done = self._cluster.call("scancel", *([f"--signal={name}"] if name else []), self.number)
        assert done.status == 0, done.said

    def task(self, rank: int) -> int:
        """The process that is a rank of the job."""
        for pid in self._cluster.traces.pids():
            with contextlib.suppress(OSError):
                parts = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                wanted = {b"SLURM_JOB_ID=%d" % int(self.number), b"SLURM_PROCID=%d" % rank}
                if wanted <= set(parts) and command[1].endswith(b"/neural-prep"):
                    return pid
        pytest.fail(f"job {self.number} has no rank {rank}")


class Cluster:
    """Slurm's commands, run in a folder whose environment is this Python's."""

    def __init__(self, folder: Path, environment: dict[str, str], traces: Any) -> None:
        self.folder, self.traces = folder, traces
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(BEGUN_ELSEWHERE)
        }
        self._environment = {**inherited, **environment, traces.NAME: traces.mark}
        activate = folder / ".venv/bin/activate"  # what the scripts ask a site to edit
        activate.parent.mkdir(parents=True)
        activate.write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')

    def call(self, *command: object, timeout: float = 100.0) -> Finished:
        """Runs a command to its end."""
        done = subprocess.run(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=timeout,
            cwd=self.folder,
            env=self._environment,
        )
        return Finished(done.returncode, done.stdout)

    def submit(self, script: Path, *args: object, nodes: int = 2, tasks: int = 1) -> Job:
        """Submits a script with so many tasks on each of so many nodes, of one processor each."""
        size = (f"--nodes={nodes}", f"--ntasks-per-node={tasks}", "--cpus-per-task=1")
        done = self.call("sbatch", "--parsable", "--output=%j.log", *size, script, *args)
        assert done.status == 0, done.said
        number = done.said.strip()
        return Job(self, number, self.folder / f"{number}.log")


@pytest.fixture(scope="session")
def slurm_is_here():
    """Skips where Slurm is not installed, with the reason; fails where it must be."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not _find(name)]
    if missing:
        _do_without(f"Slurm is not installed: {', '.join(missing)}")


@pytest.fixture(scope="session")
def cluster(slurm_is_here, new_traces):
    """Two nodes; stopped at the end, or by the end of this process, however it comes."""
    warm_up()
    folder = Path(tempfile.mkdtemp(prefix="np-slurm-"))  # short: it holds sockets
    command = [sys.executable, ROOT / "slurm/local-cluster"]
    then = 'cat; "$@"; status=$?; rm -rf "$0"; exit $status'
    stop = ["sh", "-c", then, folder, *command, "stop", "--dir", folder / "slurm"]
    traces = new_traces()
    with subprocess.Popen(stop, stdin=subprocess.PIPE, start_new_session=True) as stopping:
        started = subprocess.run(
            [*command, "start", "--dir", folder / "slurm"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if started.returncode:
            _do_without(f"Slurm cannot be started: {started.stderr.strip()}")
        exported = dict(re.findall(r"^export (\w+)=(.*)$", started.stdout, re.M))
        yield Cluster(folder / "work", exported, traces)
    assert stopping.returncode == 0
    assert traces.none_left()


@pytest.fixture
def read_result():
    """Reads `statistics.json` less what may differ between runs: `run` and `created`."""

    def read(folder):
        document = json.loads((Path(folder) / "statistics.json").read_text())
        del document["run"], document["created"]
        return document

    return read


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _do_without(reason: str) -> None:
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason}; {REQUIRED} is set")
    pytest.skip(reason)
