"""Chooses who decodes chunks: zarrs where it is installed and knows how, else zarr-python.

zarrs (Rust) reads and decodes local stores 1.2 to 1.5 times as fast. What it does not know it
leaves to zarr-python by itself, except numbers in another byte order than the machine's and arrays
whose first index runs fastest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import zarr

from neural_prep.data.source import Decoder
from neural_prep.errors import InputError

_SETTING = "codec_pipeline.path"
_PATHS = {
    "zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
}


@contextmanager
def decoded_by(decoder: Decoder, array: zarr.Array[Any]) -> Iterator[None]:
    """Has an array of a local store that is opened meanwhile decoded by one or the other.

    Args:
        decoder: Who decodes; `auto`: whoever zarr's own settings name if the user has changed them,
            else the fastest that can.
        array: The array, opened before.

    Raises:
        InputError: if zarrs was asked for and is not installed.
    """
    installed = find_spec("zarrs") is not None
    if decoder == "zarrs" and not installed:
        raise InputError("data.decoder: zarrs is not installed; pip install zarrs")
    if decoder == "auto" and zarr.config.get(_SETTING) != _PATHS["zarr"]:
        yield
        return
    known = np.dtype(array.dtype).isnative and array.order == "C"
    fast = decoder != "zarr" and installed and known
    setting = {_SETTING: _PATHS["zarrs" if fast else "zarr"]}
    with zarr.config.set(setting), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarrs says so where it leaves an array to zarr-python
        yield
