"""Stores whose every request takes a while, as those of object storage: reading at once pays."""

from __future__ import annotations

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from baselines import one_by_one, seconds_of
from outcome import Rates, Section
from running import seconds_of_stats, take_turns
from stores import Shelf

DEFAULT_STORES = ("cf-zstd-1MB",)
LATENCY = 0.05  # seconds
TIMES = 20.0
_GIGABYTES = 0.5  # of a store at most: each of its chunks takes one reader 50 ms


def measure(shelf: Shelf, args: Namespace) -> list[Section]:
    """One row for each store; one rank, as the reader is one process."""
    section = Section(
        f"Requests that take {1e3 * LATENCY:.0f} ms each, one rank: GB/s of the best round"
    )
    for name in args.stores or DEFAULT_STORES:
        print(name, file=sys.stderr)
        with shelf.store(name, 1e9 * min(args.gigabytes, _GIGABYTES)) as store:
            if not store.arrays:
                section.notes.append(f"{name}: files are no objects")
                continue
            command = (str(Path(__file__).with_name("latency.py")), str(LATENCY))
            contenders = {
                "one by one": partial(seconds_of, one_by_one, 1, store, LATENCY),
                "stats": partial(
                    seconds_of_stats, store, args.stats_args, ranks=1, command=command
                ),
            }
            seconds = take_turns(contenders, args.repeat, {"one by one": 1})
            rates = {who: Rates(found, store.nbytes) for who, found in seconds.items()}
        times = rates["stats"].over(rates["one by one"])
        chunk = store.recipe.chunk_nbytes / 1e6
        section.rows.append({"store": name, "chunk MB": chunk, **rates, "times": times})
        section.hold("times one by one", TIMES, name, times, least=True)
    return [section]
