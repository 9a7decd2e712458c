"""Slurm's tasks as ranks, by what `srun` tells them of its own step.

What Slurm says of the job as a whole is no guide: a step may have fewer nodes and tasks, and shells
in an allocation, which are no ranks, are told of it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a job: what one `srun` has started.

    Attributes:
        tasks: Number of tasks on each node.
        first_node: Name of the node that has task 0.
    """

    tasks: tuple[int, ...]
    first_node: str

    @property
    def size(self) -> int:
        """Number of tasks."""
        return sum(self.tasks)


def find_step(environment: Mapping[str, str]) -> Step | None:
    """The step that this process is a task of; None outside, and in a terminal that srun opened.

    >>> find_step({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NODELIST": "a[03-05],b1"})
    Step(tasks=(2, 2, 2, 1), first_node='a03')
    >>> find_step({"SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NODELIST": "a[3-4]"})
    """
    layout = environment.get("SLURM_STEP_TASKS_PER_NODE")
    if not layout or "SLURM_PTY_PORT" in environment:
        return None
    tasks: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", layout):
        tasks += [int(number)] * int(times or 1)
    nodes = environment.get("SLURM_STEP_NODELIST", "127.0.0.1")
    return Step(tuple(tasks), re.sub(r"\[(\w+).*", r"\1", nodes.split(",")[0]))


def as_launched(environment: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would tell a task of several; nothing where this is none, or torchrun did.

    >>> step = {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "a[3-4]"}
    >>> task = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
    >>> as_launched({**step, **task, "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2"})
    {'RANK': '3', 'LOCAL_RANK': '1', 'WORLD_SIZE': '4', 'LOCAL_WORLD_SIZE': '2', \
'MASTER_ADDR': 'a3', 'MASTER_PORT': '20019'}
    """
    step = find_step(environment)
    if step is None or step.size == 1 or "RANK" in environment:
        return {}
    job, number = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_STEP_ID"])
    return {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": str(step.size),
        "LOCAL_WORLD_SIZE": str(step.tasks[int(environment["SLURM_NODEID"])]),
        "MASTER_ADDR": environment.get("MASTER_ADDR", step.first_node),
        # Steps on one node should not meet.
        "MASTER_PORT": environment.get("MASTER_PORT", str(20000 + (job + number) % 10000)),
    }
