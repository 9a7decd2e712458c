"""`neural-prep plan`: what a run will do, without doing it.

It takes the run's own configuration, and imports neither Lightning nor torch, numba or xarray: a
plan is there in less time than those take to import. Of the trainer's flags it knows the numbers of
ranks and nodes; others, and the output's, don't matter here and may be there.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from neural_prep.engine.config import check_arguments, explain, known_keys
from neural_prep.engine.forecast import RATE, forecast
from neural_prep.engine.forecast_report import describe, show
from neural_prep.engine.options import DataOptions, check_lags
from neural_prep.errors import InputError

_DONE, _FAILED, _WRONG_INPUT = 0, 1, 2
_MOST_RANKS = 1_000_000  # each has a plan of its own to count
_IGNORED = ("trainer", "output", "seed_everything")
_RATE = re.compile(r"(\d+(?:\.\d*)?(?:e\d+)?) ?([kMGT]?)B?(?:/s)?", re.IGNORECASE)
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True, slots=True)
class _Trainer:
    """The trainer's flags; others are ignored.

    Attributes:
        devices: Ranks on each node.
        num_nodes: Number of nodes.
    """

    devices: int | str | list[int] = "auto"
    num_nodes: int = 1


@dataclass(frozen=True, slots=True)
class _Model:
    """The statistics.

    Attributes:
        lags: Distances of the two ends of a difference, in steps.
        parameter_weights: Changes nothing here.
    """

    lags: list[int] = field(default_factory=lambda: [1])
    parameter_weights: Mapping[int, float] | None = None


def run_plan(args: Sequence[str]) -> int:
    """Runs `neural-prep plan` with these arguments and returns the exit status."""
    try:
        _plan(_parse(args))
    except InputError as error:
        sys.stderr.write(f"neural-prep: {' '.join(str(error).split())}\n")
        return _WRONG_INPUT
    except OSError as error:
        sys.stderr.write(f"neural-prep: {error}\n")
        return _FAILED
    except SystemExit as error:  # from --help and the like
        return int(error.code or 0)
    return _DONE


def _plan(config: Any) -> None:
    data = DataOptions(**config.data)
    per_node = count_ranks(config.trainer.devices)
    nodes = config.trainer.num_nodes
    if not 1 <= nodes * per_node <= _MOST_RANKS:
        raise InputError(
            f"trainer.num_nodes: {nodes} of {per_node} ranks each is no number of nodes; expected "
            f"at least 1, and {_MOST_RANKS:,} ranks at most"
        )
    rate = parse_rate(config.rate)
    plan = data.open(check_lags(config.model.lags))
    found = forecast(
        plan,
        ranks=per_node * nodes,
        nodes=nodes,
        threads=data.threads(per_node),
        piece_steps=data.piece_steps,
        read_ahead=data.read_ahead,
        rate=rate or RATE,
    )
    for line in plan.source.warnings:
        sys.stderr.write(f"warning: {line}\n")
    try:
        if config.json:
            sys.stdout.write(json.dumps(describe(plan, found, data.split), indent=1) + "\n")
        else:
            show(plan, found, split=data.split, assumed=rate is None)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # `| head`; the latter is rich's, for the same reason
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(args: Sequence[str]) -> Any:
    parser = _parser()
    known = known_keys(parser) - {"seed_everything"} | {"rate", "json"}
    try:
        return parser.parse_args(check_arguments(args, known, _IGNORED))
    except ArgumentError as error:
        raise InputError(explain(str(error))) from error


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="neural-prep plan",
        description="Show what `neural-prep stats` will do with the same options, and what that "
        "takes. Nothing but metadata is read.",
        exit_on_error=False,
    )
    parser.add_argument("-c", "--config", action="config", help="The run's configuration file.")
    parser.add_argument(
        "--rate",
        type=str | None,
        help="Uncompressed bytes that one rank reads, decodes and sums in a second, such as 2GB/s; "
        "the last line of a run says what it was for all ranks.",
    )
    parser.add_argument("--json", action="store_true", help="Write JSON instead of tables.")
    parser.add_class_arguments(_Trainer, "trainer")
    parser.add_class_arguments(_Model, "model")
    parser.add_class_arguments(DataOptions, "data")
    return parser


def count_ranks(devices: int | str | Sequence[int] | None) -> int:
    """Ranks on each node, as Lightning counts them on CPUs.

    Raises:
        InputError: if that depends on the machine, or is no number.

    >>> [count_ranks(devices) for devices in ("auto", 4, "4", [0, 1])]
    [1, 4, 4, 2]
    """
    if devices is None:
        count = 0
    elif isinstance(devices, str):
        count = 1 if devices == "auto" else int(devices) if devices.isdecimal() else 0
    else:
        count = devices if isinstance(devices, int) else len(devices)
    if not 1 <= count <= _MOST_RANKS:
        raise InputError(
            f"trainer.devices: {devices!r} is no number of ranks; expected 1 to {_MOST_RANKS:,}"
        )
    return count


def parse_rate(text: str | None) -> int | None:
    """Bytes a second.

    Raises:
        InputError: if the text says no rate.

    >>> [parse_rate(text) for text in ("2GB/s", "500 MB/s", "1.5e9", None)]
    [2000000000, 500000000, 1500000000, None]
    """
    if text is None:
        return None
    match = _RATE.fullmatch(text.strip())
    rate = 0 if match is None else int(float(match[1]) * _PREFIXES[match[2].lower()])
    if rate < 1:
        raise InputError(f"--rate: {text!r} is no rate; expected one such as 2GB/s or 500MB/s")
    return rate
