"""Runs `neural-prep stats` as a user does, and contenders in turns."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory import Peak, run_watched
from stores import Store

_STARTED_BY = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "SLURM_", "PL_", "GROUP_")


@dataclass(frozen=True, slots=True)
class Run:
    """What a run took: seconds from all ranks being ready to the result, of all, and memory."""

    seconds: float
    wall: float
    peak: Peak


def run_stats(
    store: Store,
    extra: Sequence[str] = (),
    *,
    ranks: int,
    lags: Sequence[int] = (1,),
    decoder: str | None = None,
    output: Path | None = None,
) -> Run:
    """Runs the command on a store.

    Args:
        store: The store.
        extra: More options.
        ranks: How many there are.
        lags: The differences' lags.
        decoder: Who decodes: zarr-python (`zarr`) or `zarrs`; unset: whoever is fastest.
        output: Where the results are left; unset, they are removed.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = output or Path(folder)
        args = [sys.executable, "-m", "neural_prep.cli", "stats"]
        args += ["--data.path", store.path, "--data.layout", store.layout]
        args += ["--data.split", store.split] if store.split else []
        args += ["--model.lags", str(list(lags)), "--output.dir", str(output)]
        args += ["--trainer.devices", str(ranks), *extra]
        args += ["--data.decoder", decoder] if decoder else []
        wall, peak = run_watched(args, environment())
        run = json.loads((output / "statistics.json").read_text())["run"]
    # A lag's overlap is read again at some blocks' starts, and static fields are read too.
    if not store.nbytes <= run["bytes"] <= 1.1 * store.nbytes:
        print(f"{store.name}: read {run['bytes']} bytes of {store.nbytes}", file=sys.stderr)
    return Run(run["seconds"], wall, peak)


def seconds_of_stats(*args: Any, **kwargs: Any) -> float:
    """What counts of `run_stats`."""
    return run_stats(*args, **kwargs).seconds


def environment() -> dict[str, str]:
    """This process' environment less what launchers of ranks have put there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_STARTED_BY)}


def take_turns(
    contenders: Mapping[str, Callable[[], float]],
    rounds: int,
    fewer: Mapping[str, int] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each contender in each round: a busy machine slows all of them.

    Args:
        contenders: Each returns the seconds that count.
        rounds: How many there are.
        fewer: Those that take part in so many rounds only.
    """
    seconds: dict[str, list[float]] = {}
    for turn in range(rounds):
        for name, run in contenders.items():
            if turn < (fewer or {}).get(name, rounds):
                seconds.setdefault(name, []).append(run())
                print(f"  {name}: {seconds[name][-1]:.3f} s", file=sys.stderr)
    return seconds


@contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """What is started meanwhile runs on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
