"""The Lightning data module: opens the store, plans its blocks and reads this rank's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightning.pytorch import LightningDataModule

from neural_prep.engine.options import DataOptions
from neural_prep.engine.plan import Plan
from neural_prep.engine.reading import PieceReader


class StatsDataModule(LightningDataModule):
    """A training store, of any layout."""

    # jsonargparse finds the options through this signature, as long as kwargs pass unchanged.
    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._options = DataOptions(**kwargs)
        self._plan: Plan | None = None

    @property
    def plan(self) -> Plan:
        """The plan of the run, once `open` was called."""
        assert self._plan is not None, "the store has not been opened"
        return self._plan

    @property
    def split(self) -> str | None:
        """The split that is read."""
        return self._options.split

    @property
    def threads(self) -> int:
        """How many threads a rank reads and calculates with: by default its share of the cores."""
        return self._options.threads(self.trainer.num_devices if self.trainer else 1)

    def open(self, lags: tuple[int, ...]) -> Plan:
        """Opens the store and plans its blocks; nothing but metadata is read.

        Raises:
            InputError: if the store cannot be used as it was asked for.
        """
        self._plan = self._options.open(lags)
        return self._plan

    def leave_out(self, done: frozenset[tuple[int, int]]) -> Plan:
        """Reads no block again that is done; returns the new plan."""
        self._plan = replace(self.plan, done=done)
        return self._plan

    def predict_dataloader(self) -> PieceReader:
        """This rank's pieces."""
        assert self.trainer is not None
        runs = self.plan.runs(self.trainer.global_rank, self.trainer.world_size)
        return PieceReader(
            self.plan, runs, piece_steps=self._options.piece_steps, workers=self.threads
        )
