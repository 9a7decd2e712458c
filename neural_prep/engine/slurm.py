"""Slurm's tasks as Lightning's ranks, by what `srun` says of its own step.

Lightning's own reading goes by the job: it takes a shell in an allocation for a rank, a task for
none where the job is named `bash` or `interactive`, as under `salloc`, and has ranks meet at the
job's first node where a step has others.
"""

from __future__ import annotations

import os

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from neural_prep.errors import InputError
from neural_prep.world.slurm import Step


class TaskEnvironment(SLURMEnvironment):
    """The place of a step's task among the others.

    The job does not requeue itself, as Lightning's handler would have it: the exit status says that
    it may be started again.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        super().__init__(auto_requeue=False)

    @property
    def main_address(self) -> str:
        """The step's first node, unless MASTER_ADDR says otherwise."""
        return os.environ.setdefault("MASTER_ADDR", self._step.first_node)

    def world_size(self) -> int:
        """The step's tasks."""
        return self._step.size

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Holds the trainer's numbers against the step's."""
        check_tasks(self._step, num_devices, num_nodes)

    @staticmethod
    def _validate_srun_used() -> None:
        """Was done."""

    @staticmethod
    def _validate_srun_variables() -> None:
        """Needs --ntasks-per-node, which a step does not."""


def check_tasks(step: Step, devices: int, nodes: int) -> None:
    """Holds a trainer's numbers of ranks against the tasks that were started.

    Raises:
        InputError: if they differ.
    """
    if step.tasks == (devices,) * nodes:
        return
    asked = f"trainer.devices: {_each(devices, 'rank', nodes)}"
    if len(set(step.tasks)) > 1:
        raise InputError(
            f"{asked}, but srun started {' + '.join(map(str, step.tasks))} tasks; start as many on "
            "each node, with --ntasks-per-node"
        )
    started, on = step.tasks[0], len(step.tasks)
    raise InputError(
        f"{asked}, but srun started {_each(started, 'task', on)}; start a task for each rank, or "
        f"set --trainer.devices {started} --trainer.num_nodes {on}"
    )


def _each(number: int, what: str, nodes: int) -> str:
    """So many on each node.

    >>> _each(2, "rank", 1), _each(1, "task", 3)
    ('2 ranks on 1 node', '1 task on each of 3 nodes')
    """
    on = "on 1 node" if nodes == 1 else f"on each of {nodes} nodes"
    return f"{number} {what}{'s' * (number > 1)} {on}"
