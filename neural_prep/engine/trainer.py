"""Lightning's trainer with `stats`: `predict` under its own name, less what changes the result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy

from neural_prep.engine.datamodule import StatsDataModule
from neural_prep.engine.launcher import RankLauncher
from neural_prep.engine.planning import count_ranks
from neural_prep.engine.slurm import TaskEnvironment, check_tasks
from neural_prep.errors import InputError
from neural_prep.world.slurm import find_step

# Flags that change what is counted or its precision: the values that don't, and what to do.
_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    # Not 1.0 either: whether 1, one batch, is parsed as 1.0, all of them, hangs on typing's caches.
    "limit_predict_batches": ((None,), "choose steps with data.start and data.end"),
    "fast_dev_run": ((False, 0), "choose few steps with data.start and data.end"),
    "overfit_batches": ((0, 0.0), "choose steps with data.start and data.end"),
    "precision": ((None, "32-true", "32", 32), "sums are float64 whatever the data"),
    "use_distributed_sampler": ((False,), "blocks are shared out without a sampler"),
}
_STRATEGIES = ("auto", "ddp")
_KINDS = {"auto": "cpu", "cpu": "cpu", "gpu": "gpu", "cuda": "gpu"}  # by accelerator


class StatsTrainer(Trainer):
    """Runs the statistics on any number of ranks."""

    # jsonargparse finds Trainer's flags through this signature, as long as kwargs pass unchanged.
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(self.strategy, DDPStrategy):
            assert self.strategy.cluster_environment is not None
            self.strategy._launcher = RankLauncher(
                self.strategy.cluster_environment,
                self.strategy.num_processes,
                self.strategy.num_nodes,
            )

    def stats(self, model: LightningModule, datamodule: StatsDataModule) -> None:
        """Compute the training statistics of a store."""
        self.predict(model, datamodule=datamodule, return_predictions=False)


def check_flags(flags: Mapping[str, Any]) -> None:
    """Refuses trainer flags that would change what is counted, or that this run cannot follow.

    Raises:
        InputError: naming the flag, its value and the remedy.
    """
    for name, (harmless, instead) in _REFUSED.items():
        # Types count too: to Lightning, True is not 1.
        value = flags.get(name, harmless[0])
        if not any(value == each and type(value) is type(each) for each in harmless):
            raise InputError(
                f"trainer.{name}: {value!r} would change what is counted; leave it out: {instead}"
            )
    plugins = flags.get("plugins") or []
    for plugin in plugins if isinstance(plugins, list) else [plugins]:
        if isinstance(plugin, Precision):
            raise InputError(
                f"trainer.plugins: {type(plugin).__name__} would change the precision of what is "
                "counted; leave it out: sums are float64 whatever the data"
            )
    strategy = flags.get("strategy", "auto")
    if strategy not in _STRATEGIES:
        raise InputError(
            f"trainer.strategy: {strategy!r} cannot be used; expected {' or '.join(_STRATEGIES)}"
        )
    if device_kind(flags) == "gpu":
        _check_gpu(flags["accelerator"])
    else:
        _check_cpus(flags.get("devices", "auto"))
    nodes = flags.get("num_nodes", 1)
    if nodes < 1:
        raise InputError(f"trainer.num_nodes: {nodes} is no number of nodes; expected at least 1")


def _check_cpus(devices: Any) -> None:
    """Raises unless this is a number of ranks; GPUs may be listed."""
    if isinstance(devices, list) or "," in str(devices):
        raise InputError(
            f"trainer.devices: {devices!r} is a list, as of GPUs; on CPUs give a number of ranks"
        )
    count_ranks(devices)


def device_kind(flags: Mapping[str, Any]) -> str:
    """Where the arithmetic runs: `cpu` or `gpu`.

    What binds is reading and decoding, which CPUs do either way, so that `auto` is a CPU. The kind
    is part of what a result depends on: nothing else may choose it.

    Raises:
        InputError: if it can run on no such accelerator.

    >>> [device_kind({"accelerator": name}) for name in ("auto", "cuda")], device_kind({})
    (['cpu', 'gpu'], 'cpu')
    """
    accelerator = flags.get("accelerator", "auto")
    if accelerator not in _KINDS:
        raise InputError(
            f"trainer.accelerator: {accelerator!r} cannot be used; expected {' or '.join(_KINDS)}"
        )
    return _KINDS[accelerator]


def _check_gpu(accelerator: str) -> None:
    """Makes sure that there is a GPU.

    Raises:
        InputError: if there is none that torch can use.
    """
    if torch.cuda.is_available():
        return
    built = torch.version.cuda or torch.version.hip
    why = "no GPU is found" if built else f"torch {torch.__version__} is built without CUDA"
    raise InputError(
        f"trainer.accelerator: {accelerator!r} needs a GPU, but {why}; leave it out, or set "
        "trainer.accelerator: cpu"
    )


def launcher_flags() -> dict[str, Any]:
    """What follows from whoever started this process.

    torchrun says how many ranks and nodes there are. Tasks that srun has started are ranks;
    whatever else runs in Slurm's jobs starts ranks itself, as anywhere.
    """
    if _is_from_torchrun():
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return {"devices": local, "num_nodes": int(os.environ["WORLD_SIZE"]) // local}
    step = find_step(os.environ)
    if step is not None:
        return {"plugins": [TaskEnvironment(step)]}
    return {"plugins": [LightningEnvironment()]} if SLURMEnvironment.detect() else {}


def check_world(trainer: Trainer) -> None:
    """Holds the trainer's numbers of ranks and nodes against those that were started.

    Raises:
        InputError: if they differ.
    """
    step = find_step(os.environ)
    if step is not None and not _is_from_torchrun():
        check_tasks(step, trainer.num_devices, trainer.num_nodes)
    if not isinstance(trainer.strategy, DDPStrategy):
        return
    environment = trainer.strategy.cluster_environment
    assert environment is not None
    alone = isinstance(environment, LightningEnvironment) and "NODE_RANK" not in os.environ
    if trainer.num_nodes > 1 and alone:
        raise InputError(
            f"trainer.num_nodes: {trainer.num_nodes}, but nothing says where the other nodes are; "
            "start the command with torchrun or srun"
        )
    try:
        environment.validate_settings(trainer.num_devices, trainer.num_nodes)
    except ValueError as error:
        raise InputError(
            f"trainer.devices: {trainer.num_devices} on each of {trainer.num_nodes} nodes is not "
            f"what was started: {error}"
        ) from error


def _is_from_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ
