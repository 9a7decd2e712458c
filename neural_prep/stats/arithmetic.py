"""Who turns steps into records: numba's loop in threads, or torch on a GPU.

A record depends on its own step alone, so neither threads nor batches change a bit.

Legend: T steps, R steps before them, O outer and I inner variables, N grid points, L lags.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from neural_prep.stats.device import pair_records
from neural_prep.stats.kernel import TILE, lanes_of, summarise_steps
from neural_prep.stats.moments import MAX, MIN

_BATCH_BYTES = 8_000_000  # of steps' records held at once
_SERIAL_BYTES = 2_000_000  # a piece smaller than this is not worth several threads
_DEVICE_BYTES = 256_000_000  # of float64 values that a device works on at once, or one step's

# Steps' records `(B, 8, 1 + L, O * I)`, and which of these steps hold infinite values `(B,)`.
Summary = tuple[NDArray[np.float64], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Steps:
    """Consecutive steps, and those before them that lags look back on.

    Attributes:
        rows: `(T, O, N * I)` float32 or float64, NaN where missing; C-contiguous and writeable.
        ring: `(R, O, N * I)`, the steps before them.
        ahead: The slot, modulo R, that `rows[0]` would have in the ring.
        age: `(T,)` steps of the same trajectory before each; -1: the step is not selected.
        lags: `(L,)`, each at least 1.
        inner: I.
    """

    rows: NDArray[np.floating]
    ring: NDArray[np.floating]
    ahead: int
    age: NDArray[np.int64]
    lags: NDArray[np.int64]
    inner: int

    @property
    def record_shape(self) -> tuple[int, int, int]:
        """The shape of a step's record."""
        return 8, 1 + self.lags.size, self.rows.shape[1] * self.inner


class Arithmetic(Protocol):
    """Makes records of steps."""

    def summarise(self, steps: Steps, begin: int) -> Iterator[Summary]:
        """Records of all steps from `begin` on, in their order, in batches of bounded memory."""
        ...

    def close(self) -> None:
        """Lets threads go."""
        ...


def arithmetic_on(device: torch.device, threads: int) -> Arithmetic:
    """The arithmetic for a device.

    Args:
        device: Where values are summed.
        threads: How many threads share the work of a CPU.
    """
    return HostArithmetic(threads) if device.type == "cpu" else DeviceArithmetic(device)


class HostArithmetic:
    """The compiled loop of `kernel.py`.

    Args:
        threads: How many threads share the steps of a piece.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "arithmetic") if threads > 1 else None

    def summarise(self, steps: Steps, begin: int) -> Iterator[Summary]:
        """Records of all steps from `begin` on, in their order, in batches of bounded memory."""
        for batch in _batches(begin, steps):
            yield self._summarise_batch(steps, batch)

    def close(self) -> None:
        """Lets threads go."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _summarise_batch(self, steps: Steps, batch: range) -> Summary:
        out = np.empty((len(batch), *steps.record_shape))
        infinite = np.empty(len(batch), np.bool_)

        def work(run: range) -> None:
            part = slice(run.start - batch.start, run.stop - batch.start)
            summarise_steps(
                *(steps.rows, steps.ring, steps.age, steps.ahead, run.start, steps.lags),
                *(steps.inner, lanes_of(steps.inner), out[part], infinite[part]),
            )

        if self._pool is None or steps.rows.nbytes <= _SERIAL_BYTES:
            work(batch)
        else:
            list(self._pool.map(work, _share(batch, self._threads)))
        return out, infinite


class DeviceArithmetic:
    """The same in torch: steps go to the device, and their records come back.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def summarise(self, steps: Steps, begin: int) -> Iterator[Summary]:
        """Records of all steps from `begin` on, in their order, in batches of bounded memory."""
        kept = _looked_back_on(steps, begin)
        rows = self._load(steps, kept)
        infinite = torch.isinf(rows[1 + kept.size :]).flatten(1).any(1).cpu().numpy()
        for batch in _batches(begin, steps):
            selected = steps.age[batch.start : batch.stop] >= 0
            out = self._records(rows, steps, kept, batch)
            yield out, infinite[batch.start : batch.stop] & selected

    def close(self) -> None:
        """Does nothing: there are no threads."""

    def _load(self, steps: Steps, kept: NDArray[np.int64]) -> torch.Tensor:
        """On the device: a step of zeros, the steps that are looked back on, the piece's steps."""
        before = steps.ring[(steps.ahead + kept) % len(steps.ring)]
        rows = self._move(steps.rows)
        return torch.cat([torch.zeros_like(rows[:1]), self._move(before), rows])

    def _move(self, array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()  # else it is copied in small parts, one after the other
        return tensor.to(self._device, non_blocking=True)

    def _records(
        self, rows: torch.Tensor, steps: Steps, kept: NDArray[np.int64], batch: range
    ) -> NDArray[np.float64]:
        """The records of a batch.

        Args:
            rows: What `_load` returned.
            steps: The steps.
            kept: Which earlier steps are among the rows.
            batch: Which steps are summarised.
        """
        out = np.zeros((len(batch), *steps.record_shape))
        out[:, MIN], out[:, MAX] = np.inf, -np.inf
        lags = np.concatenate([[0], steps.lags])
        step, kind = np.nonzero(steps.age[batch.start : batch.stop, None] >= lags)
        places = np.concatenate([kept, np.arange(len(steps.rows))])
        later = 1 + np.searchsorted(places, batch.start + step)
        earlier = 1 + np.searchsorted(places, batch.start + step - lags[kind])
        earlier[kind == 0] = 0  # zeros
        at_once = max(_DEVICE_BYTES // (8 * _padded_size(steps)), 1)
        for first in range(0, len(step), at_once):
            some = slice(first, first + at_once)
            x, p = (rows[self._move(places[some])] for places in (later, earlier))
            records = pair_records(x, p, steps.inner)
            out[step[some], :, kind[some]] = records.cpu().numpy()
        return out


def _looked_back_on(steps: Steps, begin: int) -> NDArray[np.int64]:
    """Steps before the first one that pairs need, ascending: -1 is the last before it."""
    back = np.arange(begin, len(steps.rows))[:, None] - steps.lags
    return np.unique(back[(steps.age[begin:, None] >= steps.lags) & (back < 0)])


def _padded_size(steps: Steps) -> int:
    """About how many values a step has on a device, whole tiles included."""
    _, outer, size = steps.rows.shape
    tile = TILE * lanes_of(steps.inner) * steps.inner
    return int(outer * (size + tile))


def _batches(begin: int, steps: Steps) -> Iterator[range]:
    """The steps from `begin` on, in batches of bounded memory."""
    limit = max(_BATCH_BYTES // (8 * int(np.prod(steps.record_shape))), 1)
    for first in range(begin, len(steps.rows), limit):
        yield range(first, min(first + limit, len(steps.rows)))


def _share(batch: range, parts: int) -> list[range]:
    """Runs of about equal length, none of them empty.

    >>> _share(range(4, 9), 2)
    [range(4, 6), range(6, 9)]
    """
    cuts = [batch.start + len(batch) * k // parts for k in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(cuts) if a < b]
