"""What one core does in a second: decode a store's chunks, sum what is in memory, and both.

    python tests/bench/rates.py

`docs/scale.md` reckons with these. Each contender runs on one core that it keeps to, with one
thread of each kind; rounds are interleaved, and the best of each counts. Rates are uncompressed
bytes a second, read from the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from baselines import Work, reading, seconds_of
from stores import Store, make_store

from neural_prep.stats.accumulate import SeriesAccumulator, warm_up

STORES = ("mllam-zstd", "mllam-lz4", "cf-zstd")
POINTS, VARIABLES, STEPS = 721 * 1440, 1, 24  # fields of a quarter of a degree


def decode(rank: int, ranks: int, store: Store) -> Work:
    """Reads the store's fields."""
    _keep_to_one_core()
    return reading(rank, ranks, store)


def sum_up(rank: int, ranks: int, lags: tuple[int, ...]) -> Work:
    """Sums a day of fields over and over, as a run does with those that it has read."""
    _keep_to_one_core()
    warm_up()
    values = np.random.default_rng(0).normal(280, 5, (STEPS, 1, POINTS, 1)).astype(np.float32)
    accumulator = SeriesAccumulator(VARIABLES, lags)

    def work() -> None:
        for turn in range(4):
            age = np.arange(STEPS) + turn * STEPS
            accumulator.add(values, age, first=turn * STEPS)

    return work


def summed_bytes() -> int:
    """Bytes that `sum_up` sums."""
    return 4 * STEPS * POINTS * VARIABLES * 4


def run_stats(store: Store) -> float:
    """Seconds of a run of one rank, start-up apart."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "neural_prep.cli", "stats", "--output.dir", folder]
        command += ["--data.path", store.path, "--data.layout", store.layout]
        command += ["--data.split", store.split] if store.split else []
        command += ["--trainer.devices", "1", "--data.workers", "1"]
        subprocess.run(command, check=True, capture_output=True, preexec_fn=_keep_to_one_core)
        seconds = json.loads((Path(folder) / "statistics.json").read_text())["run"]["seconds"]
    return float(seconds)


def _keep_to_one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def main() -> None:
    """Measures, then prints best and worst."""
    warnings.filterwarnings("ignore", "The data type .* does not have a Zarr V3 specification")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=0.5, help="size of a store")
    parser.add_argument("--folder", type=Path, help="keeps stores there, and takes those it has")
    parser.add_argument("--repeat", type=int, default=5, help="rounds, of which the best counts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        contenders: dict[str, tuple[int, Callable[[], float]]] = {}
        for lags in ((1,), (1, 6), (1, 6, 24)):
            name = f"sums and {len(lags)} lag{'s' if len(lags) > 1 else ''}"
            contenders[name] = (summed_bytes(), lambda lags=lags: seconds_of(sum_up, 1, lags))
        for name in STORES:
            store = make_store(name, folder, round(args.gigabytes * 1e9))
            packed = f"{name}, {store.nbytes / store.stored:.1f} times smaller"
            contenders[f"decode {packed}"] = (
                store.nbytes,
                lambda store=store: seconds_of(decode, 1, store),
            )
            contenders[f"neural-prep stats of {name}"] = (
                store.nbytes,
                lambda store=store: run_stats(store),
            )
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(args.repeat):
            for name, (_, measure) in contenders.items():
                seconds[name].append(measure())
    for name, (nbytes, _) in contenders.items():
        best, worst = (nbytes / 1e9 / each(seconds[name]) for each in (min, max))
        print(f"{name:42} {best:6.2f} ({worst:.2f}) GB/s a core")


if __name__ == "__main__":
    main()
