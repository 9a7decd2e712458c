"""The Lightning data module: opens the store, plans its blocks and reads this rank's."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Literal

from lightning.pytorch import LightningDataModule

from neural_prep.data.layouts import open_source
from neural_prep.data.retry import RETRIES
from neural_prep.data.source import StoreOptions
from neural_prep.engine.plan import Plan
from neural_prep.engine.reading import PieceReader
from neural_prep.errors import InputError


class StatsDataModule(LightningDataModule):
    """A training store, of any layout.

    Args:
        path: The store's folder, or the URL of a zarr store: `s3://`, `gs://`, `https://`.
        layout: `meps`, `mllam`, `cf`, or `auto` to tell from the store.
        split: Name of the store's own split; unset, a time line is taken whole.
        start: First time that is used (for forecasts the analysis time), ISO 8601, inclusive.
        end: Last time that is used, inclusive; `2019-12-31` means that whole day.
        step: Time step inside a trajectory, such as `6h`; `any` takes neighbours as they come.
            Unset: the most frequent distance of neighbouring times.
        variables: Names of the features, where the store has none of its own.
        drop: Indices of features that are left out.
        region: `interior` leaves out the border of the MEPS layout's `border_mask`.
        infinite: What an infinite value does: end the run, or count as missing.
        corrupt: What a chunk or file that cannot be decoded does: end the run, or count as missing.
        retries: How often what fails for the moment is read again, after growing pauses.
        read_ahead: Uncompressed bytes that are being read or wait for the arithmetic; two pieces
            where those are more.
        storage_options: How a URL's store is reached, such as `{skip_signature: true}` for public
            data: obstore's settings of that kind of store.
        block_bytes: Uncompressed bytes of a block; another value may change last bits.
        piece_steps: Steps that are read at once, in whole chunks; unset: about 16 MB.
        workers: Threads of each rank that read and calculate; unset: its share of the cores.
    """

    def __init__(
        self,
        path: str,
        layout: str = "auto",
        split: str | None = None,
        start: str | None = None,
        end: str | None = None,
        step: str | None = None,
        variables: list[str] | None = None,
        drop: list[int] | None = None,
        region: Literal["all", "interior"] = "all",
        infinite: Literal["fail", "missing"] = "fail",
        corrupt: Literal["fail", "missing"] = "fail",
        retries: int = RETRIES,
        read_ahead: int = 256_000_000,
        storage_options: dict[str, Any] | None = None,
        block_bytes: int = 64_000_000,
        piece_steps: int | None = None,
        workers: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("block_bytes", block_bytes),
            ("piece_steps", piece_steps),
            ("workers", workers),
            ("read_ahead", read_ahead),
        ):
            if value is not None and value < 1:
                raise InputError(f"data.{name}: {value} is too small; expected at least 1")
        if retries < 0:
            raise InputError(f"data.retries: {retries} is too small; expected at least 0")
        if not path:
            raise InputError("data.path is empty; say which store to read")
        self._layout = layout
        self._options = StoreOptions(
            path=path,
            split=split,
            start=start,
            end=end,
            step=step,
            variables=None if variables is None else tuple(variables),
            drop=None if drop is None else tuple(drop),
            region=region,
            block_bytes=block_bytes,
            retries=retries,
            corrupt=corrupt,
            storage_options=storage_options,
        )
        self._read_ahead = read_ahead
        self._infinite = infinite
        self._piece_steps = piece_steps
        self._workers = workers
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
        if self._workers is not None:
            return self._workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        local = self.trainer.num_devices if self.trainer else 1
        return max((cores or 1) // local, 1)

    def open(self, lags: tuple[int, ...]) -> Plan:
        """Opens the store and plans its blocks; nothing but metadata is read.

        Raises:
            InputError: if the store cannot be used as it was asked for.
        """
        source = open_source(self._layout, self._options)
        options = self._options
        self._plan = Plan(
            source, lags, self._infinite, options.block_bytes, corrupt=options.corrupt
        )
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
            self.plan,
            runs,
            piece_steps=self._piece_steps,
            workers=self.threads,
            read_ahead=self._read_ahead,
        )
