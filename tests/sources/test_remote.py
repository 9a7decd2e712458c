"""Stores behind URLs, on a server on loopback that fails on request: read as from a folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from neural_prep.data import retry
from neural_prep.data.chunked.remote import open_url
from neural_prep.data.layouts import open_source
from neural_prep.data.source import StoreOptions
from neural_prep.errors import InputError, ReadError

CHUNK = "bucket/v3.zarr/t/c/1/0/0"
TIMES = "2020-01-01T12:00 to 2020-01-01T18:00"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The server's folder, with stores of both formats, with consolidated metadata and without."""
    root = tmp_path_factory.mktemp("objects")
    values = np.random.default_rng(1).normal(280, 5, (6, 3, 4)).astype(np.float32)
    times = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(6, "h")
    data = xr.Dataset({"t": (("time", "latitude", "longitude"), values)}, {"time": times})
    for zarr_format in (2, 3):
        for suffix, consolidated in (("", True), ("-plain", False)):
            data.to_zarr(
                root / f"bucket/v{zarr_format}{suffix}.zarr",
                zarr_format=zarr_format,
                consolidated=consolidated,
                encoding={"t": {"chunks": (2, 3, 4)}},
            )
    state = {"state": (("time", "state_feature", "grid_index"), values.reshape(6, 1, -1))}
    mllam = xr.Dataset(state, {"time": times, "state_feature": ["t"]})
    mllam.to_zarr(root / "bucket/mllam.zarr", consolidated=True)
    return root


@pytest.fixture(scope="module")
def running(object_server, folder):
    with object_server.serve(folder) as server:
        yield server


@pytest.fixture
def server(running):
    """The server, without faults and without a lock."""
    running.faults.clear()
    running.paths.clear()
    running.key = None
    return running


def values_of(path, layout="auto", **options):
    """All steps of a store's first series, read as one piece a chunk."""
    source = open_source(layout, StoreOptions(path, block_bytes=1, **options))
    series = source.series[0]
    pieces = [
        series.read(span).values
        for block in range(len(series.block_nbytes))
        for span in series.spans(block, lag=0, piece_steps=None, continued=True)
    ]
    return source, np.concatenate(pieces)


def s3(server, **more):
    return {"endpoint": server.url, "skip_signature": True, **more}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("name", ["v{}.zarr", "v{}-plain.zarr", "mllam.zarr"])
def test_the_same_as_from_a_folder(server, folder, zarr_format, scheme, name):
    name = name.format(zarr_format)
    url = f"{server.url}/bucket/{name}" if scheme == "http" else f"s3://bucket/{name}"
    options = s3(server) if scheme == "s3" else None
    if scheme == "http" and "plain" in name:
        with pytest.raises(InputError) as error:
            values_of(url)
        assert str(error.value) == (
            f"{url} has no consolidated metadata, and a web server cannot list a store's arrays; "
            "write them with zarr.consolidate_metadata"
        )
        return
    local, expected = values_of(str(folder / "bucket" / name))
    remote, found = values_of(url, storage_options=options)
    assert (local.remote, remote.remote) == (False, True)
    assert (remote.path, remote.layout) == (url, local.layout)
    assert (remote.identity, remote.groups) == (local.identity, local.groups)
    np.testing.assert_array_equal(found, expected)


def test_a_file_url_is_a_folder(folder):
    source, _ = values_of(f"file://{folder}/bucket/v3.zarr")
    assert (source.path, source.remote) == (f"{folder}/bucket/v3.zarr", False)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("503", "status 503 Service Unavailable: .*"),
        ("429", "status 429 Too Many Requests: .*"),
        ("drop", "HTTP error: error sending request: .*"),
        ("short", "HTTP error: request or response body error"),
        ("hang", "HTTP error: error sending request: Timeout"),
    ],
)
def test_what_fails_for_the_moment_is_tried_again(server, monkeypatch, caplog, kind, reason):
    monkeypatch.setattr(retry, "_QUIET", 0.0)
    monkeypatch.setattr(retry, "_notices", retry._Notices())
    url = f"{server.url}/bucket/v3.zarr"
    _, expected = values_of(url)
    options = {"timeout": "500ms"} if kind == "hang" else None
    server.fail("t/c/1", kind)
    server.paths.clear()
    _, found = values_of(url, storage_options=options)
    np.testing.assert_array_equal(found, expected)
    assert server.paths.count(CHUNK) == 2
    (line,) = caplog.messages
    start, end = f"warning: t/c/1/0/0 in {url} failed (", "): attempt 2 of 6 in 0.7 s"
    assert line.startswith(start)
    assert re.fullmatch(reason, line[len(start) : -len(end)]), line


@pytest.mark.parametrize("kind", ["503", "drop"])
def test_a_bounded_number_of_times(server, kind):
    url = f"{server.url}/bucket/v3.zarr"
    server.fail("t/c/1", kind, times=99)
    with pytest.raises(ReadError) as error:
        values_of(url, retries=1)
    assert str(error.value).startswith(f"t in {url} at {TIMES} cannot be read (t/c/1/0/0: ")
    assert str(error.value).endswith(", 2 attempts); start again when it can")
    assert server.paths.count(CHUNK) == 2


