"""Distributed tests as a job of Slurm: its tasks are ranks, and there is one report."""

import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "slurm/tests.sbatch"
SOURCE = """
import os

import pytest
import torch
import torch.distributed as dist

DYNAMIC, STATIC = pytest.mark.multigpu_dynamic, pytest.mark.multigpu_static


def total():
    ones = torch.ones(())
    dist.all_reduce(ones)
    return ones


@DYNAMIC
def test_fresh():
    assert total() == 2


@STATIC
def test_tasks(world):
    assert total() == world.size == 4
    assert os.environ["SLURMD_NODENAME"] == f"node{1 + world.rank // 2}"


@STATIC
def test_fails_on_one(world):
    assert world.rank != 3


@STATIC
def test_next(world, shared_tmp_path):
    (shared_tmp_path / f"{world.rank}").touch()
    world.barrier()
    assert len(list(shared_tmp_path.iterdir())) == 4
"""


@pytest.fixture
def script(tmp_path):
    """The script, edited for nodes without GPUs."""
    text, edits = re.subn("^#SBATCH --gpus", "##SBATCH --gpus", SCRIPT.read_text(), flags=re.M)
    assert edits == 1
    edited = tmp_path / SCRIPT.name
    edited.write_text(text)
    return edited


def test_on_two_nodes(cluster, script, tmp_path):
    (tmp_path / "test_it.py").write_text(SOURCE)
    args = ("-q", "-p", "no:cacheprovider", "-p", "no:zarr", tmp_path / "test_it.py")
    done = cluster.submit(script, *args, tasks=2).wait()
    assert (done.state, done.status) == ("FAILED", 1), done
    assert re.findall(r"^\d.*(?= in )", done.said, re.M) == [
        "1 passed, 3 deselected",
        "1 failed, 2 passed, 1 deselected",
    ]
    assert len(re.findall(r"^FAILED .*::test_fails_on_one", done.said, re.M)) == 1
    assert done.said.count("on rank 3:\n") == 1
    assert not list(cluster.folder.glob(".distributed-tests-*"))
