"""Ranks that are not the tasks that were started: one line that says what to do."""

import pytest

from neural_prep.engine.slurm import check_tasks
from neural_prep.errors import InputError
from neural_prep.world.slurm import Step


@pytest.mark.parametrize(
    ("tasks", "devices", "nodes", "said"),
    [
        (
            (1, 1),
            2,
            1,
            "trainer.devices: 2 ranks on 1 node, but srun started 1 task on each of 2 nodes; start "
            "a task for each rank, or set --trainer.devices 1 --trainer.num_nodes 2",
        ),
        (
            (4,),
            1,
            3,
            "trainer.devices: 1 rank on each of 3 nodes, but srun started 4 tasks on 1 node; start "
            "a task for each rank, or set --trainer.devices 4 --trainer.num_nodes 1",
        ),
        (
            (2, 1),
            2,
            2,
            "trainer.devices: 2 ranks on each of 2 nodes, but srun started 2 + 1 tasks; start as "
            "many on each node, with --ntasks-per-node",
        ),
    ],
    ids=["fewer on a node", "fewer nodes", "uneven"],
)
def test_other_tasks_than_ranks(tasks, devices, nodes, said):
    with pytest.raises(InputError) as raised:
        check_tasks(Step(tasks, "a1"), devices, nodes)
    assert str(raised.value) == said


@pytest.mark.parametrize("tasks", [(1,), (2, 2), (3, 3, 3)], ids=str)
def test_as_many_tasks_as_ranks(tasks):
    check_tasks(Step(tasks, "a1"), tasks[0], len(tasks))
