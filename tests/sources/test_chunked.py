"""Arrays cut into series and blocks: each value once, its lags at hand, no chunk for nothing."""

import pickle
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from neural_prep.data.chunked.cuts import cut_grid, plan_blocks
from neural_prep.data.chunked.missing import read_coding
from neural_prep.data.chunked.series import Axes, DataArray, cut_array
from neural_prep.data.chunked.store import StoredArray
from neural_prep.data.timelines.timeline import make_timeline
from neural_prep.data.timelines.times import Times


def numbers(positions):
    return Times("time", np.array(positions, np.int64), "date")


def line(positions, step=1, chosen=None):
    """A time line by its positions, of which `chosen` (low, high) are selected."""
    made = make_timeline(numbers(positions), step="any" if step is None else None)
    if chosen is None:
        return made
    low, high = (np.datetime64(int(at), "us") for at in chosen)
    return make_timeline(numbers(positions), start=f"{low}", end=f"{high}")


def data_array(values, dims, chunks, *, shards=None, time=None, run=None, store=None, **more):
    """An array in memory; one letter a dimension: t time, r run, v and w variables, others grid."""
    array = zarr.create_array(
        store=MemoryStore() if store is None else store,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        shards=shards,
        **more,
    )
    array[...] = values
    stored = StoredArray("x", array, tuple(dims), {}, tuple(array.shards or array.chunks))
    axes = Axes(
        dims.find("t") if "t" in dims else None,
        dims.find("r") if "r" in dims else None,
        tuple(axis for axis, dim in enumerate(dims) if dim in "vw"),
    )
    coding = read_coding("x", values.dtype, {}, None, 3)
    return DataArray(stored, axes, coding, time, run, "x in memory")


def by_roles(values, dims, time, run):
    """The array as (R, T, V, N), the ages of its steps, and which runs are selected."""
    roles = ["r", "t", "vw"]  # variables count in stored order
    axes = [[axis for axis, dim in enumerate(dims) if dim in role] for role in roles]
    grid = [axis for axis, dim in enumerate(dims) if dim in "xy"]
    sizes = [int(np.prod([values.shape[axis] for axis in role])) for role in axes]
    flat = values.transpose(*axes[0], *axes[1], *axes[2], *grid).reshape(*sizes, -1)  # (R, T, V, N)
    ages = np.zeros(1, int) if time is None else time.age
    chosen = np.ones(1, bool) if run is None else run.age >= 0
    return flat, ages, chosen


@dataclass
class Case:
    """One random store."""

    values: np.ndarray
    dims: str
    chunks: tuple
    shards: tuple | None
    time: object
    run: object


@st.composite
def cases(draw):
    dims = draw(st.sampled_from(["", "t", "t", "t", "rt"]))
    dims += draw(st.sampled_from(["", "v", "vw"])) + draw(st.sampled_from(["", "x", "xy"]))
    dims = "".join(draw(st.permutations(dims))) or "x"
    sizes = {"t": st.integers(1, 9), "r": st.integers(1, 5)}
    shape = tuple(draw(sizes.get(dim, st.integers(1, 4))) for dim in dims)
    chunks = tuple(draw(st.integers(1, size + 1)) for size in shape)
    shards = None
    if draw(st.booleans()):
        shards = tuple(chunk * draw(st.integers(1, 3)) for chunk in chunks)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return Case(
        values, dims, chunks, shards, draw(lines("t", dims, shape)), draw(lines("r", dims, shape))
    )


def lines(dim, dims, shape):
    """A time line for a dimension: steps of 1, gaps and repeats, a selection; None without."""
    if dim not in dims:
        return st.none()
    size = shape[dims.index(dim)]
    distances = st.lists(st.sampled_from([1, 1, 1, 1, 2, 0, -1]), min_size=size, max_size=size)

    def select(steps, ends):
        positions = np.cumsum(steps)
        low, high = sorted(int(positions[end % size]) for end in ends)
        return line(positions, chosen=(low, high))

    return st.builds(select, distances, st.tuples(st.integers(0, 8), st.integers(0, 8)))