@pytest.mark.parametrize("corrupt", ["fail", "missing"])
def test_what_is_not_allowed_is_not_tried_again(server, corrupt):
    url = f"{server.url}/bucket/v3.zarr"
    server.fail("t/c/1", "403", times=99)
    with pytest.raises(InputError) as error:
        values_of(url, corrupt=corrupt)
    reason = "status 403 Forbidden: <Error><Code>Fault</Code></Error>"
    assert str(error.value) == (
        f"t in {url} at {TIMES} cannot be read (t/c/1/0/0: {reason}); start again when it can"
    )
    assert server.paths.count(CHUNK) == 1


def test_a_corrupt_chunk_is_fetched_twice_at_most(server, folder):
    url = f"{server.url}/bucket/v3.zarr"
    file = folder / CHUNK
    whole = file.read_bytes()
    file.write_bytes(whole[:20])
    try:
        with pytest.raises(InputError, match=r"chunk t/c/1/0/0 is corrupt \("):
            values_of(url)
        assert server.paths.count(CHUNK) == 2
        _, found = values_of(url, corrupt="missing")
        assert np.isnan(found[2:4]).all()
        assert np.isfinite(found).sum() == found.size - 24
    finally:
        file.write_bytes(whole)


def test_credentials(server):
    server.key = "AKID"
    keys = {"access_key_id": "AKID", "secret_access_key": "very secret"}
    for name in ("v2", "v3-plain"):
        values_of(f"s3://bucket/{name}.zarr", storage_options={"endpoint": server.url, **keys})
    with pytest.raises(InputError) as error:
        values_of("s3://bucket/v3.zarr", storage_options=s3(server))
    message = str(error.value)
    assert message.startswith("data.path: s3://bucket/v3.zarr may not be read (")
    assert "status 403 Forbidden" in message
    assert message.endswith(
        "; give credentials in the environment or in data.storage_options, and for public data "
        "skip_signature: true"
    )
    with pytest.raises(InputError) as error:
        values_of(
            "s3://bucket/v3.zarr",
            storage_options={"endpoint": server.url, **keys, "access_key_id": "other"},
        )
    assert "secret" not in str(error.value)


def test_what_a_bucket_without_listing_denies_is_absent(server):
    # Such a bucket answers 403, not 404, for what is not there: here other formats' metadata.
    server.fail(r"v2.zarr/zarr.json$", "403", times=99)
    values_of("s3://bucket/v2.zarr", storage_options=s3(server))


def test_secrets_in_a_url_stay_there(server):
    url = server.url.replace("http://", "http://me:secret@")
    source, _ = values_of(f"{url}/bucket/v3.zarr?sig=secret")
    assert source.path == f"{server.url}/bucket/v3.zarr"
    assert "secret" not in str(source.identity)
    server.fail("t/c/1", "403", times=9)
    with pytest.raises(InputError) as error:
        values_of(f"{url}/bucket/v3.zarr?sig=secret")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "options", "said"),
    [
        (
            "ftp://x/y",
            {},
            "data.path: ftp://x/y: ftp:// cannot be read; expected a folder or s3://",
        ),
        (
            "SERVER/nix",
            {},
            "SERVER/nix cannot be opened as a zarr group (it holds no zarr.json and",
        ),
        ("http://127.0.0.1:1/x", {}, "request: Connection refused); check the address and the"),
        ("s3://bucket/x", {"anon": True}, "anon is no option of s3://; use skip_signature: true"),
        ("s3://bucket/x", {"key": "k"}, "key is no option of s3://; use access_key_id"),
        (
            "SERVER/x",
            {"anon": True},
            "data.storage_options: anon is no option of http://; use only",
        ),
        ("SERVER/x", {"time_out": "1s"}, "time_out is no option of http://; use timeout"),
        ("/tmp", {"timeout": "1s"}, "data.storage_options: a folder needs none; leave them out"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 21 else "",
)
def test_urls_and_options_that_cannot_be_used(server, path, options, said):
    path, said = (text.replace("SERVER", server.url) for text in (path, said))
    with pytest.raises(InputError) as error:
        values_of(path, storage_options=options, retries=0)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_server_that_forbids_all(server):
    server.fail("v3.zarr", "403", times=99)
    with pytest.raises(InputError, match=r"^data.path: \S+ may not be read \(\S+: status 403 Forb"):
        values_of(f"{server.url}/bucket/v3.zarr")


def test_samples_are_read_from_folders(server):
    with pytest.raises(InputError) as error:
        values_of(f"{server.url}/bucket", layout="meps", split="train")
    assert str(error.value) == (
        f"data.layout: meps is read from a folder, not from {server.url}/bucket; URLs are for cf "
        "and mllam"
    )


def test_without_obstore(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InputError) as error:
        open_url("s3://bucket/store.zarr?sig=secret", None)
    assert str(error.value) == (
        "data.path: s3://bucket/store.zarr needs the package obstore, which is not installed; "
        "pip install 'neural-prep[remote]'"
    )


def test_folders_need_no_obstore(folder):
    """A store in a folder is opened where obstore is not installed."""
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from neural_prep.data.layouts import open_source\n"
        "from neural_prep.data.source import StoreOptions\n"
        f"open_source('auto', StoreOptions({str(folder / 'bucket/v3.zarr')!r}))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=root, env=os.environ, check=False
    )
    assert done.returncode == 0
