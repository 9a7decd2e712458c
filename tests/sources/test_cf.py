"""The cf layout: which arrays are data, what dimensions mean, and real files in both formats."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from neural_prep.data.cf import open_source, recognises
from neural_prep.data.source import StoreOptions
from neural_prep.errors import InputError

SHARED = Path(__file__).parents[3] / "shared" / "data"
FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
TIMES = np.array("2000-01-01", "M8[ns]") + np.arange(6) * np.timedelta64(6, "h")


@pytest.fixture
def write(tmp_path):
    """Writes a data set as a zarr store, and says where."""

    def run(dataset, zarr_format=3, **how):
        path = tmp_path / "store.zarr"
        dataset.to_zarr(path, zarr_format=zarr_format, mode="w", **how)
        return str(path)

    return run


def field(dims, sizes=None, dtype="f4", **attrs):
    """An array that counts from 0, with sizes by dimension."""
    shape = [(sizes or {"time": 6, "level": 2, "latitude": 3, "longitude": 4})[dim] for dim in dims]
    return dims, np.arange(np.prod(shape), dtype=dtype).reshape(shape), attrs


def groups_of(source):
    return {group.name: [variable.name for variable in group.variables] for group in source.groups}


def dataset(**variables):
    return xr.Dataset(variables, coords={"time": TIMES})


@FORMATS
@pytest.mark.parametrize(
    "dims",
    [
        ("time", "level", "latitude", "longitude"),
        ("level", "latitude", "longitude", "time"),
        ("latitude", "time", "longitude", "level"),
    ],
)
def test_levels_are_variables_whatever_the_order_of_dimensions(write, summarise, dims, zarr_format):
    data = dataset(t=field(dims, units="K"), oro=field(("latitude", "longitude")))
    data["level"] = ("level", [850, 500])
    source = open_source(StoreOptions(write(data, zarr_format)))
    assert groups_of(source) == {"state": ["t_850", "t_500"], "static": ["oro"]}
    assert [variable.unit for variable in source.groups[0].variables] == ["K", "K"]
    found = summarise(source, lag=1)
    for index, name in enumerate(["t_850", "t_500"]):
        values = data["t"].isel(level=index).values
        expected = {"count": 72, "missing": 0, "min": values.min(), "max": values.max()}
        assert found["state", name] == expected
    assert found["static", "oro"] == {"count": 12, "missing": 0, "min": 0, "max": 11}


@pytest.mark.parametrize(
    ("dim", "attrs", "values", "names"),
    [
        pytest.param("level", {}, [1000, 0.5], ["t_1000", "t_0.5"], id="by name"),
        pytest.param("z", {"axis": "Z"}, [10, 2], ["t_10", "t_2"], id="by axis"),
        pytest.param("z", {"positive": "down"}, [10, 2], ["t_10", "t_2"], id="by positive"),
        pytest.param("p", {"units": "millibars"}, [10, 2], ["t_10", "t_2"], id="by unit"),
        pytest.param(
            "p", {"standard_name": "air_pressure"}, [9, 2], ["t_9", "t_2"], id="by standard"
        ),
        pytest.param("soil_layer", {}, [1, 2], ["t_1", "t_2"], id="layer"),
        pytest.param("level", {}, None, ["t_0", "t_1"], id="no values"),
        pytest.param("level", {}, [1.0000001, 1], ["t_0", "t_1"], id="alike to six digits"),
        pytest.param("level", {}, ["top", "low"], ["t_top", "t_low"], id="text"),
        pytest.param("number", {}, [1, 2], ["t"], id="members are no levels"),
        pytest.param("station", {}, [1, 2], ["t"], id="stations are no levels"),
    ],
)
def test_which_dimensions_are_levels(write, dim, attrs, values, names):
    data = dataset(t=field(("time", dim), {"time": 6, dim: 2}))
    if values is not None:
        data[dim] = (dim, values, attrs)
    source = open_source(StoreOptions(write(data)))
    assert groups_of(source) == {"state": names}


def test_members_are_trajectories(write):
    data = dataset(t=field(("number", "time", "x"), {"number": 3, "time": 6, "x": 2}))
    (group,) = open_source(StoreOptions(write(data))).groups
    assert (group.steps, group.trajectories) == (18, 3)


@FORMATS
def test_what_is_no_data_is_left_out(write, zarr_format):
    data = dataset(t=field(("time", "y", "x"), {"time": 6, "y": 2, "x": 2}, grid_mapping="crs"))
    data["crs"] = ((), 0)
    data["count"] = ((), 1.5)
    data["time_bnds"] = (("time", "nv"), np.zeros((6, 2)))
    data["nav_lat"] = (("y", "x"), np.ones((2, 2)), {"units": "degrees_north"})
    data["lon"] = (("y", "x"), np.ones((2, 2)))
    data["valid_time"] = ("time", TIMES)
    data["name"] = (("y",), ["a", "b"])
    data["area"] = (("y", "x"), np.ones((2, 2)))
    data["hyam"] = ("lev", [1.0, 2.0])
    data = data.set_coords("area")
    data["t"].attrs["coordinates"] = "area"
    data = data.reset_coords("area")
    source = open_source(StoreOptions(write(data, zarr_format)))
    assert groups_of(source) == {"state": ["t"]}


@FORMATS
@pytest.mark.parametrize("lead", ["prediction_timedelta", "step"])
def test_forecasts(write, summarise, lead, zarr_format):
    sizes = {"time": 6, lead: 3, "x": 2}
    data = dataset(t=field(("time", lead, "x"), sizes))
    data[lead] = (lead, np.array([0, 6, 12], "m8[h]").astype("m8[ns]"))
    data["t"].encoding["chunks"] = (4, 1, 2)
    options = StoreOptions(write(data, zarr_format), start="2000-01-01T06", end="2000-01-02T00")
    source = open_source(options)
    (group,) = source.groups
    assert (group.steps, group.trajectories) == (12, 4)
    assert summarise(source, lag=2)["state", "t"] == {
        "count": 24,
        "missing": 0,
        "min": 6,
        "max": 29,
    }


@FORMATS
def test_packed_values(write, summarise, zarr_format):
    data = dataset(t=("time", [270.0, 271.5, np.nan, 280.0, 265.0, 260.0]))
    data["t"].encoding |= {"dtype": "i2", "scale_factor": 0.5, "add_offset": 260, "_FillValue": -99}
    source = open_source(StoreOptions(write(data, zarr_format)))
    expected = {"count": 5, "missing": 1, "min": 260.0, "max": 280.0}
    assert summarise(source)["state", "t"] == expected


@FORMATS
@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2", "<f2", "<u4"])
def test_types_and_byte_orders(tmp_path, summarise, dtype, zarr_format):
    group = zarr.open_group(tmp_path / "s.zarr", mode="w", zarr_format=zarr_format)
    names = {"dimension_names": ["x"]} if zarr_format == 3 else {}
    array = group.create_array("t", shape=(3,), chunks=(2,), dtype=dtype, **names)
    array[:] = [1, 2, 300]
    array.attrs.update({"_ARRAY_DIMENSIONS": ["x"]} if zarr_format == 2 else {})
    found = summarise(open_source(StoreOptions(str(tmp_path / "s.zarr"))))
    assert found["static", "t"] == {"count": 3, "missing": 0, "min": 1, "max": 300}


@pytest.mark.parametrize(
    ("zarr_format", "fill", "attrs", "missing"),
    [
        pytest.param(2, 7.0, {}, 2, id="zarr 2: fill_value is missing"),
        pytest.param(2, 0.0, {}, 0, id="zarr 2: but 0 is data"),
        pytest.param(3, 7.0, {}, 0, id="zarr 3: fill_value is data"),
        pytest.param(3, 7.0, {"_FillValue": 7.0}, 2, id="zarr 3: the attribute is missing"),
    ],
)
def test_chunks_that_were_never_written(tmp_path, summarise, zarr_format, fill, attrs, missing):
    group = zarr.open_group(tmp_path / "s.zarr", mode="w", zarr_format=zarr_format)
    names = {"dimension_names": ["x"]} if zarr_format == 3 else {}
    array = group.create_array("t", shape=(4,), chunks=(2,), dtype="f4", fill_value=fill, **names)
    array[:2] = [1, 2]
    array.attrs.update(attrs | ({"_ARRAY_DIMENSIONS": ["x"]} if zarr_format == 2 else {}))
    source = open_source(StoreOptions(str(tmp_path / "s.zarr")))
    found = summarise(source)["static", "t"]
    assert (found["count"], found["missing"]) == (4 - missing, missing)
    warned = ["fill_value 0 of t counts as data, not as missing (zarr 2), also where"]
    lines = [line[: len(warned[0])] for line in source.warnings]
    assert lines == (warned if (zarr_format, fill) == (2, 0.0) else [])


def test_each_array_is_read_in_its_own_chunks(write):
    data = dataset(a=field(("time", "longitude")), b=field(("time", "longitude")))
    data["a"].encoding["chunks"] = (1, 4)
    data["b"].encoding["chunks"] = (6, 4)
    source = open_source(StoreOptions(write(data), block_bytes=32))
    assert [series.block_nbytes.tolist() for series in source.series] == [[32] * 3, [96]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "train"}, "data.split: 'train': the cf layout has no splits"),
        ({"variables": ("a",)}, "data.variables: the cf layout has names of its own"),
        ({"region": "interior"}, "data.region: interior needs the MEPS layout's border mask"),
        ({"start": "2001"}, "no step lies from 2001 to the last: time runs from 2000-01-01T00:00"),
        ({"end": "x"}, "data.end: 'x' is no date"),
        ({"step": "x"}, "data.step: 'x' is neither a duration"),
        ({"drop": (1,)}, "data.drop: feature 1 is to be dropped"),
        ({"drop": (0,)}, "data.drop: all 1 features are dropped"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_do_not_fit(write, options, message):
    path = write(dataset(t=field(("time",))))
    with pytest.raises(InputError) as error:
        open_source(StoreOptions(path, **options))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(
            xr.Dataset({"t": (("time", "x"), np.zeros((2, 0)))}),
            "t in {path} is empty (time 2, x 0)",
            id="empty dimension",
        ),
        pytest.param(
            xr.Dataset({"t": (("x",), np.zeros(2, "c8"))}),
            "t in {path} has type complex64",
            id="complex",
        ),
        pytest.param(
            xr.Dataset({"x": ("x", [1, 2])}), "has no array of data", id="coordinates alone"
        ),
        pytest.param(
            xr.Dataset(
                {"t": (("time", "init"), np.zeros((2, 2)))},
                {"time": TIMES[:2], "init": ("init", TIMES[:2], {"axis": "T"})},
            ).rename(init="other"),
            "t has time, other as dimensions of time",
            id="two times",
        ),
    ],
)
def test_stores_that_cannot_be_read(write, data, message):
    path = write(data)
    with pytest.raises(InputError) as error:
        open_source(StoreOptions(path))
    assert message.format(path=path) in str(error.value)


def test_a_store_whose_time_is_longer_than_its_arrays(write):
    path = write(dataset(t=field(("time",))), consolidated=False)
    zarr.open_array(path + "/time", mode="a").resize((7,))
    with pytest.raises(InputError, match="has 6 steps along time, but the coordinate time has 7"):
        open_source(StoreOptions(path))


@FORMATS
@pytest.mark.parametrize("damage", [b"", b"nonsense"])
def test_a_damaged_chunk_is_named(write, damage, zarr_format):
    path = write(dataset(t=field(("time", "longitude"))), zarr_format)
    chunk = Path(path, "t", "0.0" if zarr_format == 2 else "c/0/0")
    chunk.write_bytes(damage)
    (series,) = open_source(StoreOptions(path)).series
    (span,) = series.spans(0, lag=0, piece_steps=None, continued=False)
    with pytest.raises(InputError) as error:
        series.read(span)
    key = "t/0.0" if zarr_format == 2 else "t/c/0/0"
    place = f"t in {path} at 2000-01-01T00:00 to 2000-01-02T06:00"
    assert str(error.value).startswith(f"{place}: chunk {key} is corrupt (")
    assert "\n" not in str(error.value)


def test_an_array_without_dimension_names_is_left_out(write):
    path = write(dataset(t=field(("time",))), zarr_format=2)
    zarr.open_group(path, mode="a").create_array("raw", shape=(3,), dtype="f4")
    zarr.consolidate_metadata(path)
    source = open_source(StoreOptions(path))
    assert groups_of(source) == {"state": ["t"]}
    assert source.warnings == ("raw has no dimension names and is left out",)


def test_a_time_dimension_without_times(write):
    data = xr.Dataset({"t": field(("time", "latitude"))})
    source = open_source(StoreOptions(write(data)))
    assert source.groups[0].trajectories == 1
    assert source.warnings == ("time has no coordinate; its index is used as the time",)


def test_dropped_variables(write, summarise):
    data = dataset(a=field(("time", "level")), b=field(("time",)))
    source = open_source(StoreOptions(write(data), drop=(0,)))
    assert groups_of(source) == {"state": ["a_1", "b"]}
    assert summarise(source)["state", "a_1"]["min"] == 1


def test_identity_covers_what_is_read(write):
    data = dataset(t=field(("time", "latitude")))
    path = write(data)

    def described(path, **options):
        source = open_source(StoreOptions(path, **options))
        return {**source.identity, "extent": source.extent}

    plain = described(path)
    assert plain == described(path)
    assert json.loads(json.dumps(plain)) == plain
    for options in ({"start": "2000-01-01T06"}, {"step": "any"}, {"end": "2000-01-01"}):
        assert described(path, **options) != plain
    for changed in (
        data.assign_coords(time=TIMES + np.timedelta64(1, "h")),
        data.rename(t="u"),
        data.chunk({"time": 2}),
        data.astype("f8"),
    ):
        assert described(write(changed)) != plain


def test_growth_changes_the_extent_alone(write):
    data = dataset(t=field(("time", "latitude")))
    chunks = {"encoding": {"t": {"chunks": (2, 3)}}}
    short = open_source(StoreOptions(write(data.isel(time=slice(4)), **chunks)))
    whole = open_source(StoreOptions(write(data, **chunks)))
    assert short.identity == whole.identity
    assert short.extent != whole.extent


def test_recognises(write, tmp_path):
    assert recognises(Path(write(dataset(t=field(("time",))))))
    assert not recognises(tmp_path)
    zarr.open_group(tmp_path / "empty.zarr", mode="w")
    assert not recognises(tmp_path / "empty.zarr")


REAL = {
    "test_data_20180101.nc": (25, 1),
    "daily_surface_cancities_1990-1993.nc": (1461, 1),
    "coads_climatology.cdf": (12, 1),
    "GFWED_sample_2017.nc": (365, 1),
    "ctorca.nc": (5, 1),
    "ostia_monthly.nc": (54, 18),
    "era5_levels_members.nc": (40, 10),
    "ahccd_1950-2013.nc": (23360, 1),
    "cffdrs_test_wDC.nc": (2192, 3),
}


@FORMATS
@pytest.mark.parametrize("name", REAL)
def test_real_files(write, summarise, name, zarr_format):
    """Count, missing, minimum and maximum of the raw file, whatever the blocks."""
    if not (SHARED / name).is_file():
        pytest.skip(f"{SHARED / name} is not there")
    pytest.importorskip("netCDF4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what xarray and netCDF4 say about odd files
        with xr.open_dataset(SHARED / name, decode_times=False, mask_and_scale=False) as opened:
            raw = opened.load()
    for variable in raw.variables.values():
        variable.encoding = {}
    source = open_source(StoreOptions(write(raw, zarr_format), block_bytes=200_000))
    assert (source.groups[0].steps, source.groups[0].trajectories) == REAL[name]
    truth = json.loads((SHARED / "truth.json").read_text())[name]
    found = summarise(source, lag=1)
    keys = ("count", "missing", "min", "max")
    for variable, expected in truth.items():
        assert found["state", variable] == {key: expected[key] for key in keys}


def test_two_variables_of_one_name(tmp_path):
    data = xr.Dataset(
        {
            "t": (("time", "level", "x"), np.zeros((2, 2, 3), np.float32)),
            "t_500": (("time", "x"), np.zeros((2, 3), np.float32)),
        },
        coords={"time": np.arange(2).astype("datetime64[D]"), "level": [850, 500]},
    )
    data.to_zarr(tmp_path / "store", zarr_format=2, consolidated=False)
    with pytest.raises(InputError, match=r"two variables are named t_500: one from t in .*, one"):
        open_source(StoreOptions(str(tmp_path / "store")))
