"""What one core does in a second: decode a store's chunks, sum what is in memory, and both.

    python tests/bench/rates.py

`docs/scale.md` reckons with these. Each contender keeps to one core, with one thread of each kind;
rounds are interleaved, and the best of each counts. Rates are uncompressed bytes a second, read
from the page cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from baselines import DECODERS, Work, reading, seconds_of
from running import on_cores, seconds_of_stats, take_turns
from stores import Shelf

from neural_prep.stats.accumulate import SeriesAccumulator, warm_up

STORES = ("mllam-zstd", "mllam-lz4", "cf-zstd")
POINTS, STEPS, TURNS = 721 * 1440, 24, 4  # days of fields of a quarter of a degree


def summing(rank: int, ranks: int, lags: tuple[int, ...]) -> Work:
    """Sums a day of fields over and over, as a run does with those that it has read."""
    warm_up()
    values = np.random.default_rng(0).normal(280, 5, (STEPS, 1, POINTS, 1)).astype(np.float32)
    accumulator = SeriesAccumulator(1, lags)

    def work() -> None:
        for first in range(0, TURNS * STEPS, STEPS):
            accumulator.add(values, first + np.arange(STEPS), first=first)

    return work


def main() -> None:
    """Measures, then prints best and worst."""
    warnings.filterwarnings("ignore", "The data type .* does not have a Zarr V3 specification")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=0.5, help="size of a store")
    parser.add_argument("--folder", type=Path, help="keeps stores there, and takes those it has")
    parser.add_argument("--repeat", type=int, default=5, help="rounds, of which the best counts")
    args = parser.parse_args()
    contenders: dict[str, Callable[[], float]] = {}
    nbytes: dict[str, int] = {}
    with ExitStack() as stack:
        kept = args.folder is not None
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shelf = Shelf(folder, kept=kept)
        for lags in ((1,), (1, 6), (1, 6, 24)):
            name = f"sums and {len(lags)} lag{'s' if len(lags) > 1 else ''}"
            nbytes[name] = TURNS * STEPS * POINTS * 4
            contenders[name] = partial(seconds_of, summing, 1, lags)
        for store_name in STORES:
            store = stack.enter_context(shelf.store(store_name, args.gigabytes * 1e9))
            packed = f"{store_name} ({store.nbytes / store.stored:.1f} times smaller)"
            for decoder in DECODERS:
                name = f"{decoder} decodes {packed}"
                nbytes[name] = store.nbytes
                contenders[name] = partial(seconds_of, reading, 1, store, decoder)
            name = f"neural-prep stats of {store_name}"
            nbytes[name] = store.nbytes
            contenders[name] = partial(seconds_of_stats, store, ["--data.workers", "1"], ranks=1)
        stack.enter_context(on_cores({max(os.sched_getaffinity(0))}))
        seconds = take_turns(contenders, args.repeat)
    for name, each in seconds.items():
        best, worst = (nbytes[name] / 1e9 / end(each) for end in (min, max))
        print(f"{name:56} {best:6.2f} ({worst:.2f}) GB/s a core")


if __name__ == "__main__":
    main()
