"""One series' accumulator: pieces of a block in, the block's record out.

Steps are merged in their order, whatever pieces and batches they came in. Missing values are left
out of every sum and counted; a pair is missing where either value is. Infinite values count as
missing, and are reported, so that the caller decides.

Legend: T steps, O outer and I inner variables, N grid points, L lags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from neural_prep.stats.arithmetic import Arithmetic, HostArithmetic, Steps
from neural_prep.stats.moments import Record, empty, merge, merge_into


class SeriesAccumulator:
    """Sums the blocks of one series, one after the other.

    It remembers the last steps of each part of the grid, because the next block of that part needs
    them for its lags.

    Args:
        variables: Number of variables.
        lags: The lags, each at least 1.
        reach: The longest lag that has a pair, so that no more steps are remembered than are
            needed; None: the longest of the lags.
        arithmetic: Who makes the steps' records; None: this thread.
    """

    def __init__(
        self,
        variables: int,
        lags: Sequence[int],
        reach: int | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        self._lags = np.asarray(lags, np.int64)
        self._record = empty(1 + len(lags), variables)
        self._longest = max(max(lags, default=1) if reach is None else reach, 1)
        self._arithmetic = HostArithmetic() if arithmetic is None else arithmetic
        self._tails: dict[int, _Tail] = {}

    def add(
        self,
        values: NDArray[np.floating],
        age: NDArray[np.int64],
        *,
        first: int,
        context: int = 0,
        part: int = 0,
    ) -> NDArray[np.intp]:
        """Adds consecutive steps to the current block.

        Args:
            values: `(T, O, N, I)` float32 or float64 in native byte order, NaN where missing;
                copied unless C-contiguous and writeable, because each kind of array would be
                compiled for.
            age: `(T,)`, steps of the same trajectory before each; -1 where a step is not selected.
            first: The first step's position; positions of one part are fed in ascending order.
            context: Leading steps that are counted elsewhere.
            part: Which part of the grid this is.

        Returns:
            Which of the T steps hold infinite values.
        """
        steps, outer, _, inner = values.shape
        rows = np.require(values, requirements=["C", "A", "W"]).reshape(steps, outer, -1)
        age = np.require(age, np.int64, ["C", "A", "W"])
        if rows.shape[2] == 0:
            return np.empty(0, np.intp)
        tail = self._tail(part, rows, first)
        reach = self._reach(age, context)
        assert not reach or first - reach >= tail.first, f"{reach} steps before {first} lack"
        piece = Steps(rows, tail.steps, first - tail.base, age, self._lags, inner)
        infinite = np.zeros(steps, np.bool_)
        at = context
        for records, found in self._arithmetic.summarise(piece, context):
            merge_into(self._record, records)
            infinite[at : at + len(found)] = found
            at += len(found)
        self._remember(part, tail, rows, first)
        return np.flatnonzero(infinite)

    def finish(self) -> Record:
        """The current block's record; the next `add` starts another block.

        Pieces are let go: only the steps that the next block's lags need are kept, as copies.
        """
        for part, tail in self._tails.items():
            if not tail.owned:
                self._tails[part] = replace(tail, steps=tail.steps.copy(), owned=True)
        record, self._record = self._record, empty(*self._record.shape[1:])
        return record

    def _reach(self, age: NDArray[np.int64], context: int) -> int:
        """How many steps before the first one the lags of the counted steps go."""
        t = np.arange(context, min(len(age), self._longest))
        return int(np.where(self._lags <= age[t, None], self._lags - t[:, None], 0).max(initial=0))

    def _tail(self, part: int, rows: NDArray[np.floating], first: int) -> _Tail:
        tail = self._tails.get(part)
        if tail is None or tail.steps.shape[1:] != rows.shape[1:]:
            return _Tail(np.zeros((self._longest, *rows.shape[1:]), rows.dtype), first, first)
        return tail

    def _remember(self, part: int, tail: _Tail, rows: NDArray[np.floating], first: int) -> None:
        """Keeps the last steps: as a view while the piece is long enough, else in a ring."""
        if not self._lags.size:
            return
        if len(rows) >= self._longest:
            start = len(rows) - self._longest
            self._tails[part] = _Tail(rows[start:], first + start, first + start)
            return
        steps = tail.steps if tail.owned else tail.steps.copy()
        steps[(np.arange(first, first + len(rows)) - tail.base) % len(steps)] = rows
        begin = max(tail.first, first + len(rows) - len(steps))
        self._tails[part] = _Tail(steps, tail.base, begin, owned=True)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last steps of one part `(R, O, N * I)`: position p in slot (p - base) mod R.

    Attributes:
        steps: Their values.
        base: The position in slot 0, or a multiple of R from it.
        first: The first position that is there.
        owned: Whether `steps` are a copy, which may be written to.
    """

    steps: NDArray[np.floating]
    base: int
    first: int
    owned: bool = False


def warm_up(device: str = "cpu") -> None:
    """Loads the compiled arithmetic; compiles it where no cache is there yet: ten seconds, once.

    Args:
        device: Kind of device that steps are summed on; merging them is always the CPU's.
    """
    merge(empty(2, 1), empty(2, 1))
    if device != "cpu":
        return
    for dtype in (np.float32, np.float64):
        accumulator = SeriesAccumulator(1, [1])
        accumulator.add(np.zeros((2, 1, 2, 1), dtype), np.arange(2), first=0)
        merge(accumulator.finish(), empty(2, 1))
