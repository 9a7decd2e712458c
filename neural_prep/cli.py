"""The `neural-prep` command: picks the subcommand before anything heavy is imported."""

from __future__ import annotations

import atexit
import contextlib
import difflib
import faulthandler
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from neural_prep import __version__
from neural_prep.interrupts import leave_with_parent, stop_on_signals

_HELP = """\
usage: neural-prep COMMAND [options]

Training statistics and distributed checks for machine-learning weather prediction.

commands:
  stats       compute the training statistics of a store
  plan        show what that takes, without reading data
  check       check sharded layers against their serial twins

options:
  -h, --help  show this text; `neural-prep COMMAND --help` shows a command's options
  --version   show the version

examples:
  neural-prep plan --config configs/meps.yaml
  neural-prep stats --config configs/meps.yaml
  neural-prep check --config configs/sharded_layers.yaml --nproc-per-node 2
"""


def main(args: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit status; `stats` ends the process with it."""
    args = list(sys.argv[1:] if args is None else args)
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(_HELP)
        return 0 if args else 2
    if args[0] == "--version":
        sys.stdout.write(f"neural-prep {__version__}\n")
        return 0
    command = _COMMANDS.get(args[0])
    if command is None:
        nearest = difflib.get_close_matches(args[0], _COMMANDS, n=1, cutoff=0.0)[0]
        sys.stderr.write(
            f"neural-prep: {args[0]!r} is no command; the nearest is {nearest} "
            "(neural-prep --help lists all)\n"
        )
        return 2
    return command(args[1:])


def _stats(args: list[str]) -> NoReturn:
    leave_with_parent()
    among_tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1
    stop_on_signals(speak=_is_first_rank(), among_tasks=among_tasks)
    if sys.__stderr__ is not None:
        # A mapped file that is cut off while it is read kills without a word otherwise.
        faulthandler.enable(sys.__stderr__, all_threads=False)
    # Stops C++ warnings about a peer that has left, which say nothing that the user isn't told.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    _keep_compiled_code()
    from neural_prep.engine.command import run_stats

    status = run_stats(args)
    if status == 0:
        atexit._run_exitfuncs()
    # At once: a thread that still reads, perhaps from a file system that hangs, is not waited for,
    # and torch's own threads have been seen to abort a process that unwinds.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _plan(args: list[str]) -> int:
    stop_on_signals(speak=True)
    from neural_prep.engine.planning import run_plan

    return run_plan(args)


def _check(args: list[str]) -> int:
    among_tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1
    stop_on_signals(speak=_is_first_rank(), among_tasks=among_tasks)
    # Stops C++ warnings about peers that have left, which the report says better.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from neural_prep.checks.command import run_check

    return run_check(args)


def _is_first_rank() -> bool:
    """Whether this is rank 0, as far as whoever started it has said."""
    names = ("RANK", "SLURM_PROCID", "LOCAL_RANK")
    return all(os.environ.get(name, "0") == "0" for name in names)


def _keep_compiled_code() -> None:
    """Finds a folder for numba's compiled code where the package's own cannot be written."""
    if "NUMBA_CACHE_DIR" in os.environ or os.access(Path(__file__).parent / "stats", os.W_OK):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "neural-prep"
    try:
        home.mkdir(parents=True, exist_ok=True)
        usable = os.access(home, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        home = Path(tempfile.gettempdir()) / f"neural-prep-{os.getuid()}"
    os.environ["NUMBA_CACHE_DIR"] = str(home)


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "stats": _stats,
    "plan": _plan,
    "check": _check,
}


if __name__ == "__main__":
    sys.exit(main())
