"""The most memory that a rank has, for small and large chunks, short and long stores."""

from __future__ import annotations

import sys
from argparse import Namespace

from memory import Peak
from outcome import Section
from running import run_stats
from stores import Shelf, Store, usual_nbytes

DEFAULT_STORES = (
    *("meps", "mllam-zstd", "cf-zstd-8"),
    *("mllam-zstd-64MB", "mllam-zstd-256MB", "mllam-zstd-512MB"),
)
MOST, LARGE_CHUNK, CHUNKS = 800e6, 70e6, 3
SLACK = 150e6  # by which "the same" memory differs: how much is read ahead depends on the load


def measure(shelf: Shelf, args: Namespace) -> list[Section]:
    """One row for each store: its usual size, and a long one of the same kind."""
    section = Section(
        f"Peak memory of a rank, of {args.ranks}: MB resident (of that, without mapped files)"
    )
    for name in args.stores or DEFAULT_STORES:
        print(name, file=sys.stderr)
        _measure(section, name, shelf, args)
    section.notes.append("resident memory counts mapped files in the page cache")
    return [section]


def _measure(section: Section, name: str, shelf: Shelf, args: Namespace) -> None:
    nbytes = usual_nbytes(name, args.gigabytes)
    with shelf.store(name, nbytes) as store:
        peak = _peak(store, args)
    chunk = store.recipe.chunk_nbytes
    row = {"store": name, "chunk MB": chunk / 1e6, "GB": nbytes / 1e9, "MB": str(peak)}
    section.rows.append(row)
    large = chunk > LARGE_CHUNK
    limit = (MOST + CHUNKS * chunk * large) / 1e6
    what = f"MB of a rank, chunks of {chunk / 1e6:.0f} MB" if large else "MB of a rank"
    section.hold(what, limit, name, peak.resident / 1e6, least=False)
    long_nbytes = args.long * args.gigabytes * 1e9
    if long_nbytes > nbytes:
        with shelf.store(name, long_nbytes) as store:
            longer = _peak(store, args)
        row |= {"GB, long": store.nbytes / 1e9, "MB, long": str(longer)}
        more = (longer.resident - peak.resident) / 1e6
        section.hold("MB more for a long store", SLACK / 1e6, name, more, least=False)
        section.hold(f"{what} (long)", limit, name, longer.resident / 1e6, least=False)


def _peak(store: Store, args: Namespace) -> Peak:
    """The greatest of all rounds."""
    peak = Peak()
    for _ in range(args.repeat):
        peak |= run_stats(store, args.stats_args, ranks=args.ranks).peak
        print(f"  {peak} MB", file=sys.stderr)
    return peak
