"""What reading a series takes, as counted from metadata, is what the store has.

That the numbers of pieces, and the bytes that lags make read again, are those of the spans, `walk`
checks in every test of a source.
"""

import numpy as np
import pytest
import zarr

from neural_prep.data.layouts import open_source
from neural_prep.data.source import StoreOptions


def write(root, dims, shape, chunks, shards=None):
    """One array, written whole: its path and how many files hold it."""
    group = zarr.open_group(root, mode="w", zarr_format=3)
    array = group.create_array(
        "t2m",
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype="i2",
        dimension_names=dims,
        fill_value=9,
    )
    array[...] = 1  # not the fill value, of which chunks are not written
    for name, units in (("time", "hours since 2000-01-01"), ("level", "hPa")):
        size = dict(zip(dims, shape, strict=True)).get(name)
        if size:
            group.create_array(name, data=np.arange(size), dimension_names=(name,))
            group[name].attrs["units"] = units
    return sum(file.is_file() for file in (root / "t2m" / "c").rglob("*"))


@pytest.mark.parametrize(
    ("dims", "shape", "chunks", "shards"),
    [
        pytest.param(("time", "y", "x"), (10, 4, 6), (1, 4, 6), None, id="fields"),
        pytest.param(("time", "y", "x"), (10, 4, 6), (3, 4, 6), None, id="three-steps"),
        pytest.param(("time", "y", "x"), (10, 4, 6), (10, 2, 5), None, id="along-time"),
        pytest.param(("time", "y", "x"), (10, 4, 6), (1, 2, 3), (2, 4, 3), id="shards"),
        pytest.param(("time", "level", "y"), (10, 5, 6), (2, 2, 6), None, id="levels"),
        pytest.param(("y", "time", "level"), (4, 10, 5), (3, 2, 1), None, id="levels-last"),
        pytest.param(("y", "x"), (4, 6), (3, 3), None, id="static"),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 100, 10_000])
def test_objects_are_the_files_of_a_store(tmp_path, dims, shape, chunks, shards, block_bytes):
    files = write(tmp_path, dims, shape, chunks, shards)
    source = open_source("cf", StoreOptions(str(tmp_path), block_bytes=block_bytes))
    outlines = [series.outline(lag=1, piece_steps=None) for series in source.series]
    assert sum(outline.objects for outline in outlines) == files
    steps = shape[dims.index("time")] if "time" in dims else 1
    in_memory = 4 * np.prod(shape) // steps  # int16 becomes float32
    assert sum(outline.step_nbytes for outline in outlines) == in_memory


def test_objects_of_a_selection(tmp_path):
    write(tmp_path, ("time", "y"), (10, 6), (3, 4))
    options = StoreOptions(str(tmp_path), start="2000-01-01T04", end="2000-01-01T06")
    (series,) = open_source("cf", options).series
    outline = series.outline(lag=1, piece_steps=None)
    assert outline.objects == 2 * 2  # steps 3 to 8, both parts of the grid
    assert outline.pieces.tolist() == [1]
    assert outline.again.tolist() == [0]  # the steps before are not selected


def test_arrays_that_are_cut_alike_share_their_counts(tmp_path):
    group = zarr.open_group(tmp_path, mode="w", zarr_format=3)
    for name in ("u", "v"):
        group.create_array(
            name, shape=(10, 6), chunks=(1, 6), dtype="f4", dimension_names=("time", "y")
        )
    series = open_source("cf", StoreOptions(str(tmp_path), block_bytes=48)).series
    first, second = (each.outline(lag=1, piece_steps=None) for each in series)
    assert first.pieces is second.pieces
    assert first.again is second.again
    assert first.again.tolist() == [0, 24, 24, 24, 24]
