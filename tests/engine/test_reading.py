"""How much is in flight, and with how many threads: what `data.read_ahead` and `workers` bound."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
import zarr
import zarrs.pipeline

from neural_prep.engine.datamodule import StatsDataModule
from neural_prep.engine.reading import PieceReader

STEP = 4_000  # bytes, one chunk
STEPS = 40


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "cf.zarr"
    values = np.random.default_rng(0).normal(280, 5, (STEPS, 10, 100)).astype(np.float32)
    times = np.datetime64("2020-01-01", "ns") + np.arange(STEPS) * np.timedelta64(6, "h")
    data = xr.Dataset({"t": (("time", "latitude", "longitude"), values)}, {"time": times})
    data.to_zarr(path, zarr_format=2, encoding={"t": {"chunks": (1, 10, 100)}})
    return path


class Counted:
    """A series whose pieces are counted from the start of their reading until they are let go."""

    def __init__(self, series):
        self._series = series
        self._lock = threading.Lock()
        self.nbytes = self.most = 0

    def __getattr__(self, name):
        return getattr(self._series, name)

    def read(self, span):
        with self._lock:
            self.nbytes += span.nbytes
            self.most = max(self.most, self.nbytes)
        return self._series.read(span)


def most_in_flight(store, *, remote, read_ahead):
    """The most bytes in flight at once while a slow user takes pieces, one ahead as Lightning."""
    plan = StatsDataModule(path=str(store), layout="cf").open((1,))
    counted = Counted(plan.source.series[0])
    source = SimpleNamespace(series=[counted], remote=remote)
    seen = SimpleNamespace(
        source=source, longest_lag=plan.longest_lag, reach_of=plan.reach_of, runs=plan.runs
    )
    reader = PieceReader(seen, plan.runs(0, 1), piece_steps=1, workers=2, read_ahead=read_ahead)
    taken = 0
    for pending in reader:
        pending.result()
        if taken:
            counted.nbytes -= STEP  # the piece before this one is let go
        taken += 1
        time.sleep(0.002)  # others are read meanwhile, as far as they may
    assert taken == STEPS
    return counted.most


@pytest.mark.parametrize("read_ahead", [1, 2 * STEP, 5 * STEP, 12 * STEP, 1000 * STEP])
def test_from_far_away_as_much_is_in_flight_as_was_asked_for(store, read_ahead):
    # A quarter of it is kept for what comes from the server, before it is decoded.
    expected = min(max(4 * read_ahead // (5 * STEP), 2), STEPS) * STEP
    most = most_in_flight(store, remote=True, read_ahead=read_ahead)
    assert expected // 2 <= most <= expected


def test_from_a_disk_a_few_pieces_are_in_flight(store):
    assert most_in_flight(store, remote=False, read_ahead=1000 * STEP) <= 6 * STEP


@pytest.mark.parametrize("workers", [1, 3])
def test_zarrs_decodes_with_as_many_threads_as_a_rank_has(store, monkeypatch, workers):
    # By itself it takes all cores, on each of a machine's ranks.
    known, given = zarrs.pipeline.CodecPipelineImpl, []

    def make(*args, num_threads, **kwargs):
        given.append(num_threads)
        return known(*args, num_threads=num_threads, **kwargs)

    monkeypatch.setattr(zarrs.pipeline, "CodecPipelineImpl", make)
    with zarr.config.set({"threading.max_workers": None}):
        StatsDataModule(path=str(store), layout="cf", workers=workers).open((1,))
    assert given
    assert set(given) == {workers}
