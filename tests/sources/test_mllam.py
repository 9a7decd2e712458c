"""The mllam layout: dimensions by name, features, splits, forecasts and members."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from neural_prep.data.mllam import open_source, recognises
from neural_prep.data.source import StoreOptions, Variable
from neural_prep.errors import InputError

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
SIZES = {"time": 8, "state_feature": 3, "forcing_feature": 1, "static_feature": 2, "grid_index": 5}
SIZES |= {"analysis_time": 4, "elapsed_forecast_duration": 3, "ensemble_member": 2}
TIMES = np.datetime64("1990-09-03", "ns") + np.arange(8) * np.timedelta64(3, "h")
SPLITS = {
    "train": ("1990-09-03T00:00", "1990-09-03T09:00"),
    "test": ("1990-09-03T15:00", "1990-09"),
}


def values(*dims):
    shape = [SIZES[dim] for dim in dims]
    return dims, np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def example(*state, splits=SPLITS, **groups):
    """A data set as mllam-data-prep writes it."""
    state = state or ("time", "grid_index", "state_feature")
    data = xr.Dataset({"state": values(*state)})
    for name, dims in groups.items():
        data[name] = values(*dims)
    coordinates = {
        "time": TIMES,
        "analysis_time": TIMES[: SIZES["analysis_time"]],
        "elapsed_forecast_duration": np.array([0, 3, 6], "m8[h]").astype("m8[ns]"),
        "state_feature": ["u100m", "v100m", "t2m"],
    }
    data = data.assign_coords({k: v for k, v in coordinates.items() if k in data.dims})
    if "state_feature" in data.dims:
        data["state_feature_units"] = ("state_feature", ["m/s", "m/s", ""])
    if splits:
        names, ends = list(splits), np.array(list(splits.values()))
        data["splits"] = (("split_name", "split_part"), ends)
        data = data.assign_coords(split_name=names, split_part=["start", "end"])
    return data


@pytest.fixture
def write(tmp_path):
    def run(data, zarr_format=3, **chunks):
        path = tmp_path / "store.zarr"
        encoding = {}
        if chunks:
            for name in ("state", "forcing", "static"):
                if name in data:
                    sizes = data[name].sizes
                    encoding[name] = {"chunks": [chunks.get(dim, sizes[dim]) for dim in sizes]}
        data.to_zarr(path, zarr_format=zarr_format, mode="w", encoding=encoding)
        return str(path)

    return run


@FORMATS
@pytest.mark.parametrize(
    "dims",
    [
        ("time", "state_feature", "grid_index"),
        ("time", "grid_index", "state_feature"),
        ("grid_index", "time", "state_feature"),
        ("state_feature", "grid_index", "time"),
    ],
)
@pytest.mark.parametrize("block_bytes", [16, 10**6])
def test_dimensions_go_by_name(write, summarise, dims, zarr_format, block_bytes):
    data = example(
        *dims,
        forcing=("time", "grid_index", "forcing_feature"),
        static=("grid_index", "static_feature"),
    )
    path = write(data, zarr_format, time=2, state_feature=2)
    source = open_source(StoreOptions(path, block_bytes=block_bytes))
    assert [(group.name, group.steps, group.trajectories) for group in source.groups] == [
        ("state", 8, 1),
        ("forcing", 8, 1),
        ("static", 1, 1),
    ]
    assert source.groups[0].variables == (
        Variable("u100m", "m/s"),
        Variable("v100m", "m/s"),
        Variable("t2m", None),
    )
    assert [each.name for each in source.groups[2].variables] == ["feature_0", "feature_1"]
    found = summarise(source, lag=2)
    for index, name in enumerate(["u100m", "v100m", "t2m"]):
        field = data["state"].isel(state_feature=index)
        expected = {"count": 40, "missing": 0, "min": field.min(), "max": field.max()}
        assert found["state", name] == expected
    assert found["forcing", "feature_0"]["count"] == 40
    assert found["static", "feature_1"] == {"count": 5, "missing": 0, "min": 1, "max": 9}


@FORMATS
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        pytest.param({}, [0, 1, 2, 3, 4, 5, 6, 7], id="whole"),
        pytest.param({"split": "train"}, [0, 1, 2, 3], id="ends are inclusive"),
        pytest.param({"split": "test"}, [5, 6, 7], id="a partial end"),
        pytest.param({"split": "train", "start": "1990-09-03T06"}, [2, 3], id="start overrides"),
        pytest.param(
            {"split": "train", "end": "1990-09-03T12"}, [0, 1, 2, 3, 4], id="end overrides"
        ),
    ],
)
def test_splits(write, walk, options, steps, zarr_format):
    source = open_source(StoreOptions(write(example(), zarr_format, time=3), **options))
    (series,) = source.series
    found, ages = walk(series, lag=1)
    assert sorted({position for position, _ in found}) == steps
    assert ages == {step: step - steps[0] for step in steps}
    assert source.split == options.get("split")


@FORMATS
@pytest.mark.parametrize("text", ["<U20", "S20", object], ids=["U", "S", "objects"])
def test_splits_as_any_kind_of_text(write, text, zarr_format):
    data = example()
    data["splits"] = data["splits"].astype(text)
    source = open_source(StoreOptions(write(data, zarr_format), split="train"))
    assert source.groups[0].steps == 4


def test_parts_of_splits_go_by_name_too(write):
    data = example().isel(split_part=[1, 0]).transpose("split_part", ...)
    assert open_source(StoreOptions(write(data), split="train")).groups[0].steps == 4


def test_a_gap_ends_the_trajectory(write, walk):
    data = example().isel(time=[0, 1, 2, 4, 5, 7])
    source = open_source(StoreOptions(write(data)))
    assert list(walk(source.series[0], lag=1)[1].values()) == [0, 1, 2, 0, 1, 0]
    assert source.groups[0].trajectories == 3


def test_members_are_trajectories(write):
    data = example("time", "ensemble_member", "grid_index", "state_feature")
    (group,) = open_source(StoreOptions(write(data), split="train")).groups
    assert (group.steps, group.trajectories) == (8, 2)


@FORMATS
def test_forecasts(write, summarise, zarr_format):
    dims = ("analysis_time", "elapsed_forecast_duration", "grid_index", "state_feature")
    path = write(example(*dims), zarr_format, analysis_time=3, elapsed_forecast_duration=2)
    source = open_source(StoreOptions(path, split="train", end="1990-09-03T06"))
    (group,) = source.groups
    assert (group.steps, group.trajectories) == (9, 3)
    found = summarise(source, lag=2)
    assert found["state", "u100m"] == {"count": 45, "missing": 0, "min": 0, "max": 132}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        pytest.param({"drop": (1,)}, ["u100m", "t2m"], id="drop"),
        pytest.param({"variables": ("a", "b", "c")}, ["a", "b", "c"], id="names"),
        pytest.param({"variables": ("a", "b"), "drop": (0,)}, ["a", "b"], id="names of the rest"),
        pytest.param({"variables": ("a", "b", "c"), "drop": (0,)}, ["b", "c"], id="names of all"),
    ],
)
def test_names_and_dropped_features(write, options, names):
    source = open_source(StoreOptions(write(example(), state_feature=1), **options))
    assert [variable.name for variable in source.groups[0].variables] == names
    used = [column for series in source.series for column in series.columns]
    assert used == list(range(len(names)))  # chunks of dropped features are not read


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "val"}, "data.split: 'val' is no split of {path}; it has train, test"),
        ({"variables": ("a", "b")}, "data.variables gives 2 names, but"),
        ({"variables": ("a", "b", "c", "d")}, "data.variables gives 4 names, but"),
        ({"drop": (3,)}, "data.drop: feature 3 is to be dropped"),
        ({"region": "interior"}, "data.region: interior needs the MEPS layout's border mask"),
        (
            {"start": "1991"},
            "{path}: no step lies from 1991 to the last: time runs from 1990-09-03",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_do_not_fit(write, options, message):
    path = write(example())
    with pytest.raises(InputError) as error:
        open_source(StoreOptions(path, **options))
    assert message.format(path=path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(
            example("time", "state_feature"),
            "state lacks dimension grid_index: it has time, state_feature; "
            "expected time, state_feature, grid_index in any order",
            id="no grid_index",
        ),
        pytest.param(
            example("grid_index", "state_feature"), "state lacks dimension time", id="no time"
        ),
        pytest.param(
            example().rename(state_feature="feature").assign_coords(state_feature=["a"]),
            "state lacks dimension state_feature: it has time, grid_index, feature",
            id="no state_feature",
        ),
        pytest.param(
            example("analysis_time", "grid_index", "state_feature"),
            "expected analysis_time, elapsed_forecast_duration, state_feature, grid_index",
            id="no elapsed_forecast_duration",
        ),
        pytest.param(example().isel(time=[]), "state in {path} is empty (time 0, ", id="no step"),
        pytest.param(
            example().isel(grid_index=[]),
            "state in {path} is empty (time 8, grid_index 0",
            id="no grid point",
        ),
    ],
)
def test_stores_that_cannot_be_read(write, data, message):
    path = write(data)
    with pytest.raises(InputError) as error:
        open_source(StoreOptions(path))
    assert message.format(path=path) in str(error.value)


def test_a_split_of_a_store_without_splits(write):
    with pytest.raises(InputError, match=r"data\.split: 'train': .* has no splits; leave"):
        open_source(StoreOptions(write(example(splits=None)), split="train"))


def test_an_array_without_dimension_names(write):
    path = write(example(), 2)
    group = zarr.open_group(path, mode="a", use_consolidated=False)
    del group["state"].attrs["_ARRAY_DIMENSIONS"]
    zarr.consolidate_metadata(path)
    with pytest.raises(InputError, match="it has no dimension names; expected time, state_feature"):
        open_source(StoreOptions(path))


@FORMATS
def test_recognises(write, tmp_path, zarr_format):
    assert recognises(Path(write(example(), zarr_format)))
    assert not recognises(Path(write(example().rename(state="x"), zarr_format)))
    assert not recognises(tmp_path)
