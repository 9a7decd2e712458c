"""zarrs and zarr-python decode the same values, and each does what it knows."""

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline

from neural_prep.data.chunked.store import open_store

SETTING = "codec_pipeline.path"
ZARR_PYTHON, ZARRS = "zarr.BatchedCodecPipeline", "zarrs.ZarrsCodecPipeline"


def pipeline_of(stored):
    kind = type(stored.array.async_array.codec_pipeline)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def write(path, dtype, **settings):
    values = np.random.default_rng(0).integers(-99, 99, (7, 6, 5)).astype(dtype)
    group = zarr.open_group(path, mode="w", zarr_format=settings.pop("zarr_format"))
    group.create_array("values", data=values, **settings)
    return values


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"compressors": ZstdCodec(), "zarr_format": 3}, id="zstd"),
        pytest.param({"compressors": BloscCodec(cname="lz4"), "zarr_format": 3}, id="lz4"),
        pytest.param({"compressors": GzipCodec(), "zarr_format": 3}, id="gzip"),
        pytest.param({"compressors": None, "zarr_format": 3}, id="uncompressed"),
        pytest.param({"shards": (4, 6, 6), "zarr_format": 3}, id="sharded"),
        pytest.param({"zarr_format": 2}, id="zarr2"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_same_values(tmp_path, dtype, settings):
    values = write(tmp_path, dtype, **{"chunks": (2, 6, 3), **settings})
    fast = open_store(str(tmp_path)).arrays["values"]
    assert pipeline_of(fast) == ZARRS
    plain = open_store(str(tmp_path), decoder="zarr").arrays["values"]
    assert pipeline_of(plain) == ZARR_PYTHON
    for region in (..., slice(1, 5), (slice(3, 7), slice(None), slice(2, 4))):
        np.testing.assert_array_equal(fast.array[region], values[region])
        np.testing.assert_array_equal(plain.array[region], values[region])


@pytest.mark.parametrize(
    ("dtype", "order"),
    [
        pytest.param(">f4", "C", id="another-byte-order"),
        pytest.param("float32", "F", id="first-index-fastest"),
    ],
)
def test_left_to_zarr_python(tmp_path, dtype, order):
    values = write(tmp_path, dtype, chunks=(2, 6, 3), zarr_format=2, order=order)
    stored = open_store(str(tmp_path)).arrays["values"]
    assert pipeline_of(stored) == ZARR_PYTHON
    np.testing.assert_array_equal(stored.array[...], values)


def test_zarrs_own_settings_go_first(tmp_path):
    write(tmp_path, "float32", chunks=(2, 6, 3), zarr_format=3)
    with zarr.config.set({SETTING: f"{Patient.__module__}.{Patient.__qualname__}"}):
        stored = open_store(str(tmp_path)).arrays["values"]
    assert type(stored.array.async_array.codec_pipeline) is Patient


class Patient(BatchedCodecPipeline):
    """Another pipeline, of a user's own."""


register_pipeline(Patient)
