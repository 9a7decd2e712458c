"""What a run is asked for, apart from Lightning: a plan is made without importing that."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from neural_prep.data.layouts import open_source
from neural_prep.data.retry import RETRIES
from neural_prep.data.source import Decoder, StoreOptions
from neural_prep.engine.plan import Plan
from neural_prep.engine.reading import READ_AHEAD
from neural_prep.errors import InputError

_LONGEST_LAG = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DataOptions:
    """A training store, of any layout.

    Attributes:
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
        decoder: Who decodes a local zarr store's chunks: zarr-python (`zarr`), `zarrs`, or `auto`
            for the fastest that is installed.
        block_bytes: Uncompressed bytes of a block; another value may change last bits.
        piece_steps: Steps that are read at once, in whole chunks; unset: about 16 MB.
        workers: Threads of each rank that read and calculate; unset: its share of the cores.
    """

    path: str
    layout: str = "auto"
    split: str | None = None
    start: str | None = None
    end: str | None = None
    step: str | None = None
    variables: list[str] | None = None
    drop: list[int] | None = None
    region: Literal["all", "interior"] = "all"
    infinite: Literal["fail", "missing"] = "fail"
    corrupt: Literal["fail", "missing"] = "fail"
    retries: int = RETRIES
    read_ahead: int = READ_AHEAD
    storage_options: dict[str, Any] | None = None
    decoder: Decoder = "auto"
    block_bytes: int = 64_000_000
    piece_steps: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("block_bytes", "piece_steps", "workers", "read_ahead"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"data.{name}: {value} is too small; expected at least 1")
        if self.retries < 0:
            raise InputError(f"data.retries: {self.retries} is too small; expected at least 0")
        if not self.path:
            raise InputError("data.path is empty; say which store to read")

    def open(self, lags: Sequence[int]) -> Plan:
        """Opens the store and plans its blocks; nothing but metadata is read.

        Raises:
            InputError: if the store cannot be used as it was asked for.
        """
        options = StoreOptions(
            path=self.path,
            split=self.split,
            start=self.start,
            end=self.end,
            step=self.step,
            variables=None if self.variables is None else tuple(self.variables),
            drop=None if self.drop is None else tuple(self.drop),
            region=self.region,
            block_bytes=self.block_bytes,
            retries=self.retries,
            corrupt=self.corrupt,
            storage_options=self.storage_options,
            decoder=self.decoder,
        )
        source = open_source(self.layout, options)
        return Plan(source, tuple(lags), self.infinite, self.block_bytes, corrupt=self.corrupt)

    def threads(self, ranks: int) -> int:
        """How many threads a rank reads and calculates with: by default its share of the cores.

        Args:
            ranks: Ranks on this machine.
        """
        if self.workers is not None:
            return self.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return max((cores or 1) // ranks, 1)


def check_lags(lags: Sequence[int]) -> tuple[int, ...]:
    """The lags, once it is known that each of them is one and is given once.

    Raises:
        InputError: naming the lag.
    """
    for lag in lags:
        if not 1 <= lag <= _LONGEST_LAG:
            raise InputError(
                f"model.lags: {lag} is no lag; expected whole numbers from 1 to {_LONGEST_LAG}"
            )
    repeated = [lag for lag in lags if lags.count(lag) > 1]
    if repeated:
        raise InputError(f"model.lags: {repeated[0]} is given more than once; give each lag once")
    return tuple(lags)
