"""Small stores, and the command run as a user runs it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from neural_prep.stats.accumulate import warm_up

ROOT = Path(__file__).parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
EXAMPLE = ROOT / "tests/data/meps_example"


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    status: int
    out: str
    err: str
    seconds: float


class Job:
    """The command, started with `ranks` ranks in a process group that is waited for."""

    def __init__(
        self,
        args: list[str],
        *,
        ranks: int,
        torchrun: bool,
        cwd: Path,
        environment: dict[str, str],
        traces: Any,
    ) -> None:
        self.pids, self.none_left = traces.pids, traces.none_left
        self.begun = time.monotonic()
        command = ["-m", "neural_prep.cli", "stats", *args]
        if torchrun:
            command = [*TORCHRUN, "--nproc-per-node", str(ranks), *command]
        else:
            command += ["--trainer.devices", str(ranks)]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=cwd,
            env={**_clean_environment(), **environment, traces.NAME: traces.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self, timeout: float = 120.0) -> Finished:
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for pid in self.pids():
                os.kill(pid, 9)
            self.process.communicate()
            pytest.fail(f"the command did not end within {timeout} s")
        return Finished(self.process.returncode, out, err, time.monotonic() - self.begun)


def _clean_environment() -> dict[str, str]:
    started_by = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "SLURM_", "PL_", "GROUP_")
    return {key: value for key, value in os.environ.items() if not key.startswith(started_by)}


@pytest.fixture(scope="session", autouse=True)
def compiled():
    """Compiles the arithmetic before anything is timed."""
    warm_up()


@pytest.fixture(scope="session")
def start_up(tmp_path_factory, compiled, new_traces):
    """Seconds of an undisturbed run of two ranks in which hardly anything is read."""
    folder = tmp_path_factory.mktemp("start-up")
    (folder / "samples" / "train").mkdir(parents=True)
    np.save(folder / "samples/train/nwp_2022010100_mbr000.npy", np.zeros((2, 1, 1, 1)))
    args = ["--data.path", str(folder), "--data.split", "train"]
    args += ["--output.dir", str(folder / "out")]
    job = Job(args, ranks=2, torchrun=False, cwd=folder, environment={}, traces=new_traces())
    done = job.wait()
    assert done.status == 0, done.err
    return done.seconds


@pytest.fixture
def start_job(new_traces):
    """Starts the command; whatever is left of it is ended with the test."""
    jobs = []

    def start(*args, ranks=1, torchrun=False, environment=None):
        job = Job(
            [str(arg) for arg in args],
            ranks=ranks,
            torchrun=torchrun,
            cwd=ROOT,
            environment=environment or {},
            traces=new_traces(),
        )
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        for pid in job.pids():
            os.kill(pid, 9)


@pytest.fixture(scope="module")
def module_job(new_traces):
    """Starts the command for a fixture of a whole module."""

    def start(*args, ranks=1):
        args = [str(arg) for arg in args]
        return Job(args, ranks=ranks, torchrun=False, cwd=ROOT, environment={}, traces=new_traces())

    return start


def _load_script(name: str) -> ModuleType:
    """A script of `tests/bench`, which may import those that were loaded before it."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests/bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def forks(compiled):
    """Starts the command's ranks in a moment: `forks.run(*args, ranks=2)`, `forks.start(...)`."""
    found = _load_script("forks").Forks()
    yield found
    found.close()


@pytest.fixture(scope="session")
def kills(forks):
    """`tests/bench/kills.py`."""
    return _load_script("kills")


@pytest.fixture(scope="session")
def said_of():
    """Numbers of blocks that a start has told: done, all, changed; None where it told none."""

    def read(ended):
        found = re.search(r"^resuming: (\d+) of (\d+) blocks done$", ended.err, re.M)
        if found is None:
            return None
        changed = re.search(
            r"^(\d+) blocks? ha(?:s|ve) changed since and (?:is|are) read again$", ended.err, re.M
        )
        return int(found[1]), int(found[2]), int(changed[1]) if changed else 0

    return read


@pytest.fixture(scope="session")
def long_samples(write_samples, tmp_path_factory):
    """Options of a store of 40 blocks that take a moment each, since their pieces are small."""
    folder = tmp_path_factory.mktemp("long")
    root, _ = write_samples(folder / "store", 40, steps=60, grid=(10, 12))
    lags = list(range(1, 13))
    options = ("--data.split", "train", "--data.block_bytes", "1", "--data.piece_steps", "1")
    return ("--data.path", root, *options, "--model.lags", lags)


@pytest.fixture(scope="session")
def undisturbed(forks, long_samples, read_result, tmp_path_factory):
    """The result on it of a run that nobody stops."""
    out = tmp_path_factory.mktemp("undisturbed")
    ended = forks.run(*long_samples, "--output.dir", out)
    assert ended.status == 0, ended.err
    assert not (out / "journal").exists()
    return read_result(out)


@pytest.fixture
def reading(forks, kills, long_samples, tmp_path):
    """A job that is reading, in `tmp_path / "out"`."""
    jobs = []

    def start(*args, ranks=2, blocks=2):
        job = forks.start(*long_samples, "--output.dir", tmp_path / "out", *args, ranks=ranks)
        jobs.append(job)
        deadline = time.monotonic() + 60
        while sum(kills.records_in(tmp_path / "out").values()) < blocks:
            assert job.is_running, job.wait().err
            assert time.monotonic() < deadline
            time.sleep(0.002)
        return job

    yield start
    for job in jobs:
        job.kill(signal.SIGKILL)
        job.wait()


@pytest.fixture
def run_job(start_job):
    """Runs the command to its end."""

    def run(*args, **kwargs):
        return start_job(*args, **kwargs).wait()

    return run


@pytest.fixture(scope="session")
def write_samples():
    """Writes a MEPS store of random samples and returns its path and the samples."""

    def write(root, samples, *, steps=13, grid=(4, 5), features=3, seed=0, spoil=None):
        folder = root / "samples" / "train"
        folder.mkdir(parents=True)
        generator = np.random.default_rng(seed)
        arrays = []
        for number in range(samples):
            values = generator.normal(1e5, 3.0, (steps, *grid, features)).astype(np.float32)
            if spoil is not None:
                spoil(number, values)
            day, member = divmod(number, 4)
            np.save(folder / f"nwp_202201{day + 1:02d}00_mbr{member:03d}.npy", values)
            arrays.append(values)
        return root, arrays

    return write


@pytest.fixture(scope="session")
def read_result():
    """Reads `statistics.json` less what may differ between runs: `run` and `created`."""

    def read(folder):
        document = json.loads((Path(folder) / "statistics.json").read_text())
        del document["run"], document["created"]
        return document

    return read


@pytest.fixture
def example():
    """The example data set."""
    return EXAMPLE
