"""Stored types to the two that the arithmetic knows, float32 and float64, without losing a bit.

int64 and uint64 beyond 2^53 are the exception: they are rounded to float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from neural_prep.errors import InputError

_SINGLE = ("b1", "i1", "u1", "i2", "u2", "f2", "f4")  # every value is a float32
_DOUBLE = ("i4", "u4", "i8", "u8", "f8")


def check_dtype(dtype: np.dtype[np.generic], name: str) -> None:
    """Refuses what holds no real numbers.

    Raises:
        InputError: naming the array and its type.
    """
    if dtype.str[1:] not in _SINGLE + _DOUBLE:
        raise InputError(
            f"{name} has type {dtype}; expected integers, booleans or floats of at most 64 bits: "
            "store it as one of these"
        )


def float_type(dtype: np.dtype[np.generic]) -> np.dtype[np.floating]:
    """float32 where that holds every value of `dtype`, else float64.

    >>> float_type(np.dtype(">i2")), float_type(np.dtype("i4"))
    (dtype('float32'), dtype('float64'))
    """
    return np.dtype(np.float32 if dtype.str[1:] in _SINGLE else np.float64)


def to_float(stored: NDArray[np.generic]) -> NDArray[np.floating]:
    """The values as native float32 or float64 in C order, in the same memory where possible.

    Memory that is not aligned to the type, which a file's odd header can cause, is copied too: the
    compiled arithmetic knows aligned arrays only.
    """
    return np.require(stored, float_type(stored.dtype), ["C", "A"])
