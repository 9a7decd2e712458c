"""The plan of a run: all blocks of all series in one line, and each rank's part of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neural_prep import __version__
from neural_prep.data.source import Source
from neural_prep.stats.blocks import split_runs

ARITHMETIC = 1  # counts up when the same data give other bits


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
        done: Blocks that an earlier start has finished, as series and index.
        corrupt: What a chunk that cannot be decoded does: `fail` or `missing`.
    """

    source: Source
    lags: tuple[int, ...]
    infinite: str
    block_bytes: int
    done: frozenset[tuple[int, int]] = frozenset()
    corrupt: str = "fail"

    @property
    def blocks(self) -> int:
        """Number of blocks of all series."""
        return sum(len(series.block_nbytes) for series in self.source.series)

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

    def runs(self, rank: int, ranks: int) -> tuple[Run, ...]:
        """The rank's part, cut at the series' ends; empty where ranks outnumber blocks."""
        return _cut_at_series(self.lengths, self._shares(ranks)[rank])

    def all_runs(self, ranks: int) -> tuple[tuple[Run, ...], ...]:
        """Every rank's part."""
        return tuple(_cut_at_series(self.lengths, share) for share in self._shares(ranks))

    def record_shape(self, series: int) -> tuple[int, int]:
        """Kinds of values (the values themselves, each lag) and variables of a series' records."""
        return 1 + len(self.lags_of(series)), len(self.source.series[series].columns)

    @property
    def done_nbytes(self) -> int:
        """Uncompressed bytes of the blocks that are done."""
        return sum(
            int(self.source.series[series].block_nbytes[index]) for series, index in self.done
        )

    def _shares(self, ranks: int) -> list[range]:
        """Shares of about as much work each: blocks that are done are none."""
        nbytes = [series.block_nbytes.copy() for series in self.source.series]
        for series, index in self.done:
            nbytes[series][index] = 0
        return split_runs(np.concatenate(nbytes), ranks)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of blocks of each series."""
        return tuple(len(series.block_nbytes) for series in self.source.series)

    def covered(self, device: str) -> dict[str, Any]:
        """What decides a block's bits: store, split, lags, options, arithmetic, kind of device."""
        return {
            "arithmetic": ARITHMETIC,
            "version": __version__,
            "layout": self.source.layout,
            "store": _digest(self.source.identity),
            "lags": list(self.lags),
            "infinite": self.infinite,
            "corrupt": self.corrupt,
            "block_bytes": self.block_bytes,
            "device": device,
        }

    def fingerprint(self, device: str) -> str:
        """Identifies the result by all that it depends on."""
        return _digest(self.covered(device))


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _cut_at_series(lengths: Sequence[int], share: range) -> tuple[Run, ...]:
    """A share of the line of all blocks, series by series.

    >>> _cut_at_series([3, 2], range(1, 5))
    (Run(series=0, blocks=range(1, 3)), Run(series=1, blocks=range(0, 2)))
    """
    runs, begin = [], 0
    for series, length in enumerate(lengths):
        first, stop = max(share.start - begin, 0), min(share.stop - begin, length)
        if first < stop:
            runs.append(Run(series, range(first, stop)))
        begin += length
    return tuple(runs)
