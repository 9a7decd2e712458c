"""The `neural-prep` command: picks the subcommand before anything heavy is imported."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence

from neural_prep import __version__

_HELP = """\
usage: neural-prep COMMAND [options]

Training statistics and distributed checks for machine-learning weather prediction.

commands:
  stats       compute the training statistics of a store

options:
  -h, --help  show this text; `neural-prep COMMAND --help` shows a command's options
  --version   show the version

example:
  neural-prep stats --config configs/meps.yaml
"""


def main(args: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit status."""
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


def _stats(args: list[str]) -> int:
    # Stops C++ warnings about a peer that has left, which say nothing that the user isn't told.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from neural_prep.engine.command import run_stats

    return run_stats(args)


_COMMANDS: dict[str, Callable[[list[str]], int]] = {"stats": _stats}


if __name__ == "__main__":
    sys.exit(main())
