"""The Lightning module: adds pieces up to blocks, and at the end merges all ranks' blocks."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple

import numpy as np
import torch
from lightning.pytorch import LightningModule

from neural_prep.engine.datamodule import StatsDataModule
from neural_prep.engine.gather import gather_nodes
from neural_prep.engine.journal import Journal
from neural_prep.engine.options import check_lags
from neural_prep.engine.peers import Peers
from neural_prep.engine.plan import Plan
from neural_prep.engine.reading import Batch, Pending
from neural_prep.engine.resume import AllTaken, all_taken, take_up
from neural_prep.errors import InputError
from neural_prep.stats.accumulate import SeriesAccumulator
from neural_prep.stats.arithmetic import Arithmetic, arithmetic_on
from neural_prep.stats.corrupt import CorruptChunk
from neural_prep.stats.moments import Record
from neural_prep.stats.tree import MergeTree

_log = logging.getLogger(__name__)


class StatsModule(LightningModule):
    """Sums and squared sums of values and of their differences, exact for any number of ranks.

    Args:
        lags: Distances of the two ends of a difference, in steps.
        parameter_weights: A variable's weight in the loss by the level that its name ends in;
            without a table no weights are written.
    """

    def __init__(
        self,
        lags: list[int] = [1],  # noqa: B006 - never changed, and --help shows it
        parameter_weights: Mapping[int, float] | None = None,
    ) -> None:
        super().__init__()
        self.lags = check_lags(lags)
        self.parameter_weights = parameter_weights
        self.records: list[Record] | None = None  # one for each series, when all is merged
        self.seconds = 0.0
        self.nbytes = 0
        self.corrupt: list[CorruptChunk] = []  # this rank's, and all ranks' when all is merged
        self.journal: Journal | None = None
        self.resumed = AllTaken()
        self._peers: Peers | None = None
        self._arithmetic: Arithmetic | None = None
        self._warned = False  # of a journal that cannot be written to
        # Plain attributes: as buffers, DDP would overwrite them with rank 0's.
        self._accumulators: dict[int, SeriesAccumulator] = {}
        self._trees: list[MergeTree] = []
        self._corrupt_until: dict[tuple[int, int], int] = {}  # by series and part: a position
        self._is_sound = True  # the block has nothing to do with a corrupt chunk

    @property
    def peers(self) -> Peers:
        """The side channel to the other ranks."""
        assert self._peers is not None, "the run has not begun"
        return self._peers

    @property
    def datamodule(self) -> StatsDataModule:
        """The data that are read."""
        module = self.trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(module, StatsDataModule)
        return module

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.datamodule.plan

    def setup(self, stage: str) -> None:
        """Opens the side channel as soon as there is a process group, and takes up what is done.

        That has to be now: Lightning asks the reader for its first piece before a run's start.
        """
        self._peers = Peers()
        self._peers.start()
        self._trees = [MergeTree(length) for length in self.plan.lengths]
        if self.journal is not None:
            self._take_up(self.journal)

    def on_predict_start(self) -> None:
        """Prepares the sums, and starts the clock when every rank is ready."""
        self._arithmetic = arithmetic_on(self.device, self.datamodule.threads)
        self.peers.wait_for_all("ready", self._idle)
        if self.journal is not None:
            self._say_what_is_done(self.journal)
        self._begun = time.perf_counter()

    def transfer_batch_to_device(
        self, batch: Pending, device: torch.device, dataloader_idx: int
    ) -> Pending:
        """Leaves the piece where it is: it may be being read, and the arithmetic moves it."""
        return batch

    def predict_step(self, batch: Pending, batch_idx: int) -> Mapping[str, int]:
        """Adds one piece; a block that ends with it goes into the tree."""
        piece = batch.result(self._while_reading)
        self.peers.check()
        if self.journal is not None:
            self._keep(Journal.sync)
        accumulator = self._accumulator(piece.series)
        if piece.piece is not None:
            self._add(accumulator, piece)
            self._note_corrupt(piece)
        if piece.last:
            self._finish(piece, accumulator.finish())
            self._is_sound = True
        return {}

    def _finish(self, piece: Batch, record: Record) -> None:
        """Puts a block's record into the tree and, unless a chunk of it is lost, the journal."""
        self._trees[piece.series].add((0, piece.block), record)
        if self.journal is not None and self._is_sound:
            block = piece.series, piece.block
            self._keep(lambda journal: journal.add(block, piece.stamp, record))
        self.peers.add_block()

    def on_predict_epoch_end(self) -> None:
        """Waits for all ranks, gathers their nodes and merges them; every rank has the result."""
        if self.journal is not None:
            self.journal.close()
        self.peers.share([json.dumps(astuple(chunk)) for chunk in self.corrupt])
        self.peers.wait_for_all("done", self._idle)
        self.corrupt = [CorruptChunk(*json.loads(line)) for line in self.peers.shared()]
        self.nbytes = self.peers.total_bytes
        self.records = gather_nodes(self.plan, self._trees, self._all_gather)
        self.peers.stop()
        self.seconds = time.perf_counter() - self._begun

    def _take_up(self, journal: Journal) -> None:
        """Adds this rank's blocks that earlier starts have finished; all ranks plan alike."""
        taken = take_up(
            journal,
            self.plan,
            self.peers,
            threads=self.datamodule.threads,
            idle=self._idle,
            add=lambda block, record: self._trees[block[0]].add((0, block[1]), record),
        )
        self.datamodule.go_on(taken.plan, taken.finished)
        taken.count(self.peers)

    def _say_what_is_done(self, journal: Journal) -> None:
        """Says once what all ranks have taken up.

        Raises:
            InputError: on all ranks, if they see different stores, or if there must be something
                to take up and nothing is.
        """
        self.resumed = all_taken(self.peers)
        if self.resumed.different:
            raise InputError(
                f"{self.plan.source.path} is not the same store for all ranks: "
                f"{self.resumed.different} of {self.peers.ranks} found another one than rank 0; "
                "give all nodes the same one, and start again when no one writes to it"
            )
        if self.peers.rank == 0:
            for line in self.resumed.lines(self.plan.blocks):
                _log.info(line)
        if journal.required and not self.resumed.blocks:
            raise InputError(
                f"output.resume: require, but the store has changed since {journal.folder} was "
                "written: none of its blocks holds; leave it out to begin anew"
            )

    def _keep(self, write: Callable[[Journal], None]) -> None:
        """Writes to the journal; where that fails, one rank says so and the run goes on."""
        assert self.journal is not None
        try:
            write(self.journal)
        except OSError as error:
            if not self._warned and self.peers.count("warned", 1) == 1:
                _log.error("warning: %s", self.journal.unwritten(error))
            self._warned = True

    def _all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered = self.all_gather(tensor.to(self.device))  # NCCL takes no tensor of the CPU
        assert isinstance(gathered, torch.Tensor)
        return gathered

    def _note_corrupt(self, batch: Batch) -> None:
        """Keeps chunks that could not be decoded; those of a lag's context are their own block's.

        A block that such a chunk, or a lag's earlier end in one, belongs to is not kept for another
        start, which lists the chunk, or finds it mended.
        """
        piece, series = batch.piece, batch.series
        assert piece is not None
        span = piece.span
        if piece.corrupt:
            self._corrupt_until[series, span.part] = span.stop
            if not span.context:
                self.corrupt += piece.corrupt
        until = self._corrupt_until.get((series, span.part))
        if until is not None and span.first < until + self.plan.reach_of(series):
            self._is_sound = False

    def _while_reading(self) -> None:
        self.peers.check()
        self._idle()

    def _idle(self) -> None:
        """Lets callbacks go on while this rank waits for others: those that have `on_waiting`."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if hasattr(callback, "on_waiting"):
                callback.on_waiting(self.trainer, self)

    def teardown(self, stage: str) -> None:
        """Lets threads go."""
        if self._arithmetic is not None:
            self._arithmetic.close()

    def _accumulator(self, series: int) -> SeriesAccumulator:
        """The series' accumulator; those of earlier series are finished and let go."""
        if series not in self._accumulators:
            columns = self.plan.source.series[series].columns
            self._accumulators = {
                series: SeriesAccumulator(
                    len(columns),
                    self.plan.lags_of(series),
                    self.plan.reach_of(series),
                    self._arithmetic,
                )
            }
        return self._accumulators[series]

    def _add(self, accumulator: SeriesAccumulator, batch: Batch) -> None:
        piece = batch.piece
        assert piece is not None
        infinite = accumulator.add(
            piece.values,
            piece.age,
            first=piece.span.first,
            context=piece.span.context,
            part=piece.span.part,
        )
        self.peers.add_bytes(piece.span.nbytes)
        if infinite.size and self.plan.infinite == "fail":
            self._refuse_infinity(batch, int(infinite[0]))

    def _refuse_infinity(self, batch: Batch, step: int) -> None:
        """Raises if a variable that is used is infinite at this step."""
        piece = batch.piece
        assert piece is not None
        series = self.plan.source.series[batch.series]
        group = next(g for g in self.plan.source.groups if g.name == series.group)
        found = np.isinf(piece.values[step]).any(axis=1).reshape(-1)  # (O * I,)
        used = [
            column
            for column, is_infinite in zip(series.columns, found, strict=True)
            if is_infinite and column >= 0
        ]
        if used:
            raise InputError(
                f"{group.variables[used[0]].name} is infinite in {series.place(piece.span, step)}; "
                "mend the data, or count infinities as missing with data.infinite: missing"
            )
