"""How stored numbers become floats: which of them mark missing values, and how they are packed.

Missing values are compared in the stored type, before unpacking: 1e20 in float32 is no 1e20.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_prep.data.values import check_dtype, float_type

_STRIP = 256


@dataclass(frozen=True, slots=True)
class Coding:
    """How an array's stored numbers are read.

    Attributes:
        stored: Their type, of native or of foreign byte order.
        floating: The float type that holds them.
        missing: Stored values that are missing, besides NaN.
        scale: Physical value = stored value * scale + offset.
        offset: See `scale`.
        zero_fill: Whether zarr 2 fills absent chunks with a 0 that counts as data.
    """

    stored: np.dtype[Any]
    floating: np.dtype[Any]
    missing: tuple[Any, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    zero_fill: bool = False

    def to_floats(self, values: NDArray[Any]) -> NDArray[np.floating]:
        """Stored values as floats with NaN for missing ones, each entry of axis 0 C-contiguous.

        Only what needs it is copied; `values` may be changed and must not be used again.
        """
        if values.dtype.kind != self.stored.kind:  # declared by `_Unsigned`; the bytes stay
            values = values.view(f"{values.dtype.byteorder}{self.stored.kind}{values.itemsize}")
        floats = _convert(values, self.floating)
        if not self.missing:
            return floats
        mask = values == self.missing[0]
        for marker in self.missing[1:]:
            mask |= values == marker
        if not floats.flags.writeable:
            floats = floats.copy()
        np.copyto(floats, np.nan, where=mask)
        return floats


def read_coding(
    name: str, dtype: np.dtype[Any], attrs: Mapping[str, Any], fill: Any, zarr_format: int
) -> Coding:
    """The coding of one zarr array.

    Args:
        name: The array, for messages.
        dtype: Its stored type.
        attrs: Its attributes.
        fill: Its `fill_value`. In zarr 2 xarray keeps `_FillValue` there, so that one other than 0
            marks missing values.
        zarr_format: 2 or 3.

    Raises:
        InputError: if the values are no real numbers.
    """
    check_dtype(dtype, name)
    stored = _signedness(dtype, attrs.get("_Unsigned"))
    markers = [*_numbers(attrs.get("_FillValue")), *_numbers(attrs.get("missing_value"))]
    fill_marks = zarr_format == 2 and fill is not None and fill != 0
    if fill_marks:
        markers.append(np.asarray(fill).item())
    found = (_in_stored_type(marker, stored, dtype) for marker in markers)
    return Coding(
        stored,
        float_type(dtype),
        tuple(dict.fromkeys(marker for marker in found if marker is not None)),
        next(_numbers(attrs.get("scale_factor")), 1.0),
        next(_numbers(attrs.get("add_offset")), 0.0),
        zarr_format == 2 and fill is not None and not fill_marks and 0 not in markers,
    )


def _convert(values: NDArray[Any], floating: np.dtype[Any]) -> NDArray[np.floating]:
    """The values as floats, each entry of axis 0 C-contiguous; not copied where they are so."""
    if values.dtype == floating and values[0].flags.c_contiguous:
        return values
    longest = 1 + int(np.argmax(values.shape[1:])) if values.ndim > 1 else 0
    if abs(values.strides[0]) >= abs(values.strides[longest]):
        return values.astype(floating, order="C")
    # Axis 0 is stored last: in strips that stay in the cache, this copy is five times faster.
    floats = np.empty(values.shape, floating)
    for first in range(0, values.shape[longest], _STRIP):
        strip = (slice(None),) * longest + (slice(first, first + _STRIP),)
        floats[strip] = values[strip]
    return floats


def _signedness(dtype: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    """The type of integers whose format has none of this signedness and says so in `_Unsigned`."""
    wanted = {"true": "u", "false": "i"}.get(str(unsigned).lower())
    if dtype.kind not in "iu" or wanted is None:
        return dtype
    return np.dtype(f"{dtype.byteorder}{wanted}{dtype.itemsize}")


def _numbers(attribute: Any) -> Iterator[int | float]:
    """The numbers of an attribute, be they text, or the base64 that xarray writes to zarr 3."""
    for value in np.ravel(np.asarray(attribute, dtype=object)):
        if isinstance(value, (int, float, np.number)):
            yield value.item() if isinstance(value, np.number) else value
        elif isinstance(value, str) and (number := _number_in_text(value)) is not None:
            yield number


def _number_in_text(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(struct.unpack("<d", base64.b64decode(text, validate=True))[0])
    except (binascii.Error, struct.error, ValueError):
        return None


def _in_stored_type(marker: float, stored: np.dtype[Any], declared: np.dtype[Any]) -> Any:
    """The marker as a stored value; None if no stored value can equal it, or it is NaN anyway."""
    if stored.kind == "f":
        with np.errstate(over="ignore"):
            value = np.asarray(marker).astype(stored)[()]
        fits = np.isfinite(value) == np.isfinite(marker) and not np.isnan(value)
        return value if fits else None
    if marker != marker or marker != np.trunc(marker) or np.isinf(marker):
        return None
    number = int(marker)
    if declared.kind in "iu" and stored != declared:  # an int8 -1 is the uint8 255
        number = _reinterpret(number, stored)
    limits = (0, 1) if stored.kind == "b" else (np.iinfo(stored).min, np.iinfo(stored).max)
    if not limits[0] <= number <= limits[1]:
        return None
    return np.asarray(number).astype(stored)[()]


def _reinterpret(number: int, stored: np.dtype[Any]) -> int:
    bits = 8 * stored.itemsize
    if not -(2 ** (bits - 1)) <= number < 2**bits:
        return number
    number %= 2**bits
    return number - 2**bits if stored.kind == "i" and number >= 2 ** (bits - 1) else number
