"""What a block is read from: its files, and what metadata say of it."""

import os
from pathlib import Path

import numpy as np
import pytest
import zarr

from neural_prep.data.layouts import open_source
from neural_prep.data.source import StoreOptions

STEPS, FEATURES, POINTS = 22, 3, 10


@pytest.fixture
def write(tmp_path):
    """Writes an mllam store with zarr itself, in any encoding of chunk keys."""

    def run(chunks=(4, 3, 10), **how):
        root = zarr.open_group(tmp_path / "store", mode="w", zarr_format=how.pop("zarr_format", 3))
        dims = ("time", "state_feature", "grid_index")
        if root.metadata.zarr_format == 3:
            how["dimension_names"] = dims
        else:
            how["attributes"] = {"_ARRAY_DIMENSIONS": list(dims)}
        shape = (STEPS, FEATURES, POINTS)
        state = root.create_array("state", shape=shape, chunks=chunks, dtype="f4", **how)
        state[:] = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
        days = {"units": "days since 2000-01-01"}
        names = {name: ("time",) for name in how if name == "dimension_names"}
        if not names:
            days["_ARRAY_DIMENSIONS"] = ["time"]
        root.create_array("time", data=np.arange(STEPS), attributes=days, **names)
        return tmp_path / "store"

    return run


def chunk_files(root):
    """All files of the array but its metadata."""
    found = (path for path in (root / "state").rglob("*") if path.is_file())
    return {str(path) for path in found if not path.name.startswith((".z", "zarr."))}


@pytest.mark.parametrize(
    "how",
    [
        {"zarr_format": 2},
        {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
        {},
        {"chunk_key_encoding": {"name": "default", "separator": "."}},
        {"chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"chunks": (2, 3, 5), "shards": (4, 3, 10)},
        {"chunks": (4, 1, 5)},
    ],
    ids=["2", "2 nested", "3", "3 flat", "3 named as 2", "shards", "parts"],
)
@pytest.mark.parametrize("block_bytes", [1, 1000])
def test_files_of_all_blocks_are_all_files(write, how, block_bytes):
    root = write(**how)
    source = open_source("mllam", StoreOptions(str(root), block_bytes=block_bytes))
    found = [
        path
        for series in source.series
        for block in range(len(series.block_nbytes))
        for path in series.paths(block, 0)
    ]
    assert len(found) == len(set(found))
    assert set(found) == chunk_files(root)


@pytest.mark.parametrize(
    ("block", "lag", "steps"),
    [
        (0, 0, (0, 2)),
        (0, 5, (0, 2)),
        (1, 0, (2, 4)),
        (1, 1, (1, 4)),
        (1, 4, (1, 4)),
        (1, 5, (0, 4)),
        (2, 4, (3, 6)),
    ],
    ids=lambda value: str(value),
)
def test_files_of_a_block_cover_its_lags(write, block, lag, steps):
    root = write(zarr_format=2)
    (series,) = open_source("mllam", StoreOptions(str(root), block_bytes=8 * 120)).series
    expected = [f"{root}/state/{chunk}.0.0" for chunk in range(*steps)]
    assert list(series.paths(block, lag)) == expected


def test_a_remote_store_has_no_files(write):
    root = zarr.open_group(write())
    (series,) = open_source("mllam", StoreOptions(str(write()))).series
    memory = zarr.storage.MemoryStore()
    copied = zarr.create_array(memory, data=root["state"][:])
    object.__setattr__(series.data.stored, "array", copied)
    assert list(series.paths(0, 1)) == []


def test_what_is_not_selected_is_not_looked_at(write):
    root = write(zarr_format=2)
    options = StoreOptions(str(root), start="2000-01-10", end="2000-01-15", block_bytes=10**6)
    (series,) = open_source("mllam", options).series
    assert [Path(path).name for path in series.paths(0, 2)] == ["2.0.0", "3.0.0"]


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, [True, True, True]),
        ({"end": "2000-01-20"}, [True, True, False]),
        ({"start": "2000-01-02"}, [False, True, True]),
        ({"step": "any"}, [True, True, True]),
    ],
    ids=["nothing", "end", "start", "step"],
)
def test_descriptions_follow_what_is_selected(write, changed, same):
    root = str(write())
    (one,) = open_source("mllam", StoreOptions(root, block_bytes=8 * 120)).series
    (other,) = open_source("mllam", StoreOptions(root, block_bytes=8 * 120, **changed)).series
    assert [one.describe(block, 3) == other.describe(block, 3) for block in range(3)] == same


def test_samples(tmp_path):
    folder = tmp_path / "samples" / "train"
    folder.mkdir(parents=True)
    for day in range(1, 6):
        np.save(folder / f"nwp_202201{day:02d}00_mbr000.npy", np.zeros((day, 2, 2, 1), "f4"))
    (series,) = open_source(
        "meps", StoreOptions(str(tmp_path), split="train", block_bytes=96)
    ).series
    names = [[os.path.basename(path) for path in series.paths(block, 7)] for block in range(3)]
    assert [[name[10:12] for name in block] for block in names] == [
        ["01", "02", "03"],
        ["04"],
        ["05"],
    ]
    np.save(folder / "nwp_2022010400_mbr000.npy", np.zeros((3, 2, 2, 1), "f4"))
    (other,) = open_source(
        "meps", StoreOptions(str(tmp_path), split="train", block_bytes=96)
    ).series
    same = [series.describe(block, 7) == other.describe(block, 7) for block in range(3)]
    assert same == [True, False, True]
