"""Finding the layout of a store."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from neural_prep.data.layouts import find_layouts, open_source, pick_layout
from neural_prep.data.source import StoreOptions
from neural_prep.errors import InputError


@pytest.fixture
def stores(tmp_path):
    """One store of each layout."""
    fields = np.zeros((2, 1, 3), np.float32)
    mllam = xr.Dataset({"state": (("time", "state_feature", "grid_index"), fields)})
    mllam.to_zarr(tmp_path / "mllam", zarr_format=2)
    mllam.rename(state="x", state_feature="y").to_zarr(tmp_path / "cf", zarr_format=3)
    train = tmp_path / "meps" / "samples" / "train"
    train.mkdir(parents=True)
    np.save(train / "nwp_2020010100_mbr000.npy", fields[..., np.newaxis])
    return tmp_path


@pytest.mark.parametrize("layout", ["cf", "meps", "mllam"])
def test_auto_finds_each_layout(stores, layout):
    path = str(stores / layout)
    split = "train" if layout == "meps" else None
    source = open_source("auto", StoreOptions(path, split=split))
    assert (source.layout, source.path) == (layout, path)
    assert source.identity == open_source(layout, StoreOptions(path, split=split)).identity


def test_another_layout_is_one_more_module(stores):
    fourth = types.ModuleType("fourth")
    fourth.recognises = lambda path: path.name == "cf"
    layouts = {**find_layouts(), "fourth": fourth}
    assert pick_layout(stores / "cf", layouts) == "fourth"  # cf is general: it comes last
    assert pick_layout(stores / "mllam", layouts) == "mllam"


def test_modules_of_the_package_are_found():
    layouts = find_layouts()
    assert {"cf", "meps", "mllam"}.issubset(layouts)
    assert all(sys.modules[f"neural_prep.data.{name}"] is layouts[name] for name in layouts)


def test_several_layouts_recognise_a_store(stores):
    sure = types.ModuleType("sure")
    sure.recognises = lambda path: True
    with pytest.raises(InputError, match=r"could be a or b; say which with data\.layout"):
        pick_layout(stores, {"a": sure, "b": sure})


@pytest.mark.parametrize(
    ("make", "found"),
    [
        pytest.param(lambda path: path.write_text("x"), "a file", id="file"),
        pytest.param(lambda path: path.mkdir(), "an empty folder", id="empty"),
        pytest.param(
            lambda path: [(path / name).mkdir(parents=True) for name in "dcba"],
            "a folder with a, b, c and 1 more",
            id="folder",
        ),
        pytest.param(lambda path: zarr.open_group(path, mode="w"), "a folder with", id="no arrays"),
    ],
)
def test_a_path_that_no_layout_recognises(tmp_path, make, found):
    path = tmp_path / "store"
    make(path)
    with pytest.raises(InputError) as error:
        open_source("auto", StoreOptions(str(path)))
    assert str(error.value).startswith(f"data.path: {path} is {found}")
    assert "in none of the layouts cf, meps, mllam" in str(error.value)


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(InputError) as error:
        open_source("auto", StoreOptions(str(tmp_path / "a" / "b.zarr")))
    assert str(error.value) == (
        f"data.path: {tmp_path}/a/b.zarr is not there; the nearest folder that exists is {tmp_path}"
    )


def test_an_unknown_layout_lists_the_nearest_first():
    with pytest.raises(InputError) as error:
        open_source("mlam", StoreOptions("x"))
    assert str(error.value) == "data.layout: 'mlam' is no layout; use mllam, meps, cf or auto"


@pytest.mark.parametrize("layout", ["auto", "cf", "mllam"])
@pytest.mark.parametrize("metadata", ["{", "[]", '{"zarr_format": 9}', "{}"])
def test_broken_metadata(tmp_path, layout, metadata):
    path = Path(tmp_path / "s.zarr")
    (path / "state").mkdir(parents=True)
    (path / "zarr.json").write_text(metadata)
    (path / "state" / "zarr.json").write_text(metadata)
    with pytest.raises(InputError) as error:
        open_source(layout, StoreOptions(str(path)))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
