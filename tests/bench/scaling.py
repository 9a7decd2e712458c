"""What a second rank gains on a second core, and costs on the same one.

Each rank reads and calculates in one thread (`--data.workers 1`) and is kept to its cores: with two
cores at hand, a lone rank would use both.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from baselines import reading, seconds_of
from outcome import Rates, Section
from running import on_cores, seconds_of_stats, take_turns
from stores import Shelf, Store, usual_nbytes

DEFAULT_STORES = ("meps", "mllam-zstd", "mllam-zstd-8", "cf-lz4-8", "cf-raw")
TWO_CORES, ONE_CORE = 1.8, 1.0
_WORLDS = {"1 rank, 1 core": (1, 1), "2 ranks, 2 cores": (2, 2), "2 ranks, 1 core": (2, 1)}


def measure(shelf: Shelf, args: Namespace) -> list[Section]:
    """One row for each store; no table where there are not two cores."""
    section = Section("1 and 2 ranks of one thread each: GB/s of the best round (the worst)")
    if len(os.sched_getaffinity(0)) < 2:
        section.notes.append("not measured: it takes two cores")
        return [section]
    for name in args.stores or DEFAULT_STORES:
        print(name, file=sys.stderr)
        with shelf.store(name, usual_nbytes(name, args.gigabytes)) as store:
            _measure(section, store, args)
    section.notes.append("the same for reading alone says what the machine's second core gives")
    return [section]


def _measure(section: Section, store: Store, args: Namespace) -> None:
    how = args.decoders[-1] if store.arrays else "reused"
    contenders: dict[str, Callable[[], float]] = {}
    for name, (ranks, cores) in _WORLDS.items():
        contenders[f"reading, {name}"] = partial(_read, store, how, ranks, cores)
        contenders[f"stats, {name}"] = partial(_run, store, args, ranks, cores)
    seconds_of(reading, 1, store, how)  # into the page cache
    seconds = take_turns(contenders, args.repeat)
    rates = {name: Rates(found, store.nbytes) for name, found in seconds.items()}
    row: dict[str, object] = {"store": store.name}
    row |= {name: rates[f"stats, {name}"] for name in _WORLDS}
    section.rows.append(row)
    one, two, crowded = _WORLDS
    for kind in ("stats", "reading"):
        gain = rates[f"{kind}, {two}"].over(rates[f"{kind}, {one}"])
        cost = rates[f"{kind}, {crowded}"].over(rates[f"{kind}, {one}"])
        row |= {f"{kind}: 2 cores": gain, f"{kind}: 1 core": cost}
        if kind == "stats":
            section.hold("2 ranks, times 1", TWO_CORES, store.name, gain, least=True)
            section.hold("2 ranks on one core, times 1", ONE_CORE, store.name, cost, least=True)


def _first_cores(count: int) -> set[int]:
    return set(sorted(os.sched_getaffinity(0))[:count])


def _read(store: Store, how: str, ranks: int, cores: int) -> float:
    with on_cores(_first_cores(cores)):
        return seconds_of(reading, ranks, store, how)


def _run(store: Store, args: Namespace, ranks: int, cores: int) -> float:
    extra = ["--data.workers", "1", *args.stats_args]
    with on_cores(_first_cores(cores)):
        return seconds_of_stats(store, extra, ranks=ranks)
