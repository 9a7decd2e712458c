"""`neural-prep stats` beside the limits of reading, beside other tools, and its bounds.

    python tests/bench/throughput.py
    python tests/bench/throughput.py --groups speed memory --stores meps mllam-zstd --json out.json
    python tests/bench/throughput.py --gigabytes 0.05 --repeat 1  # whether it works at all

Contenders take turns in each round, so that a machine that others use slows all of them, and each
one's best round counts. All read from the page cache; start-up is left out. Rates are the store's
uncompressed bytes per second. Stores are written first, into a temporary folder that takes some
5 GB at a time; `--folder` keeps them. A benchmark judges nothing: the exit status is 0 whatever it
finds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import against_neural_lam
import footprint
import scaling
import speed
from outcome import Section, to_json
from stores import LARGE, STORES, Shelf

GROUPS: dict[str, Callable[[Shelf, argparse.Namespace], list[Section]]] = {
    "speed": speed.measure,
    "ranks": scaling.measure,
    "memory": footprint.measure,
    "neural-lam": against_neural_lam.measure,
}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument(
        "--stores",
        nargs="+",
        choices=[*STORES, *LARGE],
        help="the stores that the groups go through; default: each group's own choice",
    )
    parser.add_argument(
        "--gigabytes",
        type=float,
        default=1.0,
        help="size of a store; twice that where it is not zstd: reading takes too short a time",
    )
    parser.add_argument(
        "--long", type=float, default=4.0, help="times --gigabytes: memory's long stores"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="rounds, of which the best counts")
    parser.add_argument("--dask-repeat", type=int, default=2, help="rounds with xarray + dask")
    parser.add_argument(
        "--zarrs",
        action=argparse.BooleanOptionalAction,
        default=find_spec("zarrs") is not None,
        help="decode by zarrs as well as by zarr-python alone; default: where it is installed",
    )
    parser.add_argument("--neural-lam", type=Path, help="a Python that has neural-lam 0.7")
    parser.add_argument("--neural-lam-repeat", type=int, default=1, help="rounds with its script")
    parser.add_argument("--folder", type=Path, help="keeps stores there, and takes those it has")
    parser.add_argument("--json", type=Path, help="writes all numbers there too")
    parser.add_argument("stats_args", nargs="*", help="after --: more options of neural-prep stats")
    args = parser.parse_args()
    args.decoders = ("zarr", "zarrs") if args.zarrs else ("zarr",)
    return args


def main() -> None:
    """Measures group by group, and prints each one's tables as soon as they are there."""
    warnings.filterwarnings("ignore", "The data type .* does not have a Zarr V3 specification")
    args = _parse()
    found: list[Section] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        shelf = Shelf(folder, kept=args.folder is not None)
        for group in args.groups:
            for section in GROUPS[group](shelf, args):
                print("\n".join(["", *section.lines()]), flush=True)
                found.append(section)
    cores = len(os.sched_getaffinity(0))
    print(f"\nBounds, on {cores} cores, best of {args.repeat} rounds")
    for section in found:
        for bound in section.bounds.values():
            print(bound)
    if args.json:
        args.json.write_text(json.dumps(to_json(found, vars(args)), indent=1) + "\n")


if __name__ == "__main__":
    main()
