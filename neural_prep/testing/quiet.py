"""What ranks above 0 write to the terminal under a launcher: nothing, or lines with their rank."""

from __future__ import annotations

import os
from typing import Any

import pytest
from _pytest.config import create_terminal_writer

from neural_prep.testing.outputs import Pump


def be_quiet(config: pytest.Config, *, capture: bool) -> None:
    """Has a rank above 0 report nothing; what it captures goes into rank 0's report."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        reporter._tw = create_terminal_writer(config, nowhere)
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    if capture and manager is not None and manager._method == "no":
        _capture_by(manager, "fd")


def prefix_output(config: pytest.Config, rank: int) -> None:
    """Writes what tests write at once, each line with its rank; the report stays as it is."""
    terminal = os.fdopen(os.dup(1), "w")
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter._tw = create_terminal_writer(config, terminal)
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    if manager is not None:
        _capture_by(manager, "no")
    pump = Pump(rank, terminal.fileno())
    streams = (1, 2)
    for stream in streams:
        os.dup2(pump.writing, stream)

    def restore() -> None:
        for stream in streams:
            os.dup2(terminal.fileno(), stream)
        pump.close()

    config.add_cleanup(restore)


def _capture_by(manager: Any, method: str) -> None:
    """Begins to capture in another way than pytest was started with."""
    manager.stop_global_capturing()
    manager._method = method
    manager.start_global_capturing()
    manager.suspend_global_capture()
