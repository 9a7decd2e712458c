"""Worlds keep out of one another's way: environment, processes, ports."""

import subprocess
import sys

import pytest

FRESH = """
import os, sys
import pytest
import torch
import torch.distributed as dist

OUTSIDE = {outside}
LAUNCHERS = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_")
OWN = {"MASTER_ADDR", "MASTER_PORT"}
state = []

def check(world):
    assert os.environ["PROJECT"] == "kept"
    assert {name for name in os.environ if name.startswith(LAUNCHERS)} == OWN
    assert os.environ["RANK"] == os.environ["LOCAL_RANK"] == str(world.rank)
    assert os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"] == str(world.size)
    assert os.environ["MASTER_ADDR"] == "127.0.0.1"
    assert os.environ["MASTER_PORT"] != OUTSIDE["MASTER_PORT"]
    assert "LEFT" not in os.environ and not hasattr(sys, "left") and state == []
    assert torch.get_default_dtype() == torch.float32

def leave():
    os.environ.update(LEFT="1", SLURM_LEFT="1", RANK="9", MASTER_PORT="9")
    sys.left = True
    state.append(1)
    torch.set_default_dtype(torch.float64)

@pytest.mark.multigpu_dynamic
@pytest.mark.parametrize("number", [1, 2])
def test_is_fresh(world, number):
    check(world)
    with open(f"pids-{number}-{world.rank}", "w") as file:
        file.write(str(os.getpid()))
    world.barrier()
    leave()

@pytest.mark.multigpu_dynamic(world_size=3, process_group=False)
def test_makes_its_own_group():
    assert not dist.is_initialized()
    assert os.environ["MASTER_PORT"] != OUTSIDE["MASTER_PORT"]
    dist.init_process_group("gloo")
    ones = torch.ones(())
    dist.all_reduce(ones)
    assert ones == 3
    dist.destroy_process_group()

@pytest.mark.multigpu_static
def test_static_is_clean_too(world):
    check(world)

def test_single():
    for name, value in OUTSIDE.items():
        assert os.environ[name] == value
    state.append(1)
"""
CONFTEST = """
import os

def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "SLURM_PROCID", "LEFT")
        with open("after", "w") as file:
            file.write(" ".join(os.environ.get(name, "-") for name in names))
"""
OUTSIDE = {
    "RANK": "7",
    "MASTER_PORT": "1",
    "SLURM_PROCID": "3",
    "SLURM_JOB_ID": "1234",
    "OMPI_COMM_WORLD_RANK": "3",
    "PMI_RANK": "3",
    "TORCHELASTIC_RUN_ID": "none",
    "GROUP_RANK": "2",
    "LOCAL_RANK": "5",
    "PROJECT": "kept",
}


def test_nothing_leaks_in_or_out(run_tests, pytester, monkeypatch):
    for name, value in OUTSIDE.items():
        monkeypatch.setenv(name, value)
    pytester.makeconftest(CONFTEST)
    source = FRESH.replace("{outside}", repr(OUTSIDE))
    done = run_tests(source, "--multigpu-all", "--nproc-per-node", 2)
    names = ["test_single", "test_is_fresh[1]", "test_is_fresh[2]"]
    names += ["test_makes_its_own_group[ranks=3]", "test_static_is_clean_too"]
    assert list(done.outcomes.items()) == [(name, "passed") for name in names], done.out
    pids = {path.read_text() for path in pytester.path.glob("pids-*")}
    assert len(pids) == 4
    assert (pytester.path / "after").read_text() == "7 - 5 1 3 -"


SIDE_BY_SIDE = """
import time
from pathlib import Path
import pytest
import torch
import torch.distributed as dist

HERE = Path(__file__).parent

def meet(kind, world):
    \"\"\"Waits until the other suite is at the same test, and lets both use their groups.\"\"\"
    (HERE / f"{kind}-{world.rank}").touch()
    other = HERE.parent / {"one": "other", "other": "one"}[HERE.name] / f"{kind}-{world.rank}"
    deadline = time.monotonic() + 30
    while not other.exists():
        assert time.monotonic() < deadline, "the other suite is not there"
        time.sleep(0.01)
    for _ in range(20):
        ones = torch.ones(())
        dist.all_reduce(ones)
        assert ones == 2

@pytest.mark.multigpu_dynamic
def test_dynamic(world):
    meet("dynamic", world)

@pytest.mark.multigpu_static
def test_static(world):
    meet("static", world)
"""


@pytest.mark.usefixtures("traces")
def test_two_suites_side_by_side(pytester, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "29500")
    started = []
    for name in ("one", "other"):
        folder = pytester.mkdir(name)
        (folder / "test_it.py").write_text(SIDE_BY_SIDE)
        command = [sys.executable, "-m", "pytest", "--multigpu-all", "--nproc-per-node", "2"]
        started.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True))
    for process in started:
        out, _ = process.communicate(timeout=90)
        assert "2 passed" in out
        assert process.returncode == 0
