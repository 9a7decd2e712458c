"""Lightning's launcher of ranks on one machine, with their deaths seen to.

Lightning's own kills rank 0 when another rank fails, so that the command's status is always 137,
and leaves ranks running when rank 0 fails. Here the first failure's status is the command's, and no
process is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from neural_prep.interrupts import (
    PARENT,
    SIGNALS,
    STOPPED,
    before_exit,
    is_first_to_end,
    is_starting,
)

_POLL = 0.2  # seconds
_GRACE = 5.0  # seconds that rank 0 has to end by itself once another rank has failed
_HINTS = {
    "SIGKILL": " (out of memory? use fewer ranks)",
    "SIGBUS": " (was a file cut off while it was read?)",
}
_PATIENCE = 3.0  # seconds from SIGTERM to SIGKILL


class RankLauncher(_SubprocessScriptLauncher):
    """Starts ranks 1.. of this machine as subprocesses and ends with them."""

    _ending = False

    def launch(
        self,
        function: Callable[..., Any],
        *args: Any,
        trainer: Trainer | None = None,
        **kwargs: Any,
    ) -> Any:
        """Starts the ranks, runs the function here; whoever catches its error ends the ranks."""
        self.cluster_environment.validate_settings(
            num_devices=self.num_processes, num_nodes=self.num_nodes
        )
        if self.cluster_environment.creates_processes_externally:
            return function(*args, **kwargs)
        os.environ[PARENT] = str(os.getpid())
        self._call_children_scripts()
        del os.environ[PARENT]
        before_exit(self.end_all)
        threading.Thread(target=self._watch, daemon=True, name="launcher").start()
        result = function(*args, **kwargs)
        for process in self.procs:
            process.wait()
        return result

    def end_all(self, signum: signal.Signals = signal.SIGTERM) -> None:
        """Ends every rank that this process started; returns when none is left."""
        self._ending = True
        for process in self.procs:
            process.send_signal(signum)
        deadline = time.monotonic() + _PATIENCE
        for process in self.procs:
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(self) -> None:
        """Waits for a rank that fails; then this process has a moment to end by itself."""
        while True:
            time.sleep(_POLL)
            codes = [process.poll() for process in self.procs]
            if self._ending or all(code == 0 for code in codes):
                return
            failed = [(rank, code) for rank, code in enumerate(codes, start=1) if code]
            if failed:
                break
        rank, code = failed[0]
        if -code in SIGNALS:  # so early that Python could not hear it
            code = STOPPED
        if code < 0:
            name = signal.Signals(-code).name
            sys.stderr.write(
                f"neural-prep: rank {rank} was killed by {name}{_HINTS.get(name, '')}; "
                "start again to continue\n"
            )
            self.end_all(signal.SIGKILL)  # quietly: they have nothing to add
            os._exit(128 - code)
        time.sleep(_POLL if code == STOPPED and is_starting() else _GRACE)
        if code == STOPPED and is_first_to_end():
            sys.stderr.write(
                f"neural-prep: rank {rank} was stopped by a signal; start again to continue\n"
            )
        self.end_all()
        os._exit(code)
