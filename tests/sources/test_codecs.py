"""Codecs that are not installed: named with their remedy when the store is opened."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from neural_prep.data.layouts import open_source
from neural_prep.data.source import StoreOptions
from neural_prep.errors import InputError

ZFP = {"mode": 4, "tolerance": 0.1}


@pytest.fixture
def store(tmp_path):
    """Writes a store, then puts a codec into its metadata."""

    def write(zarr_format, name, settings):
        path = tmp_path / "store.zarr"
        group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        dims = ["time", "x"]
        named = {"dimension_names": dims}
        if zarr_format == 2:
            named = {"attributes": {"_ARRAY_DIMENSIONS": dims}}
        group.create_array("t", data=np.zeros((4, 3), np.float32), **named)
        file = Path(path, "t", ".zarray" if zarr_format == 2 else "zarr.json")
        metadata = json.loads(file.read_text())
        if zarr_format == 2:
            metadata["compressor"] = {"id": name, **settings}
        else:
            metadata["codecs"] = [{"name": name, "configuration": settings}]
            if not name.startswith("numcodecs."):
                metadata["codecs"].insert(
                    0, {"name": "bytes", "configuration": {"endian": "little"}}
                )
        file.write_text(json.dumps(metadata))
        return str(path)

    return write


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 spec")
@pytest.mark.parametrize("corrupt", ["fail", "missing"])
@pytest.mark.parametrize(
    ("zarr_format", "name", "settings", "said"),
    [
        (2, "zfpy", ZFP, "codec zfpy is not installed; pip install zfpy"),
        (3, "numcodecs.zfpy", ZFP, "codec zfpy is not installed; pip install zfpy"),
        (2, "pcodec", {}, "codec pcodec is not installed; pip install pcodec"),
        (2, "own", {}, "codec own is not installed; install the package that provides it"),
        (3, "own", {}, "codec own is not installed; install the package that provides it"),
    ],
)
def test_codecs_that_are_not_installed(store, zarr_format, name, settings, said, corrupt):
    path = store(zarr_format, name, settings)
    with pytest.raises(InputError) as error:
        open_source("cf", StoreOptions(path, corrupt=corrupt))
    assert str(error.value).endswith(f"{path}: {said}")
