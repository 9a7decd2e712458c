"""The statistics on a CPU and on a GPU, side by side: the arithmetic alone, and the whole command.

    python tests/bench/gpu.py
    python tests/bench/gpu.py --gigabytes 0.05 --repeat 1  # whether it works at all

The arithmetic takes fields from memory and returns records: on a GPU with copies there and back.
The command reads from the page cache, and start-up is left out. Contenders take turns, and each
one's best round counts (the worst in brackets); rates are uncompressed GB a second. Without a GPU
the CPU's numbers are there alone, and those of torch on it, which has one round: it is slow.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from outcome import Rates, Section
from running import run_stats, take_turns
from stores import STORES, Shelf, Store

from neural_prep.stats.accumulate import SeriesAccumulator, warm_up
from neural_prep.stats.arithmetic import Arithmetic, DeviceArithmetic, HostArithmetic

LAGS = (1,)
NBYTES = 64_000_000  # of the fields that are summed in a round
# Points and interleaved variables of fields, and the steps that are summed at once.
FIELDS = {
    "0.25 degrees, 4 steps": (721 * 1440, 1, 4),
    "0.25 degrees, 16 steps": (721 * 1440, 1, 16),
    "MEPS, 4 steps": (238 * 268, 17, 4),
    "100 variables, 1 step": (721 * 1440 // 10, 100, 1),
}


def arithmetics() -> dict[str, Arithmetic]:
    """All that there are here."""
    threads = len(os.sched_getaffinity(0))
    found: dict[str, Arithmetic] = {"CPU, 1 thread": HostArithmetic()}
    if threads > 1:
        found[f"CPU, {threads} threads"] = HostArithmetic(threads)
    found["torch on CPU, 1 thread"] = DeviceArithmetic(torch.device("cpu"))
    if torch.cuda.is_available():
        found["GPU"] = DeviceArithmetic(torch.device("cuda"))
    return found


def seconds_of_sums(arithmetic: Arithmetic, values: NDArray[np.float32]) -> float:
    """Seconds of summing fields over and over, as a run does with pieces that it has read."""
    steps, _, _, inner = values.shape
    accumulator = SeriesAccumulator(inner, LAGS, arithmetic=arithmetic)
    accumulator.add(values, np.arange(steps), first=0)  # has everything loaded
    begun = time.perf_counter()
    for first in range(steps, (1 + _turns(values)) * steps, steps):
        accumulator.add(values, first + np.arange(steps), first=first)
    return time.perf_counter() - begun


def _turns(values: NDArray[np.float32]) -> int:
    return max(NBYTES // values.nbytes, 1)


def measure_sums(repeat: int) -> Section:
    """The arithmetic alone."""
    section = Section(f"Arithmetic, GB/s, lags {list(LAGS)}")
    torch.set_num_threads(1)  # others would wait for each other at each of many small operations
    warm_up()
    for name, (points, inner, steps) in FIELDS.items():
        shape = (steps, 1, points, inner)
        values = np.random.default_rng(0).normal(280, 5, shape).astype(np.float32)
        contenders: dict[str, Callable[[], float]] = {
            who: partial(seconds_of_sums, each, values) for who, each in arithmetics().items()
        }
        nbytes = _turns(values) * values.nbytes
        slow = {who: 1 for who in contenders if who.startswith("torch")}
        _add_row(section, {"fields": name}, take_turns(contenders, repeat, slow), nbytes)
    return section


def measure_command(shelf: Shelf, names: list[str], gigabytes: float, repeat: int) -> Section:
    """The whole command, on one rank."""
    kinds = ["cpu", "gpu"] if torch.cuda.is_available() else ["cpu"]
    section = Section(f"neural-prep stats, GB/s, one rank, lags {list(LAGS)}")
    for name in names:
        with shelf.store(name, gigabytes * 1e9) as store:
            contenders: dict[str, Callable[[], float]] = {
                kind.upper(): partial(_seconds_of_command, store, kind) for kind in kinds
            }
            _add_row(section, {"store": name}, take_turns(contenders, repeat), store.nbytes)
    return section


def _seconds_of_command(store: Store, kind: str) -> float:
    return run_stats(store, ["--trainer.accelerator", kind], ranks=1, lags=LAGS).seconds


def _add_row(
    section: Section, row: dict[str, object], seconds: dict[str, list[float]], nbytes: int
) -> None:
    rates: dict[str, object] = {who: Rates(each, nbytes) for who, each in seconds.items()}
    section.rows.append(row | rates)


def main() -> None:
    """Measures, and prints each table as soon as it is there."""
    warnings.filterwarnings("ignore", "The data type .* does not have a Zarr V3 specification")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--stores", nargs="+", choices=STORES, default=["mllam-zstd", "mllam-raw-8", "meps"]
    )
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of a store")
    parser.add_argument("--folder", type=Path, help="keeps stores there, and takes those it has")
    parser.add_argument("--repeat", type=int, default=3, help="rounds, of which the best counts")
    args = parser.parse_args()
    if torch.cuda.is_available():
        print(f"GPU: {torch.cuda.get_device_name()}")
    else:
        print(f"no GPU is found by torch {torch.__version__}: the CPU's numbers alone")
    print("\n".join(["", *measure_sums(args.repeat).lines()]), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        shelf = Shelf(folder, kept=args.folder is not None)
        section = measure_command(shelf, args.stores, args.gigabytes, args.repeat)
    print("\n".join(["", *section.lines()]))


if __name__ == "__main__":
    main()
