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

OF_READING = {"zstd": 0.8, "lz4": 0.7, "raw": 0.6, "npy": 0.6}
OF_READING_BY_ZARRS = {"zstd": 0.95, "lz4": 0.85}
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
        "reading: zarr-python's default codec pipeline; .npy files by np.fromfile, or into one "
        "small buffer over and over (reused)"
    )
    return [beside_reading, beside_dask, lags]


def _rounds(store: Store, args: Namespace) -> dict[str, Rates]:
    """All contenders on one store: reading first, which brings it into the page cache."""
    pipelines = args.pipelines if store.arrays else ("default",)
    ways = pipelines if store.arrays else ("fromfile", "reused")
    raw = partial(seconds_of, reading, args.ranks, store)
    stats = partial(seconds_of_stats, store, args.stats_args, ranks=args.ranks)
    contenders: dict[str, Callable[[], float]] = {}
    for how in ways:
        contenders[f"reading, {how}"] = partial(raw, how)
    for each in pipelines:
        contenders[f"stats, {each}"] = partial(stats, pipeline=each)
    contenders["more lags"] = partial(stats, lags=_MORE_LAGS, pipeline=pipelines[-1])
    contenders["dask"] = partial(seconds_of, xarray_dask, 1, store, args.ranks)
    raw(ways[0])
    seconds = take_turns(contenders, args.repeat, {"dask": args.dask_repeat})
    return {name: Rates(found, store.nbytes) for name, found in seconds.items()}


def _hold_reading(section: Section, store: Store, rates: Mapping[str, Rates]) -> None:
    row = _describe(store)
    for name in ("default", "fromfile", "reused", "zarrs"):
        if f"reading, {name}" in rates:
            row[f"reading, {name}"] = rates[f"reading, {name}"]
    row |= {name: found for name, found in rates.items() if name.startswith("stats")}
    section.rows.append(row)
    codec = store.recipe.codec
    if not store.arrays:
        for how in ("fromfile", "reused"):
            ratio = rates["stats, default"].over(rates[f"reading, {how}"])
            row[f"of {how}"] = ratio
            what = f"npy, of reading ({how})"
            section.hold(what, OF_READING[codec], store.name, ratio, least=True)
        return
    ratio = rates["stats, default"].over(rates["reading, default"])
    row["of default"] = ratio
    section.hold(f"{codec}, of reading", OF_READING[codec], store.name, ratio, least=True)
    if "stats, zarrs" in rates:
        ratio = rates["stats, zarrs"].over(rates["reading, default"])
        row["zarrs of default"] = ratio
        row["zarrs of zarrs"] = rates["stats, zarrs"].over(rates["reading, zarrs"])
        if codec in OF_READING_BY_ZARRS:
            limit = OF_READING_BY_ZARRS[codec]
            what = f"{codec} by zarrs, of reading (default)"
            section.hold(what, limit, store.name, ratio, least=True)


def _hold_dask(section: Section, store: Store, rates: Mapping[str, Rates]) -> None:
    if "dask" not in rates:
        return
    row = {"store": store.name, "dask": rates["dask"]}
    section.rows.append(row)
    for name, found in rates.items():
        if name.startswith("stats"):
            row[f"times dask ({name})"] = found.over(rates["dask"])
    ratio = rates["stats, default"].over(rates["dask"])
    section.hold("times xarray + dask", TIMES_DASK, store.name, ratio, least=True)


def _hold_lags(section: Section, store: Store, rates: Mapping[str, Rates]) -> None:
    one = [found for name, found in rates.items() if name.startswith("stats")][-1]
    three = rates["more lags"]
    share = (three.best / one.best - 1) / (len(_MORE_LAGS) - 1)
    section.rows.append(
        {"store": store.name, "lag 1": one, f"lags {_MORE_LAGS}": three, "a lag": share}
    )
    section.hold("a further lag, of the time", A_LAG, store.name, share, least=False)


def _describe(store: Store) -> dict[str, object]:
    recipe = store.recipe
    return {
        "store": store.name,
        "zarr": recipe.zarr if store.arrays else "-",
        "steps": recipe.chunks if store.arrays else "-",
        "GB": store.nbytes / 1e9,
        "packed": store.nbytes / store.stored,
    }
