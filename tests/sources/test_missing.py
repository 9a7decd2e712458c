"""Fill values and packing, as xarray and others write them to zarr 2 and zarr 3."""

import base64
import struct

import numpy as np
import pytest

from neural_prep.data.chunked.missing import read_coding
from neural_prep.errors import InputError

NAN = float("nan")


def base64_text(number):
    return base64.standard_b64encode(struct.pack("<d", number)).decode()


@pytest.mark.parametrize(
    ("dtype", "attrs", "fill", "zarr_format", "stored", "expected"),
    [
        pytest.param("f4", {}, None, 2, [0, 1, NAN], [0, 1, NAN], id="NaN is missing"),
        pytest.param("f4", {}, NAN, 2, [0, NAN], [0, NAN], id="fill NaN"),
        pytest.param("f4", {}, 1e20, 2, [1e20, 2], [NAN, 2], id="zarr 2 fill_value"),
        pytest.param("f4", {}, 1e20, 3, [1e20, 2], [1e20, 2], id="zarr 3 fill_value"),
        pytest.param("f4", {}, 0.0, 2, [0, 2], [0, 2], id="zarr 2 fill_value 0"),
        pytest.param("i2", {}, -9, 2, [-9, 0], [NAN, 0], id="zarr 2 integer fill_value"),
        pytest.param(
            "f4",
            {"_FillValue": base64_text(np.float32(1e20))},
            0,
            3,
            [1e20, 0],
            [NAN, 0],
            id="zarr 3 base64",
        ),
        pytest.param("f8", {"_FillValue": 1e20}, 0, 3, [1e20, 0], [NAN, 0], id="zarr 3 number"),
        pytest.param("f8", {"_FillValue": "NaN"}, 0, 3, [1, 0], [1, 0], id="zarr 3 text NaN"),
        pytest.param("i2", {"_FillValue": -1}, 0, 3, [-1, 0], [NAN, 0], id="zarr 3 integer"),
        pytest.param(
            "f4", {"missing_value": [1, 2.0]}, None, 2, [1, 2, 3], [NAN, NAN, 3], id="two"
        ),
        pytest.param("f4", {"missing_value": "-9.5"}, None, 2, [-9.5, 1], [NAN, 1], id="text"),
        pytest.param("f4", {"missing_value": 0}, 0, 2, [0, 1], [NAN, 1], id="0 by attribute"),
        pytest.param(
            "f4", {"missing_value": 0.1}, None, 2, [0.1, 1], [NAN, 1], id="0.1 as float32"
        ),
        pytest.param("f4", {"missing_value": 1e300}, None, 2, [np.inf], [np.inf], id="too large"),
        pytest.param(
            "u1", {"missing_value": [-1, 256, 1.5]}, None, 2, [255, 1], [255, 1], id="no u1"
        ),
        pytest.param("i1", {"_Unsigned": "true"}, -1, 2, [-1, -2], [NAN, 254], id="unsigned"),
        pytest.param("u1", {"_Unsigned": "false"}, 255, 2, [255, 254], [NAN, -2], id="signed"),
        pytest.param("b1", {}, False, 2, [True, False], [1, 0], id="bool"),
        pytest.param(
            "f4", {"valid_min": 1e20, "valid_max": -1e20}, None, 2, [5], [5], id="valid_min"
        ),
        pytest.param("f4", {"_FillValue": "nonsense"}, None, 2, [5], [5], id="nonsense"),
        pytest.param("i8", {}, -(2**63), 2, [-(2**63), 5], [NAN, 5], id="smallest int64"),
    ],
)
@pytest.mark.parametrize("order", ["<", ">"])
def test_missing_values(dtype, attrs, fill, zarr_format, stored, expected, order):
    dtype = np.dtype(dtype).newbyteorder(order)
    coding = read_coding("x", dtype, attrs, fill, zarr_format)
    values = coding.to_floats(np.array(stored).astype(dtype))
    np.testing.assert_array_equal(values, np.array(expected, values.dtype))
    assert values.dtype.isnative


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(dtype, "f4") for dtype in ("b1", "i1", "u1", "i2", "u2", "f2", "f4")]
    + [(dtype, "f8") for dtype in ("i4", "u4", "i8", "u8", "f8")],
)
def test_every_stored_value_is_held_exactly(dtype, expected):
    coding = read_coding("x", np.dtype(dtype), {}, None, 3)
    assert coding.to_floats(np.ones(2, dtype)).dtype == expected


@pytest.mark.parametrize("dtype", ["c8", "U3", "M8[s]", "g"])
def test_what_is_no_number_is_refused(dtype):
    with pytest.raises(InputError, match=r"^t2m in /s\.zarr "):
        read_coding("t2m in /s.zarr", np.dtype(dtype), {}, None, 3)


@pytest.mark.parametrize(
    ("attrs", "scale", "offset"),
    [
        pytest.param({}, 1.0, 0.0, id="not packed"),
        pytest.param({"scale_factor": 0.1, "add_offset": 3}, 0.1, 3.0, id="packed"),
        pytest.param({"scale_factor": [2.0]}, 2.0, 0.0, id="list"),
    ],
)
def test_packing(attrs, scale, offset):
    coding = read_coding("x", np.dtype("i2"), attrs, None, 3)
    assert (coding.scale, coding.offset) == (scale, offset)


@pytest.mark.parametrize(
    ("attrs", "fill", "zarr_format", "expected"),
    [
        pytest.param({}, 0, 2, True, id="zarr 2"),
        pytest.param({}, 0, 3, False, id="zarr 3"),
        pytest.param({}, None, 2, False, id="null"),
        pytest.param({"missing_value": 0.0}, 0, 2, False, id="0 is missing"),
    ],
)
def test_a_zero_fill_is_known(attrs, fill, zarr_format, expected):
    assert read_coding("x", np.dtype("f4"), attrs, fill, zarr_format).zero_fill == expected


@pytest.mark.parametrize("missing", [{}, {"_FillValue": 3}])
def test_steps_are_contiguous_whatever_the_order(missing):
    coding = read_coding("x", np.dtype("f4"), missing, None, 3)
    values = np.arange(24, dtype="f4").reshape(2, 3, 4).transpose(2, 1, 0)
    expected = np.where(values == 3, np.nan, values) if missing else values.copy()
    floats = coding.to_floats(values)
    np.testing.assert_array_equal(floats, expected)
    assert floats[0].flags.c_contiguous


def test_read_only_values_are_copied():
    values = np.arange(3, dtype="f4")
    values.flags.writeable = False
    coding = read_coding("x", values.dtype, {"_FillValue": 1}, None, 3)
    np.testing.assert_array_equal(coding.to_floats(values), [0, np.nan, 2])
