"""The plan of a run: all blocks of all series in one line, and each rank's part of it."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_prep import __version__
from neural_prep.data.source import Source, StoreOptions
from neural_prep.stats.blocks import nodes_of, split_runs

ARITHMETIC = 1  # counts up when the same data give other bits

Block = tuple[int, int]  # series, index


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive blocks of one series that one rank takes."""

    series: int
    blocks: range


@dataclass(frozen=True)
class Plan:
    """What is read, and who reads what.

    Attributes:
        source: The opened store.
        lags: The differences' lags.
        infinite: What an infinite value does: `fail` or `missing`.
        block_bytes: What blocks aim at.
        done: For each series which blocks earlier starts have finished, as all ranks know it;
            () where there were none.
        corrupt: What a chunk that cannot be decoded does: `fail` or `missing`.
    """

    source: Source
    lags: tuple[int, ...]
    infinite: str
    block_bytes: int
    done: tuple[NDArray[np.bool_], ...] = ()
    corrupt: str = "fail"

    @property
    def blocks(self) -> int:
        """Number of blocks of all series."""
        return sum(self.lengths)

    @property
    def nbytes(self) -> int:
        """Uncompressed bytes of all blocks."""
        return sum(int(series.block_nbytes.sum()) for series in self.source.series)

    def lags_of(self, series: int) -> tuple[int, ...]:
        """The lags that a series has differences for: none in the static group."""
        return () if self.source.series[series].group == "static" else self.lags

    def reach_of(self, series: int) -> int:
        """The longest lag that has a pair in a series; 0 where none has."""
        reach = self.source.series[series].reach
        return max((lag for lag in self.lags_of(series) if lag <= reach), default=0)

    def longest_lag(self, series: int) -> int:
        """The longest lag of a series, whether or not it has a pair; 0 where there is none."""
        return max(self.lags_of(series), default=0)

    def runs(self, rank: int, ranks: int) -> tuple[Run, ...]:
        """The rank's part, cut at the series' ends; empty where ranks outnumber blocks."""
        return _cut_at_series(self._ends, self._shares(ranks)[rank])

    def all_runs(self, ranks: int) -> tuple[tuple[Run, ...], ...]:
        """Every rank's part."""
        return tuple(_cut_at_series(self._ends, share) for share in self._shares(ranks))

    def nodes(self, ranks: int) -> list[dict[int, int]]:
        """How many nodes of which series each rank sends in the end."""
        return [
            {run.series: nodes_of(run.blocks, self.lengths[run.series]) for run in runs}
            for runs in self.all_runs(ranks)
        ]

    def record_shape(self, series: int) -> tuple[int, int]:
        """Kinds of values (the values themselves, each lag) and variables of a series' records."""
        return 1 + len(self.lags_of(series)), len(self.source.series[series].columns)

    def _shares(self, ranks: int) -> list[range]:
        """Shares of about as much work each: blocks that are done are none."""
        nbytes = np.concatenate([series.block_nbytes for series in self.source.series])
        if self.done:
            nbytes = np.where(np.concatenate(self.done), 0, nbytes)
        return split_runs(nbytes, ranks)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of blocks of each series."""
        return tuple(len(series.block_nbytes) for series in self.source.series)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """Where each series ends in the line of all blocks."""
        return tuple(accumulate(self.lengths))

    def covered(self, device: str) -> dict[str, Any]:
        """What decides blocks' bits, besides what a stamp covers of each: keys are for users.

        It is store, split, lags, options, version of the arithmetic and kind of device.
        """
        options = {each.name for each in fields(StoreOptions)}
        identity = self.source.identity
        return {
            "arithmetic": ARITHMETIC,
            "neural_prep": __version__,
            "layout": self.source.layout,
            "model.lags": list(self.lags),
            "data.infinite": self.infinite,
            "data.corrupt": self.corrupt,
            "data.block_bytes": self.block_bytes,
            "device": device,
            **{f"data.{name}": identity[name] for name in sorted(options & identity.keys())},
            "store": {name: identity[name] for name in sorted(identity.keys() - options)},
        }

    def fingerprint(self, device: str) -> str:
        """Identifies the result by all that it depends on."""
        return digest({**self.covered(device), "extent": self.source.extent})


def digest(value: object) -> str:
    """A short text for a value of JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _cut_at_series(ends: Sequence[int], share: range) -> tuple[Run, ...]:
    """A share of the line of all blocks, series by series.

    Args:
        ends: Where each series ends in that line.
        share: The share.

    >>> _cut_at_series([3, 5], range(1, 5))
    (Run(series=0, blocks=range(1, 3)), Run(series=1, blocks=range(0, 2)))
    """
    runs, at = [], share.start
    while at < share.stop:
        series = bisect_right(ends, at)
        begin = ends[series - 1] if series else 0
        stop = min(share.stop, ends[series])
        runs.append(Run(series, range(at - begin, stop - begin)))
        at = stop
    return tuple(runs)
