"""`neural-prep stats` beside reading alone and beside xarray + dask, on stores of about 1 GB.

    python tests/bench/throughput.py --gigabytes 1 --ranks 2 --twice

Contenders take turns in each round, so that a machine that others use slows all of them, and each
one's best round counts. All read from the page cache; start-up is left out. Rates are the store's
uncompressed bytes per second. A benchmark judges nothing: the exit status is 0 whatever it finds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from baselines import reading, seconds_of, xarray_dask
from memory import Peak, run_watched
from stores import STORES, Store, make_store

OF_READING, OF_DASK, MEMORY = 0.5, 2.5, 1.5e9  # the bounds
SLACK = 0.15e9  # by which "the same" memory differs: how much is read ahead depends on the load

_STARTED_BY = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "SLURM_", "PL_", "GROUP_")


@dataclass
class Measured:
    """One store's results: seconds of each round, and memory."""

    store: Store
    raw: list[float] = field(default_factory=list)
    stats: list[float] = field(default_factory=list)
    dask: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    peak: Peak = field(default_factory=Peak)
    peak_twice: Peak | None = None

    def rate(self, seconds: list[float]) -> float:
        """GB/s of the best round."""
        return self.store.nbytes / 1e9 / min(seconds)

    def show(self, seconds: list[float]) -> str:
        """The best and the worst round's GB/s."""
        return f"{self.rate(seconds):.2f} ({self.store.nbytes / 1e9 / max(seconds):.2f})"


def run_stats(store: Store, ranks: int, extra: list[str]) -> tuple[float, float, Peak]:
    """Runs the command as a user does: seconds of reading, of everything, and memory."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "neural_prep.cli", "stats"]
        command += ["--data.path", store.path, "--data.layout", store.layout]
        command += ["--data.split", store.split] if store.split else []
        command += ["--model.lags", "[1]", "--output.dir", folder]
        command += ["--trainer.devices", str(ranks), *extra]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_STARTED_BY)}
        wall, peak = run_watched(command, environment)
        run = json.loads((Path(folder) / "statistics.json").read_text())["run"]
    # A lag's overlap is read again at some blocks' starts, and a single step may be.
    if not store.nbytes <= run["bytes"] <= 1.1 * store.nbytes:
        print(f"{store.name}: read {run['bytes']} bytes of {store.nbytes}", file=sys.stderr)
    return run["seconds"], wall, peak


def measure(store: Store, args: argparse.Namespace) -> Measured:
    """All rounds of one store."""
    measured = Measured(store)
    seconds_of(reading, args.ranks, store)  # brings it into the page cache
    for turn in range(args.repeat):
        measured.raw.append(seconds_of(reading, args.ranks, store, args.strict))
        seconds, wall, peak = run_stats(store, args.ranks, args.stats_args)
        measured.stats.append(seconds)
        measured.wall.append(wall)
        measured.peak |= peak
        if turn < args.dask_repeat:
            skipna = not args.strict
            measured.dask.append(seconds_of(xarray_dask, 1, store, args.ranks, skipna))
    if args.twice:
        longer = make_store(store.name, args.folder, 2 * store.nbytes)
        measured.peak_twice = run_stats(longer, args.ranks, args.stats_args)[2]
    return measured


def rows_of(measured: Measured) -> list[str]:
    """One store's line of the table."""
    of_raw = measured.rate(measured.stats) / measured.rate(measured.raw)
    row = [
        measured.store.name,
        f"{measured.store.nbytes / 1e9:.2f}",
        f"{measured.store.nbytes / measured.store.stored:.2f}",
        measured.show(measured.raw),
        measured.show(measured.stats),
        f"{of_raw:.2f}",
    ]
    if measured.dask:
        of_dask = measured.rate(measured.stats) / measured.rate(measured.dask)
        row += [measured.show(measured.dask), f"{of_dask:.1f}"]
    else:
        row += ["-", "-"]
    row += [f"{min(measured.wall):.1f}", _megabytes(measured.peak)]
    return [*row, "-" if measured.peak_twice is None else _megabytes(measured.peak_twice)]


def bounds_of(measured: Measured) -> list[tuple[str, bool]]:
    """Each bound, and whether it holds."""
    stats = measured.rate(measured.stats)
    bounds = [(f"{OF_READING} of reading", stats >= OF_READING * measured.rate(measured.raw))]
    if measured.dask:
        bounds.append((f"{OF_DASK} x dask", stats >= OF_DASK * measured.rate(measured.dask)))
    bounds.append((f"peak < {MEMORY / 1e9} GB", measured.peak.resident < MEMORY))
    if measured.peak_twice is not None:
        bound = measured.peak.resident + SLACK
        bounds.append(("the same for twice", measured.peak_twice.resident <= bound))
    return bounds


def _megabytes(peak: Peak) -> str:
    return f"{peak.resident / 1e6:.0f} ({peak.anonymous / 1e6:.0f})"


HEAD = (
    *("store", "GB", "packed", "reading GB/s", "stats GB/s", "of reading"),
    *("dask GB/s", "x dask", "wall s", "MB a rank", "MB, twice"),
)


def print_table(rows: list[list[str]]) -> None:
    """Rows in columns, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([f"{row[0]:<{widths[0]}}", *cells]))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of a store")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--folder", type=Path, help="keeps stores there, and takes those it has")
    parser.add_argument("--repeat", type=int, default=3, help="rounds, of which the best counts")
    parser.add_argument("--dask-repeat", type=int, help="rounds with dask; default: all")
    parser.add_argument("--twice", action="store_true", help="memory of a store twice as long too")
    parser.add_argument(
        "--strict",
        action="store_true",
        help=".npy files are read into one reused buffer, and dask takes no care of missing values",
    )
    parser.add_argument("stats_args", nargs="*", help="after --: more options of neural-prep stats")
    args = parser.parse_args()
    args.nbytes = round(args.gigabytes * 1e9)
    args.dask_repeat = args.repeat if args.dask_repeat is None else args.dask_repeat
    return args


def main() -> None:
    """Measures each store, then prints the table and the bounds."""
    warnings.filterwarnings("ignore", "The data type .* does not have a Zarr V3 specification")
    args = _parse()
    with tempfile.TemporaryDirectory() as temporary:
        args.folder = args.folder or Path(temporary)
        args.folder.mkdir(parents=True, exist_ok=True)
        found = []
        for name in args.stores:
            store = make_store(name, args.folder, args.nbytes)
            found.append(measure(store, args))
            print_table([list(HEAD), rows_of(found[-1])])  # a run takes minutes
    strict = ", strict" if args.strict else ""
    print(
        f"\n{args.ranks} ranks{strict}: best of {args.repeat} rounds (worst), MB resident (anon.)"
    )
    print_table([list(HEAD), *map(rows_of, found)])
    for measured in found:
        said = [f"{name} {'holds' if holds else 'misses'}" for name, holds in bounds_of(measured)]
        print(f"{measured.store.name}: {', '.join(said)}")


if __name__ == "__main__":
    main()
