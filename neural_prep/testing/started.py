"""The pytest session of a rank that a leading pytest has started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from _pytest.config import Config, create_terminal_writer
from _pytest.logging import _LiveLoggingStreamHandler
from _pytest.terminal import TerminalReporter

from neural_prep.testing import examples
from neural_prep.testing.coverage import measure_coverage
from neural_prep.testing.fixtures import RANK
from neural_prep.testing.kinds import kind_of
from neural_prep.testing.messages import Captures, Settings
from neural_prep.testing.options import act_as_worker
from neural_prep.testing.rank import Rank
from neural_prep.world import group
from neural_prep.world.watch import Watch, dump_on_request


def main(settings: Settings, connection: int, log: int, listening: int = -1) -> int:
    """Runs a rank's session, for the nursery.

    Args:
        settings: What the leading session wants.
        connection: File number of the connection to it.
        log: File number of the rank's log, for stacks.
        listening: File number of the store's listening socket, in rank 0.
    """
    dump_on_request(log)
    watch = Watch(Connection(connection), leave_with(os.getppid()))
    return run_session(
        settings, lambda config: StartedRank(config, settings, watch, listening, log)
    )


def run_session(settings: Settings, make: Callable[[pytest.Config], Rank]) -> int:
    """Runs pytest as a rank.

    Args:
        settings: What the leading session wants.
        make: Makes the rank's hooks.
    """
    measure = measure_coverage(settings.coverage)
    try:
        if "OMP_NUM_THREADS" in os.environ:
            group.use_threads(int(os.environ["OMP_NUM_THREADS"]))
        config = Config.fromdictargs(settings.options, list(settings.args))
        act_as_worker(config, settings.rank, settings.size, Path(settings.shared_temp).parent.name)
        config.pluginmanager.register(make(config), RANK)
        return int(config.hook.pytest_cmdline_main(config=config) or 0)
    finally:
        if measure is not None:
            measure.stop()
            measure.save()


def leave_with(nursery: int) -> Callable[[], None]:
    """Ends this rank at once; its children are ended by the nursery, or else with it."""

    def leave() -> None:
        if os.getppid() == nursery:  # a tracker of shared memory then has time to clean up
            os.kill(os.getpid(), signal.SIGKILL)
        os.killpg(0, signal.SIGKILL)

    return leave


class StartedRank(Rank):
    """Hooks of such a session."""

    def __init__(
        self, config: pytest.Config, settings: Settings, watch: Watch, listening: int, log: int
    ) -> None:
        super().__init__(config, watch)
        self._settings = settings
        self._watch = watch
        self._listening = listening
        self._log = log

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Hands over what is captured, and has Hypothesis behave alike on all ranks."""
        files = _capture_files(config)
        self._watch.say(Captures(len(files)), files)
        if self._settings.rank == 0:
            _log_live(config)
        if config.option.setupshow:
            config.pluginmanager.register(_Writer(config), "terminalreporter")
        examples.configure()

    def pytest_sessionstart(self) -> None:
        """Opens the world."""
        settings = self._settings
        if not settings.process_group:
            if self._listening >= 0:
                os.close(self._listening)  # the test opens this port itself
            return
        place = (settings.rank, settings.size)
        patience = timedelta(seconds=settings.patience)
        port = int(os.environ["MASTER_PORT"])
        store = group.open_store(*place, port, self._listening, patience)
        self.world = group.open_world(store, *place, name="world", patience=patience)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Leaves word of what ends this session: an interrupt, or `pytest.exit`."""
        crash = excinfo.getrepr(style="short").reprcrash
        where = f"{crash.path}:{crash.lineno}: " if crash else ""
        os.write(self._log, f"{where}{excinfo.exconly()}\n".encode())

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leaves out files without a distributed test."""
        if collection_path.is_dir() or collection_path.name == "__init__.py":
            return None
        files = self._settings.files
        return None if files is None or str(collection_path) in files else True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the tests of this world's kind."""
        kinds = [(item, kind_of(item)) for item in items]
        items[:] = [item for item, kind in kinds if kind and kind.name == self._settings.kind]


class _Writer:
    """Where fixtures are told of, with --setup-show: rank 0's on its terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._tw = create_terminal_writer(config, sys.stdout)


def _log_live(config: pytest.Config) -> None:
    """Shows live logs, where they are wanted: a rank has no reporter of its own to show them."""
    logs = config.pluginmanager.getplugin("logging-plugin")
    if logs is None or (config.option.log_cli_level is None and not config.getini("log_cli")):
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    handler = _LiveLoggingStreamHandler(TerminalReporter(config, sys.stdout), capture)
    handler.setFormatter(logs.log_cli_handler.formatter)
    logs.log_cli_handler = handler


def _capture_files(config: pytest.Config) -> list[int]:
    """Files in which pytest keeps what is written to stdout and stderr, where it does so."""
    manager = config.pluginmanager.getplugin("capturemanager")
    capturing = getattr(manager, "_global_capturing", None)
    files = []
    for stream in ("out", "err"):
        kept = getattr(getattr(capturing, stream, None), "tmpfile", None)
        with contextlib.suppress(Exception):
            files.append(kept.fileno())  # type: ignore[union-attr]
    return files
