"""Lightning's trainer with `stats`: `predict` under its own name, less what changes the result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy

from neural_prep.engine.datamodule import StatsDataModule
from neural_prep.engine.launcher import RankLauncher
from neural_prep.errors import InputError

# Flags that change what is counted or its precision: the values that don't, and what to do.
_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "limit_predict_batches": ((None, 1.0), "choose steps with data.start and data.end"),
    "fast_dev_run": ((False, 0), "choose few steps with data.start and data.end"),
    "overfit_batches": ((0, 0.0), "choose steps with data.start and data.end"),
    "precision": ((None, "32-true", "32", 32), "sums are float64 whatever the data"),
    "use_distributed_sampler": ((False,), "blocks are shared out without a sampler"),
}
_STRATEGIES = ("auto", "ddp")
_ACCELERATORS = ("auto", "cpu")


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
        if name in flags and flags[name] not in harmless:
            raise InputError(
                f"trainer.{name}: {flags[name]!r} would change what is counted; leave it out: "
                f"{instead}"
            )
    strategy = flags.get("strategy", "auto")
    if strategy not in _STRATEGIES:
        raise InputError(
            f"trainer.strategy: {strategy!r} cannot be used; expected {' or '.join(_STRATEGIES)}"
        )
    accelerator = flags.get("accelerator", "auto")
    if accelerator not in _ACCELERATORS:
        raise InputError(
            f"trainer.accelerator: {accelerator!r} cannot be used; the arithmetic runs on cpu"
        )


def torchrun_flags() -> dict[str, int]:
    """The numbers of ranks and nodes where torchrun started this process, else nothing."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return {}
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    return {"devices": local, "num_nodes": int(os.environ["WORLD_SIZE"]) // local}