@settings(deadline=None, max_examples=400)
@given(
    cases(),
    st.integers(1, 400),
    st.sampled_from([0, 1, 2, 5]),
    st.sampled_from([None, 1, 2, 4]),
    st.booleans(),
)
def test_every_value_is_read_once_with_its_lags_at_hand(
    walk, case, block_bytes, lag, piece_steps, continued
):
    data = data_array(
        case.values, case.dims, case.chunks, shards=case.shards, time=case.time, run=case.run
    )
    flat, ages, chosen = by_roles(case.values, case.dims, case.time, case.run)
    columns = range(data.variables)
    found, found_ages = {}, {}
    for series in cut_array(data, "state", columns, block_bytes):
        values, series_ages = walk(series, lag=lag, piece_steps=piece_steps, continued=continued)
        assert not found.keys() & values.keys()
        found |= values
        found_ages |= series_ages
    width = data.stored.chunks[data.axes.run] if data.axes.run is not None else 1
    expected, expected_ages = {}, {}
    for first in range(0, len(chosen), width):
        used = flat[first : first + width][chosen[first : first + width]]  # (R, T, V, N)
        for step in np.flatnonzero(ages >= 0) if len(used) else ():
            position = first // width * len(ages) + int(step)
            expected_ages[position] = ages[step]
            for column in columns:
                expected[position, column] = sorted(used[:, step, column].ravel())
    assert found_ages == expected_ages
    assert {key: sorted(np.concatenate(parts)) for key, parts in found.items()} == expected


class CountingStore(MemoryStore):
    """Counts how often each chunk is read."""

    def __init__(self):
        super().__init__()
        self.reads = Counter()

    async def get(self, key, prototype, byte_range=None):
        self.reads[key] += 1
        return await super().get(key, prototype, byte_range)


@pytest.mark.parametrize(
    ("dims", "shape", "chunks", "shards"),
    [
        pytest.param("tvx", (12, 6, 5), (1, 1, 5), None, id="one step, one variable"),
        pytest.param("tvx", (12, 6, 5), (1, 6, 5), None, id="all variables"),
        pytest.param("tvxy", (12, 3, 8, 6), (12, 1, 2, 3), None, id="long chunks, small grid"),
        pytest.param("xyt", (8, 6, 12), (2, 2, 12), None, id="time last"),
        pytest.param("rtx", (6, 4, 5), (2, 2, 5), None, id="forecasts"),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 100, 1000, 10**6])
