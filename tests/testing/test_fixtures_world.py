"""What a distributed test's body is given: world, meshes, folders, random numbers, threads."""

import json

import pytest

WORLD = """
import os
import pytest
import torch
import torch.distributed as dist

def gathered(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found

@pytest.mark.multigpu_static
def test_world(world):
    assert world.size == {ranks} == dist.get_world_size()
    assert gathered(world.rank) == list(range({ranks}))
    assert world.device == torch.device("cpu")
    assert world.group is dist.group.WORLD
    assert dist.get_backend(world.group) == "gloo"

@pytest.mark.multigpu_static
def test_barrier(world, shared_tmp_path):
    (shared_tmp_path / str(world.rank)).touch()
    world.barrier()
    assert len(os.listdir(shared_tmp_path)) == {ranks}

@pytest.mark.multigpu_static
def test_mesh(world, distributed_mesh):
    assert distributed_mesh.mesh_dim_names == ("domain",)
    assert distributed_mesh.device_type == "cpu"
    assert distributed_mesh.mesh.tolist() == list(range({ranks}))
    ones = torch.ones(())
    dist.all_reduce(ones, group=distributed_mesh.get_group("domain"))
    assert ones == {ranks}

@pytest.mark.multigpu_static
def test_mesh_2d(world, distributed_mesh_2d):
    assert distributed_mesh_2d.mesh_dim_names == ("axis1", "axis2")
    assert tuple(distributed_mesh_2d.shape) == {shape}
    assert sorted(distributed_mesh_2d.mesh.flatten().tolist()) == list(range({ranks}))
    for axis, size in zip(("axis1", "axis2"), {shape}):
        ones = torch.ones(())
        dist.all_reduce(ones, group=distributed_mesh_2d.get_group(axis))
        assert ones == size

@pytest.mark.multigpu_static
@pytest.mark.parametrize("name", ["a/b", "c"])
def test_folders(world, shared_tmp_path, tmp_path, name):
    assert len(set(gathered(str(shared_tmp_path)))) == 1
    assert len(set(gathered(str(tmp_path)))) == {ranks}
    assert os.listdir(shared_tmp_path) == os.listdir(tmp_path) == []
    world.barrier()
    if world.rank == world.size - 1:
        (shared_tmp_path / "said").write_text("by the last")
    (tmp_path / "own").write_text(str(world.rank))
    world.barrier()
    assert (shared_tmp_path / "said").read_text() == "by the last"
    assert (tmp_path / "own").read_text() == str(world.rank)
"""


@pytest.mark.parametrize(
    ("ranks", "shape"),
    [(1, (1, 1)), (3, None), (4, (2, 2)), (6, (2, 3))],
    ids=lambda value: f"{value} ranks" if isinstance(value, int) else "",
)
def test_fixtures(run_tests, ranks, shape):
    done = run_tests(
        WORLD.format(ranks=ranks, shape=shape), "--multigpu-static", "--nproc-per-node", ranks
    )
    assert len(done.outcomes) == 6
    mesh_2d = "test_mesh_2d"
    assert done.outcomes.pop(mesh_2d) == ("passed" if shape else "skipped"), done.out
    if shape is None:
        reason = f"{ranks} ranks are no mesh with two axes longer than 1"
        assert reason in done.texts[mesh_2d]
    assert set(done.outcomes.values()) == {"passed"}, done.out


@pytest.mark.parametrize("fixture", ["world", "distributed_mesh", "distributed_mesh_2d"])
def test_a_lone_process_is_a_world_of_one(request, fixture):
    found = request.getfixturevalue(fixture)
    world = request.getfixturevalue("world")
    assert (world.rank, world.size, str(world.device)) == (0, 1, "cpu")
    assert found is world or found.mesh.numel() == 1
    world.barrier()


def test_a_lone_process_has_a_shared_folder(shared_tmp_path, tmp_path):
    assert shared_tmp_path.is_dir()
    assert list(shared_tmp_path.iterdir()) == []
    assert shared_tmp_path != tmp_path


SEEDS = """
import json, random
from pathlib import Path
import numpy as np
import pytest
import torch
import torch.distributed as dist

def draw():
    return [random.random(), np.random.rand(), torch.rand(()).item()]

@pytest.fixture
def early():
    return draw()

@pytest.mark.multigpu_static
@pytest.mark.parametrize("letter", "ab")
def test_draws(world, letter, early):
    draws = [early, draw()]
    found = [None] * world.size
    dist.all_gather_object(found, draws)
    assert found == [draws] * world.size
    Path(letter).write_text(json.dumps(draws))
"""


def test_generators_are_seeded_alike_and_afresh(run_tests, pytester):
    def drawn(letter):
        return json.loads((pytester.path / letter).read_text())

    assert run_tests(SEEDS, "--multigpu-static", "--nproc-per-node", 2).status == 0
    first, second = drawn("a"), drawn("b")
    values = {value for draws in (*first, *second) for value in draws}
    assert len(values) == 12  # no two draws are the same
    # Neither the test before nor the number of ranks matters.
    options = ["--multigpu-static", "--nproc-per-node", 1, "-k", "b"]
    assert run_tests(None, *options).outcomes == {"test_draws[b]": "passed"}
    assert drawn("b") == second


THREADS = """
import os
import pytest
import torch

@pytest.mark.multigpu_static
def test_static(world): check(2)

@pytest.mark.multigpu_dynamic(world_size=[1, 3])
def test_dynamic(world): check(world.size)

def check(ranks):
    given = {given}
    threads = given or max(1, len(os.sched_getaffinity(0)) // ranks)
    assert os.environ["OMP_NUM_THREADS"] == str(threads)
    assert torch.get_num_threads() == threads
"""


@pytest.mark.parametrize("given", [None, 5], ids=["by themselves", "OMP_NUM_THREADS=5"])
def test_threads_of_ranks(run_tests, monkeypatch, given):
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", str(given))
    options = ["--multigpu-static", "--multigpu-dynamic", "--nproc-per-node", 2]
    done = run_tests(THREADS.replace("{given}", str(given)), *options)
    names = ["test_dynamic[ranks=1]", "test_dynamic[ranks=3]", "test_static"]
    assert list(done.outcomes.items()) == [(name, "passed") for name in names], done.out
