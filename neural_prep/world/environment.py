"""The environment variables of a rank: torchrun's own names, and nothing of an outer launcher's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# What torchrun, Slurm, MPI and Lightning tell their processes.
_LAUNCHERS = (
    "LOCAL_",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_",
    "NODE_RANK",
    "OMPI_",
    "PALS_",
    "PL_",
    "PMI_",
    "PMIX_",
    "RANK",
    "ROLE_",
    "SLURM",
    "TORCHELASTIC_",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "WORLD_SIZE",
    "NEURAL_PREP_WORLD",
)
WORLD = "NEURAL_PREP_WORLD"  # in a rank of this package, its MASTER_PORT
GPUS = "CUDA_VISIBLE_DEVICES"


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what launchers of distributed jobs add to it.

    >>> clean({"HOME": "/home/a", "RANK": "1", "SLURM_JOB_ID": "7"})
    {'HOME': '/home/a'}
    """
    return {key: value for key, value in environment.items() if not key.startswith(_LAUNCHERS)}


def is_launched(environment: Mapping[str, str]) -> bool:
    """Whether torchrun, or what acts like it, has started this process as a rank.

    What a rank of this package's own worlds starts has not been.

    >>> is_launched({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"})
    True
    """
    launched = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(environment)
    return launched and environment.get(WORLD, "") != environment.get("MASTER_PORT")


def threads_of(ranks: int, cores: int) -> int:
    """Threads of each of so many ranks that share a machine.

    >>> [threads_of(ranks, cores=8) for ranks in (1, 2, 3, 16)]
    [8, 4, 2, 1]
    """
    return max(1, cores // ranks)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Names of the GPUs that a process with this environment may use, without asking CUDA.

    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "4,5"})
    ['4', '5']
    """
    visible = environment.get(GPUS)
    if visible is not None:
        return [name for name in visible.split(",") if name]
    known = Path("/proc/driver/nvidia/gpus")
    return [str(gpu) for gpu in range(len(list(known.iterdir())) if known.is_dir() else 0)]


def gpu_of(rank: int, gpus: int, visible: str | None) -> str:
    """The one entry of `CUDA_VISIBLE_DEVICES` that a rank sees.

    >>> gpu_of(1, gpus=4, visible=None), gpu_of(1, gpus=4, visible="4,5,6,7")
    ('1', '5')
    """
    names = visible.split(",") if visible else [str(gpu) for gpu in range(gpus)]
    return names[rank]


def environment_of(
    rank: int, size: int, *, port: int, gpus: int, base: Mapping[str, str]
) -> dict[str, str]:
    """The environment of one rank of a world on this machine.

    Args:
        rank: The rank.
        size: Number of ranks.
        port: Port of rank 0's store, on the loopback interface.
        gpus: Number of GPUs; where every rank has one, it sees that one alone.
        base: The environment outside.
    """
    environment = clean(base)
    environment.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        NEURAL_PREP_WORLD=str(port),
    )
    environment.setdefault("OMP_NUM_THREADS", str(threads_of(size, cores())))
    if gpus >= size:
        environment[GPUS] = gpu_of(rank, gpus, base.get(GPUS))
    return environment
