"""How far all ranks are: a bar on rank 0's terminal, or a line every few seconds without one."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from neural_prep.engine.module import StatsModule

_log = logging.getLogger(__name__)

_EVERY = 5.0  # seconds between lines


class ReadingProgress(Callback):
    """Shows all ranks' bytes, their rate and the time left."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._begun = self._shown = 0.0

    def on_predict_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Puts up the bar, now that all ranks are ready."""
        self._begun = self._shown = time.monotonic()
        if trainer.is_global_zero and sys.stderr.isatty():
            self._bar = _make_bar()
            self._task = self._bar.add_task("reading", total=_module(pl_module).plan.nbytes)
            self._bar.start()

    def on_predict_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Moves the bar, or writes a line when it is time."""
        self.on_waiting(trainer, _module(pl_module))

    def on_waiting(self, trainer: Trainer, module: StatsModule) -> None:
        """Moves the bar, or writes a line when it is time."""
        if not trainer.is_global_zero or not self._begun:
            return
        read, before = module.peers.total_bytes, module.resumed.nbytes
        if self._bar is not None:
            self._bar.update(self._task, completed=before + read)
        elif time.monotonic() - self._shown >= _EVERY:
            self._shown = time.monotonic()
            seconds = self._shown - self._begun
            _log.info(_line(read, module.plan.nbytes, seconds, before=before))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the bar down."""
        if self._bar is not None:
            self._bar.update(self._task, completed=_module(pl_module).plan.nbytes)
        self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Takes the bar down, so that the error stands on a line of its own."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _module(module: LightningModule) -> StatsModule:
    assert isinstance(module, StatsModule)
    return module


def _make_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _line(read: int, total: int, seconds: float, *, before: int = 0) -> str:
    """One line of progress, of a run that has read so much in so many seconds.

    >>> _line(500_000_000, 2_000_000_000, 5.0)
    '500.0 MB of 2.0 GB (25 %), 100.0 MB/s, 15 s left'
    >>> _line(500_000_000, 2_000_000_000, 5.0, before=1_000_000_000)
    '1.5 GB of 2.0 GB (75 %), 100.0 MB/s, 5 s left'
    >>> _line(2_100_000_000, 2_000_000_000, 21.0)
    '2.0 GB of 2.0 GB (100 %), 100.0 MB/s, 0 s left'
    """
    done = min(before + read, total)  # what the lags need is read again
    rate = read / seconds if seconds > 0 else 0.0
    left = f"{(total - done) / rate:.0f} s left" if rate > 0 else "time left unknown"
    share = 100 * done // max(total, 1)
    return f"{decimal(done)} of {decimal(total)} ({share} %), {decimal(int(rate))}/s, {left}"
