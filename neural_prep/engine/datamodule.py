"""The Lightning data module: opens the store, plans its blocks and reads this rank's."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule

from neural_prep.data.chunked.threads import decode_with
from neural_prep.engine.options import DataOptions
from neural_prep.engine.plan import Block, Plan
from neural_prep.engine.reading import PieceReader


class StatsDataModule(LightningDataModule):
    """A training store, of any layout."""

    # jsonargparse finds the options through this signature, as long as kwargs pass unchanged.
    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._options = DataOptions(**kwargs)
        self._plan: Plan | None = None
        self._finished: frozenset[Block] = frozenset()

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

    def open(self, lags: tuple[int, ...], ranks: int = 1) -> Plan:
        """Opens the store and plans its blocks; nothing but metadata is read.

        Args:
            lags: The differences' lags.
            ranks: Ranks on this machine, which share its cores.

        Raises:
            InputError: if the store cannot be used as it was asked for.
        """
        decode_with(self._options.threads(ranks))  # arrays take it up when they are opened
        self._plan = self._options.open(lags)
        return self._plan

    def go_on(self, plan: Plan, finished: frozenset[Block]) -> None:
        """Takes another plan of the same store, of which this rank has finished these blocks."""
        self._plan, self._finished = plan, finished

    def predict_dataloader(self) -> PieceReader:
        """This rank's pieces."""
        assert self.trainer is not None
        runs = self.plan.runs(self.trainer.global_rank, self.trainer.world_size)
        return PieceReader(
            self.plan,
            runs,
            finished=self._finished,
            piece_steps=self._options.piece_steps,
            workers=self.threads,
            read_ahead=self._options.read_ahead,
        )
