"""What the statistics are measured against: reading alone, and xarray + dask.

All run in processes that first prepare (import, open), then start together; only what comes after
counts.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from stores import Store

Work = Callable[[], object]
# Who decodes chunks: zarr-python by its default codec pipeline, or the package zarrs.
DECODERS = {
    "zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
}
_PIECE_BYTES = 16_000_000
_PATIENCE = 120.0  # seconds until all processes must be ready


def seconds_of(prepare: Callable[..., Work], processes: int, *args: Any) -> float:
    """From all processes being ready to the last one's end.

    Args:
        prepare: Called in each process with `rank, processes, *args`; returns what is timed.
        processes: How many there are.
        args: More arguments of `prepare`.
    """
    context = multiprocessing.get_context("spawn")
    ready, times = context.Barrier(processes, timeout=_PATIENCE), context.SimpleQueue()
    workers = [
        context.Process(target=_work, args=(ready, times, prepare, rank, processes, *args))
        for rank in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise RuntimeError(f"{prepare.__name__} ended with status {worker.exitcode}")
    begun, ended = zip(*(times.get() for _ in workers), strict=True)
    return float(max(ended) - min(begun))


def _work(ready: Any, times: Any, prepare: Callable[..., Work], rank: int, *args: Any) -> None:
    warnings.simplefilter("ignore")
    work = prepare(rank, *args)
    ready.wait()
    begun = time.monotonic()
    work()
    times.put((begun, time.monotonic()))


def reading(rank: int, ranks: int, store: Store, how: str = "zarr") -> Work:
    """Reads this rank's share of the fields, in order, and does nothing with them.

    Whole rows of zarr chunks of about 16 MB a call, which is faster than one row a call where
    chunks are small.

    Args:
        rank: Which share.
        ranks: How many shares there are.
        store: The store.
        how: Of zarr stores, who decodes: `zarr` or `zarrs`. Of `.npy` files, `fromfile`: into new
            memory, by `np.fromfile`; or `reused`: into one small buffer over and over,
            the least that a copy of the page cache can cost.
    """
    if store.arrays:
        import zarr

        zarr.config.set({"codec_pipeline.path": DECODERS[how]})
        group = zarr.open_group(store.path, mode="r")
        parts: list[Any] = [part for name in store.arrays for part in _rows(group[name])]
        read: Callable[[Any], object] = lambda part: part[0][part[1]]  # noqa: E731
    else:
        parts = [(file, file.stat().st_size) for file in store.files]
        buffer = memoryview(bytearray(_PIECE_BYTES))
        read = (lambda part: _copy(part[0], buffer)) if how == "reused" else _load
    mine = _share(parts, rank, ranks)

    def work() -> None:
        for part in mine:
            read(part)

    return work


def _rows(array: Any) -> Iterator[tuple[Any, slice, int]]:
    """An array in whole rows of chunks, or of shards, with their uncompressed bytes."""
    step_nbytes = array.nbytes // array.shape[0]
    chunk = (array.shards or array.chunks)[0]
    steps = max(1, _PIECE_BYTES // (chunk * step_nbytes)) * chunk
    for first in range(0, array.shape[0], steps):
        stop = min(first + steps, array.shape[0])
        yield array, slice(first, stop), (stop - first) * step_nbytes


def _share(parts: list[Any], rank: int, ranks: int) -> list[Any]:
    """Consecutive parts that make about the same bytes for each rank; a part's bytes come last."""
    sizes = np.array([part[-1] for part in parts])
    middle = np.cumsum(sizes) - sizes / 2
    owner = np.minimum(middle * ranks // sizes.sum(), ranks - 1)
    return [part for part, at in zip(parts, owner, strict=True) if at == rank]


def _load(part: tuple[Path, int]) -> object:
    return np.fromfile(part[0], np.uint8)


def _copy(path: Path, buffer: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def xarray_dask(rank: int, ranks: int, store: Store, threads: int) -> Work:
    """Mean and std of all fields, and of their differences at lag 1, in float64, in one graph.

    Missing values are left out: xarray's default, and what the statistics do.
    """
    import dask

    fields = list(_open_samples(store) if store.files else _open_zarr(store))

    def work() -> object:
        results = []
        for dims, along, samples in fields:
            values = _joined(samples, along).astype(np.float64)
            steps = [sample.astype(np.float64).diff(along) for sample in samples]
            differences = _joined(steps, along)
            for each in (values, differences):
                results += [each.mean(dims), each.std(dims)]
        with dask.config.set(scheduler="threads", num_workers=threads):
            return dask.compute(*results)

    return work


def _joined(arrays: list[Any], time: str) -> Any:
    import xarray

    return xarray.concat(arrays, time) if len(arrays) > 1 else arrays[0]


def _open_samples(store: Store) -> Iterator[tuple[list[str], str, list[Any]]]:
    """Samples, then fluxes, memory-mapped and cut into pieces of a few steps."""
    import dask.array
    import xarray

    for ndim, dims in ((4, ["time", "y", "x", "feature"]), (3, ["time", "y", "x"])):
        samples = []
        for file in store.files:
            mapped = np.load(file, mmap_mode="r")
            if mapped.ndim == ndim:
                steps = max(1, _PIECE_BYTES // (mapped.nbytes // mapped.shape[0]))
                chunks = (steps, *mapped.shape[1:])
                cut = dask.array.from_array(mapped, chunks, name=file.name)
                samples.append(xarray.DataArray(cut, dims=dims))
        yield ["time", "y", "x"], "time", samples


def _open_zarr(store: Store) -> Iterator[tuple[list[str], str, list[Any]]]:
    """Arrays chunked as they are stored: by shards where there are some."""
    import xarray
    import zarr

    dataset = xarray.open_zarr(store.path, chunks=None)
    group = zarr.open_group(store.path, mode="r")
    for name in store.arrays:
        dims = [str(dim) for dim in dataset[name].dims]
        sizes = group[name].shards or group[name].chunks
        kept = ("level", f"{name}_feature")
        chunked = dataset[name].chunk(dict(zip(dims, sizes, strict=True)))
        yield [dim for dim in dims if dim not in kept], "time", [chunked]
