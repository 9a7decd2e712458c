"""The statistics beside reading alone and beside xarray + dask, and what further lags cost."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial

from baselines import reading, seconds_of, xarray_dask
from outcome import Rates, Section
from running import seconds_of_stats, take_turns
from stores import STORES, Shelf, Store, usual_nbytes

# By codec, the least that statistics reach of reading; what is read and summed by whom.
OF_READING = {
    ("stats, zarr", "reading, zarr"): {"zstd": 0.8, "lz4": 0.7, "raw": 0.6},
    ("stats, zarrs", "reading, zarr"): {"zstd": 0.95, "lz4": 0.85},
    ("stats, zarrs", "reading, zarrs"): {},
    ("stats", "reading, fromfile"): {"npy": 0.6},
    ("stats", "reading, reused"): {"npy": 0.6},
}
TIMES_DASK, A_LAG = 4.0, 0.1
_MORE_LAGS = (1, 2, 3)


def measure(shelf: Shelf, args: Namespace) -> list[Section]:
    """A table for each of the three questions, with one row for each store."""
    ranks = f"on {args.ranks} ranks: GB/s of the best round (the worst)"
    beside_reading = Section(f"Beside reading alone, {ranks}")
    beside_dask = Section(f"Beside xarray + dask, {ranks}")
    lags = Section(f"Further lags, {ranks}, and the share of time that each of them adds")
    for name in args.stores or STORES:
        print(name, file=sys.stderr)
        with shelf.store(name, usual_nbytes(name, args.gigabytes)) as store:
            rates = _rounds(store, args)
        _hold_reading(beside_reading, store, rates)
        _hold_dask(beside_dask, store, rates)
        _hold_lags(lags, store, rates)
    beside_reading.notes.append(
        "decoded by zarr-python's default codec pipeline (zarr) or by zarrs; .npy files are read "
        "by np.fromfile, or into one small buffer over and over (reused)"
    )
    return [beside_reading, beside_dask, lags]


def _rounds(store: Store, args: Namespace) -> dict[str, Rates]:
    """All contenders on one store: reading first, which brings it into the page cache."""
    raw = partial(seconds_of, reading, args.ranks, store)
    stats = partial(seconds_of_stats, store, args.stats_args, ranks=args.ranks)
    contenders: dict[str, Callable[[], float]] = {}
    for how in args.decoders if store.arrays else ("fromfile", "reused"):
        contenders[f"reading, {how}"] = partial(raw, how)
    if store.arrays:
        for decoder in args.decoders:
            contenders[f"stats, {decoder}"] = partial(stats, decoder=decoder)
    else:
        contenders["stats"] = stats
    options = {"decoder": args.decoders[-1]} if store.arrays else {}
    contenders["more lags"] = partial(stats, lags=_MORE_LAGS, **options)
    contenders["dask"] = partial(seconds_of, xarray_dask, 1, store, args.ranks)
    next(iter(contenders.values()))()
    seconds = take_turns(contenders, args.repeat, {"dask": args.dask_repeat})
    return {name: Rates(found, store.nbytes) for name, found in seconds.items()}


def _hold_reading(section: Section, store: Store, rates: Mapping[str, Rates]) -> None:
    shown = {name: found for name, found in rates.items() if name.startswith(("reading", "stats"))}
    row = _describe(store) | shown
    section.rows.append(row)
    codec = store.recipe.codec
    for (stats, raw), limits in OF_READING.items():
        if stats in rates and raw in rates:
            ratio = rates[stats].over(rates[raw])
            row[f"{stats} / {raw.removeprefix('reading, ')}"] = ratio
            if codec in limits:
                what = f"{codec}: {stats} / {raw}"
                section.hold(what, limits[codec], store.name, ratio, least=True)


def _hold_dask(section: Section, store: Store, rates: Mapping[str, Rates]) -> None:
    if "dask" not in rates:
        return
    row: dict[str, object] = {"store": store.name, "dask": rates["dask"]}
    section.rows.append(row)
    for name, found in rates.items():
        if name.startswith("stats"):
            ratio = row[f"{name} / dask"] = found.over(rates["dask"])
            if name != "stats, zarrs":  # dask reads by zarr-python alone, too
                section.hold("stats / dask", TIMES_DASK, store.name, ratio, least=True)


def _hold_lags(section: Section, store: Store, rates: Mapping[str, Rates]) -> None:
    one = [found for name, found in rates.items() if name.startswith("stats")][-1]
    more = rates["more lags"]
    share = (more.best / one.best - 1) / (len(_MORE_LAGS) - 1)
    section.rows.append(
        {"store": store.name, "lag 1": one, f"lags {_MORE_LAGS}": more, "a lag": share}
    )
    section.hold("time of a further lag", A_LAG, store.name, share, least=False)


def _describe(store: Store) -> dict[str, object]:
    recipe = store.recipe
    return {
        "store": store.name,
        "zarr": recipe.zarr if store.arrays else "-",
        "steps": recipe.chunks if store.arrays else "-",
        "GB": store.nbytes / 1e9,
        "packed": store.nbytes / store.stored,
    }
