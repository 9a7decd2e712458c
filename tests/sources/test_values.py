"""Stored types as floats: every value kept, no needless copy, what is no number refused."""

import numpy as np
import pytest

from neural_prep.data.values import check_dtype, float_type, to_float
from neural_prep.errors import InputError

SINGLE = ["bool", "int8", "uint8", "int16", "uint16", "float16", "float32"]
DOUBLE = ["int32", "uint32", "int64", "uint64", "float64"]


def extremes(dtype):
    """The values of a type that a float is most likely to lose."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind == "f":
        info = np.finfo(dtype)
        smallest = info.smallest_subnormal
        return np.array([info.max, info.min, smallest, -0.0, np.nan, np.inf], dtype)
    info = np.iinfo(dtype)
    high, low = min(info.max, 2**53), max(info.min, -(2**53))
    return np.array([low, low + 1, 0, 1, high - 1, high], dtype)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [(name, np.float32) for name in SINGLE] + [(name, np.float64) for name in DOUBLE],
)
def test_every_value_is_kept(name, expected, order):
    stored = extremes(np.dtype(name))
    stored = stored.astype(stored.dtype.newbyteorder(order))
    check_dtype(stored.dtype, "x")
    values = to_float(stored)
    assert values.dtype == float_type(stored.dtype) == expected
    assert values.dtype.isnative
    exact = [float(value) for value in stored.tolist()]  # Python's own numbers
    np.testing.assert_array_equal(values, exact)
    np.testing.assert_array_equal(np.signbit(values), np.signbit(exact))


def test_integers_beyond_2_to_the_53_are_rounded():
    assert to_float(np.array([2**53 + 1])).tolist() == [2.0**53]


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_native_floats_are_used_in_place(name):
    stored = np.arange(6, dtype=name).reshape(2, 3)
    assert np.shares_memory(to_float(stored), stored)


def misaligned(values):
    """The same values, one byte off."""
    memory = np.empty(values.nbytes + 1, np.uint8)
    moved = memory[1:].view(values.dtype).reshape(values.shape)
    moved[...] = values
    return moved


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)), id="fortran"),
        pytest.param(np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2], id="strided"),
        pytest.param(misaligned(np.arange(6, dtype=np.float32).reshape(2, 3)), id="misaligned"),
        pytest.param(np.arange(6, dtype=">f4").reshape(2, 3), id="big-endian"),
        pytest.param(np.arange(6, dtype=np.int16).reshape(3, 2).T, id="integers, transposed"),
    ],
)
def test_other_memory_is_put_in_order(stored):
    values = to_float(stored)
    assert values.flags.c_contiguous
    assert values.flags.aligned
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, stored)


@pytest.mark.parametrize(
    "dtype",
    [
        "c8",
        "c16",
        "U4",
        "S4",
        "M8[s]",
        "m8[h]",
        "O",
        [("t", "f4"), ("u", "f4")],
        "V4",
    ],
    ids=str,
)
def test_what_is_no_number_is_refused(dtype):
    dtype = np.dtype(dtype)
    with pytest.raises(InputError) as caught:
        check_dtype(dtype, "t2m in store.zarr")
    assert str(caught.value) == (
        f"t2m in store.zarr has type {dtype}; expected integers, booleans or floats of at most 64 "
        "bits: store it as one of these"
    )
