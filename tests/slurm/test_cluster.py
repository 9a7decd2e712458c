"""The script that runs Slurm on one machine: what it starts and prints, and that it ends it all."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "slurm/local-cluster"


def run(command, folder, **environment):
    return subprocess.run(
        [sys.executable, SCRIPT, command, "--dir", folder],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def pids(folder):
    """Processes that name the folder."""
    found = {}
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_bytes()
        except OSError:
            continue
        if f"{folder}/".encode() in command:
            found[int(each.parent.name)] = command.decode()
    return found


@pytest.fixture
def folder(cluster):
    """Where a second cluster goes, beside the one that all tests share."""
    parent = Path(tempfile.mkdtemp(prefix="np-slurm-"))
    yield parent / "other"
    run("stop", parent / "other")
    shutil.rmtree(parent)


def hostnames(folder):
    done = subprocess.run(
        ["srun", "--nodes=2", "printenv", "SLURMD_NODENAME"],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "SLURM_CONF": str(folder / "slurm.conf")},
    )
    return sorted(done.stdout.split()), done.stderr


def test_start_and_stop(folder):
    started = run("start", folder)
    assert started.stdout == f"export SLURM_CONF={folder}/slurm.conf\n", started.stderr
    assert hostnames(folder) == (["node1", "node2"], "")
    running = pids(folder)
    assert len(running) == 4
    again = run("start", folder)
    assert (again.stdout, pids(folder)) == (started.stdout, running)
    assert "is running already" in again.stderr
    stopped = run("stop", folder)
    assert (stopped.returncode, stopped.stdout, pids(folder)) == (0, "", {})
    assert not folder.exists()
    again = run("stop", folder)
    assert (again.returncode, again.stderr) == (
        0,
        f"local-cluster: no cluster is running in {folder}\n",
    )


@pytest.mark.parametrize("daemon", ["munge", "slurmctld", "node2"])
def test_a_cluster_that_is_half_dead_is_started_anew(folder, daemon):
    run("start", folder)
    os.kill(int((folder / f"{daemon}.pid").read_text()), signal.SIGKILL)
    started = run("start", folder)
    assert "removing what is left of an earlier cluster" in started.stderr
    assert hostnames(folder) == (["node1", "node2"], "")
    assert len(pids(folder)) == 4


def test_jobs_end_with_the_cluster(folder):
    run("start", folder)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    deaf = "trap '' TERM; while :; do sleep 0.2; done"
    command = ["sbatch", "--output=/dev/null", "--wrap", deaf]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, timeout=30)
    deadline = time.monotonic() + 30
    while not any("slurm_script" in command for command in pids(folder).values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert run("stop", folder).returncode == 0
    assert pids(folder) == {}


def test_daemons_end_whose_folder_is_gone(folder):
    run("start", folder)
    shutil.rmtree(folder)
    assert run("stop", folder).returncode == 0
    assert pids(folder) == {}


def test_a_folder_of_others_is_left_alone(folder):
    folder.mkdir()
    (folder / "thesis.tex").touch()
    for command, said in (
        ("start", f"--dir: {folder} holds other files, or is another user's; choose an empty"),
        ("stop", f"{folder} holds no cluster of this script; nothing was done"),
    ):
        done = run(command, folder)
        assert (done.returncode, done.stdout) == (1, "")
        assert said in done.stderr
    assert (folder / "thesis.tex").exists()


def test_missing_programs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import shutil\n"
        "which = shutil.which\n"
        "shutil.which = lambda name, **more: None if 'd' in name else which('true')\n"
    )
    done = run("start", tmp_path / "slurm", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "local-cluster: not installed: munged, slurmctld, slurmd; "
        "on Debian and Ubuntu: apt-get install munge slurmctld slurmd slurm-client\n"
    )