@pytest.mark.parametrize("piece_steps", [None, 1, 5])
def test_no_chunk_is_read_twice(dims, shape, chunks, shards, block_bytes, piece_steps):
    store = CountingStore()
    values = np.zeros(shape, np.float32) + 1
    time = line(range(shape[dims.index("t")]))
    run = line(range(shape[0]), step=None) if dims[0] == "r" else None
    data = data_array(values, dims, chunks, time=time, run=run, store=store)
    all_series = cut_array(data, "state", range(data.variables), block_bytes)
    store.reads.clear()
    for series in all_series:
        for block in range(len(series.block_nbytes)):
            for span in series.spans(block, lag=0, piece_steps=piece_steps, continued=False):
                series.read(span)
    assert set(store.reads.values()) == {1}
    assert len(store.reads) == np.prod([-(-s // c) for s, c in zip(shape, chunks, strict=True)])


def test_only_rows_with_selected_steps_are_read():
    store = CountingStore()
    time = line(range(100), chosen=(31, 44))
    data = data_array(np.ones((100, 2), np.float32), "tx", (10, 2), time=time, store=store)
    (series,) = cut_array(data, "state", [0], 200)
    store.reads.clear()
    for block in range(len(series.block_nbytes)):
        for span in series.spans(block, lag=5, piece_steps=None, continued=False):
            series.read(span)
    assert sorted(store.reads) == ["c/3/0", "c/4/0"]
    assert series.block_nbytes.tolist() == [80, 80]  # blocks of 20 steps from the store's start


def test_a_hole_in_the_selection_is_not_read():
    positions = [*range(10), *range(1000, 1010), *range(10, 20)]
    data = data_array(
        np.ones((30, 2), np.float32), "tx", (5, 2), time=line(positions, chosen=(0, 19))
    )
    (series,) = cut_array(data, "state", [0], 10**6)
    spans = series.spans(0, lag=1, piece_steps=100, continued=False)
    assert [(span.first, span.stop) for span in spans] == [(0, 10), (20, 30)]


@pytest.mark.parametrize(
    ("steps", "block_bytes", "blocks"),
    [
        pytest.param(10, 8 * 4, [32, 32, 16], id="four steps a block"),
        pytest.param(11, 8 * 4, [32, 32, 24], id="one more step"),
        pytest.param(12, 8 * 4, [32, 32, 32], id="full"),
        pytest.param(13, 8 * 4, [32, 32, 32, 8], id="a new block"),
        pytest.param(3, 10**9, [24], id="one block"),
    ],
)
def test_bounds_stay_when_a_store_grows(steps, block_bytes, blocks):
    data = data_array(np.ones((steps, 2), np.float32), "tx", (1, 2), time=line(range(steps)))
    (series,) = cut_array(data, "state", [0], block_bytes)
    assert series.block_nbytes.tolist() == blocks


@pytest.mark.parametrize(
    ("columns", "block_bytes", "series"),
    [
        pytest.param([0, 1, 2, 3, 4], 8 * 80, [(0, 1, 2, 3), (4,)], id="two chunks a series"),
        pytest.param([0, 1, 2, 3, 4], 1, [(0, 1), (2, 3), (4,)], id="one chunk a series"),
        pytest.param([0, 1, 2, 3, 4], 10**6, [(0, 1, 2, 3, 4)], id="all in one"),
        pytest.param([0, -1, -1, -1, 1], 1, [(0, -1), (1,)], id="nothing is read for dropped ones"),
    ],
)
def test_series_hold_whole_chunks_of_variables(columns, block_bytes, series):
    data = data_array(np.ones((3, 5, 5), np.float32), "tvx", (1, 2, 5), time=line(range(3)))
    cut = cut_array(data, "state", columns, block_bytes)
    assert [each.columns for each in cut] == series


@pytest.mark.parametrize(
    ("sizes", "chunks", "limit", "counts"),
    [
        pytest.param((100, 50), (10, 50), 5000, (1, 1), id="fits"),
        pytest.param((100, 50), (10, 50), 4999, (2, 1), id="first dimension"),
        pytest.param((100, 50), (10, 50), 10, (10, 1), id="one chunk"),
        pytest.param((100, 50), (100, 10), 1000, (1, 5), id="first dimension is one chunk"),
        pytest.param((100, 50), (10, 10), 200, (10, 3), id="both"),
        pytest.param((), (), 0, (), id="no grid"),
    ],
)
def test_a_row_that_is_too_large_is_cut_along_the_grid(sizes, chunks, limit, counts):
    cut = cut_grid(sizes, chunks, limit)
    assert cut.counts == counts
    assert cut.points.sum() == np.prod(sizes)
    assert len(cut.points) == np.prod(counts)


@pytest.mark.parametrize(
    ("dims", "shape", "view", "dtype", "result"),
    [
        pytest.param("tvx", (3, 2, 5), True, "f4", (3, 2, 5, 1), id="variable before grid"),
        pytest.param("txv", (3, 5, 2), True, "f4", (3, 1, 5, 2), id="variable after grid"),
        pytest.param("tx", (3, 5), True, "f8", (3, 1, 5, 1), id="no variable"),
        pytest.param("vtx", (1, 3, 5), True, "f4", (3, 1, 5, 1), id="one variable first"),
        pytest.param("xt", (5, 3), False, "f4", (3, 1, 5, 1), id="time last"),
        pytest.param("txvy", (3, 2, 4, 5), False, "f4", (3, 4, 10, 1), id="variable inside"),
        pytest.param("t", (3,), True, "f4", (3, 1, 1, 1), id="time alone"),
        pytest.param("x", (5,), True, "f4", (1, 1, 5, 1), id="no time"),
        pytest.param("tx", (3, 5), False, "i2", (3, 1, 5, 1), id="int16"),
    ],
)
def test_values_are_copied_only_where_they_must_be(dims, shape, view, dtype, result):
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    time = line(range(shape[dims.index("t")])) if "t" in dims else None
    data = data_array(values, dims, shape, time=time)
    (series,) = cut_array(data, "state", range(data.variables), 10**6)
    read = series._arrange(values, 0)
    assert read.shape == result
    assert np.shares_memory(series.data.coding.to_floats(read), values) == view
    (span,) = series.spans(0, lag=0, piece_steps=None, continued=False)
    assert series.read(span).values.shape == result


def test_default_pieces_hold_16_mb_and_whole_chunks():
    time = line(range(100))
    store = MemoryStore()
    array = zarr.create_array(store=store, shape=(100, 10**6), chunks=(3, 10**6), dtype="i1")
    stored = StoredArray("x", array, ("t", "x"), {}, array.chunks)
    coding = read_coding("x", array.dtype, {}, None, 3)
    data = DataArray(stored, Axes(0), coding, time, None, "x")
    (series,) = cut_array(data, "state", [0], 64_000_000)
    spans = list(series.spans(0, lag=0, piece_steps=None, continued=False))
    assert [span.stop - span.first for span in spans][:3] == [3, 3, 3]  # int8 is float32 in memory
    spans = list(series.spans(0, lag=0, piece_steps=7, continued=False))
    assert [span.stop - span.first for span in spans][:3] == [9, 9, 9]
    assert series.block_nbytes.tolist() == [63_000_000, 37_000_000]


@pytest.mark.parametrize(
    ("block_bytes", "pieces"),
    [
        pytest.param(16, [[(0, 2)], [(2, 3)], [(3, 5)], [(5, 6)], [(6, 8)], [(8, 9)]], id="rows"),
        pytest.param(32, [[(0, 3)], [(3, 6)], [(6, 9)]], id="runs"),
        pytest.param(64, [[(0, 3), (3, 6)], [(6, 9)]], id="two runs a block"),
    ],
)
def test_forecasts_are_cut_between_analyses(block_bytes, pieces):
    values = np.ones((6, 3, 1), np.float32)
    data = data_array(values, "rtx", (2, 2, 1), time=line(range(3)), run=line(range(6), step=None))
    (series,) = cut_array(data, "state", [0], block_bytes)
    found = [
        [(span.first, span.stop) for span in series.spans(b, lag=0, piece_steps=9, continued=False)]
        for b in range(len(series.block_nbytes))
    ]
    assert found == pieces


def test_some_analyses_of_a_chunk():
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    run = line([5, 0, 1, 2, 3, 4], chosen=(1, 3))
    data = data_array(values, "rt", (4, 2), time=line([0, 1]), run=run)
    (series,) = cut_array(data, "state", [0], 10**6)
    spans = list(series.spans(0, lag=1, piece_steps=None, continued=False))
    assert [series.read(span).values[:, 0, :, 0].tolist() for span in spans] == [
        [[4, 6], [5, 7]],
        [[8], [9]],
    ]
    assert series.place(spans[0], 1) == (
        "x in memory at 1970-01-01T00:00:00.000001 to 1970-01-01T00:00:00.000002 "
        "1970-01-01T00:00:00.000001"
    )


def test_place_names_the_array_and_the_time():
    days = Times("time", np.arange(3) * 86_400_000_000, "date")
    data = data_array(np.ones((3, 1), np.float32), "tx", (1, 1), time=make_timeline(days))
    (series,) = cut_array(data, "state", [0], 4)
    (context, span) = series.spans(2, lag=1, piece_steps=None, continued=False)
    assert (context.context, span.context) == (1, 0)
    assert series.place(context, 0) == "x in memory at 1970-01-02T00:00"
    assert series.place(span, 0) == "x in memory at 1970-01-03T00:00"


def test_a_long_store_is_planned_in_no_time():
    time_line = line(range(436_524))
    begun = time.perf_counter()
    plan = plan_blocks(time_line.age, None, 1, 1, ((721, 1440), (91, 90)), 4, 64_000_000)
    assert len(plan.block_nbytes) == -(-436_524 // 15)
    assert plan.block_nbytes.sum() == 436_524 * 721 * 1440 * 4
    plan = plan_blocks(time_line.age, None, 1, 1, ((721, 1440), (91, 90)), 4, 1_000_000)
    assert len(plan.block_nbytes) == 436_524 * 8
    assert list(plan.pieces(10**6, 1)) == [(125_000, 125_001)]
    assert time.perf_counter() - begun < 0.3  # measured: 0.05


def test_series_can_be_sent_to_another_process():
    store = MemoryStore()
    data = data_array(np.ones((3, 2), np.float32), "tx", (1, 2), time=line(range(3)), store=store)
    (series,) = cut_array(data, "state", [0], 8)
    copy = pickle.loads(pickle.dumps(series))
    (span,) = copy.spans(0, lag=0, piece_steps=None, continued=False)
    assert copy.read(span).age.tolist() == [0]
