"""The command on stores behind URLs: the same bits as from a folder, on any number of ranks."""

import json

import numpy as np
import pytest
import xarray as xr

from neural_prep.engine.command import run_stats


@pytest.fixture(scope="module")
def server(object_server, tmp_path_factory):
    """A server of a store of 60 chunks, three for each step."""
    root = tmp_path_factory.mktemp("objects")
    values = np.random.default_rng(4).normal(9e4, 50, (20, 3, 40)).astype(np.float32)
    data = xr.Dataset(
        {"state": (("time", "state_feature", "grid_index"), values)},
        coords={
            "time": np.datetime64("2020-01-01", "ns") + np.arange(20) * np.timedelta64(1, "h"),
            "state_feature": ["a", "b", "c"],
        },
    )
    chunks = {"state": {"chunks": (1, 1, 40)}}
    data.to_zarr(root / "bucket/store.zarr", encoding=chunks, consolidated=True)
    with object_server.serve(root) as running:
        yield running


def arguments(path, out, *more):
    args = ["--data.path", path, "--output.dir", out, "--model.lags", "[1,4]", *more]
    return [*map(str, args), "--data.block_bytes", "500"]


@pytest.fixture(scope="module")
def groups(server, tmp_path_factory, read_result):
    """The result from the folder."""
    out = tmp_path_factory.mktemp("out")
    assert run_stats(arguments(server.root / "bucket/store.zarr", out)) == 0
    return read_result(out)["groups"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_same_bits_though_requests_fail(run_job, server, groups, read_result, tmp_path, ranks):
    server.fail(r"state/c/1\d/", "503", times=3)
    server.fail(r"state/c/5/", "drop")
    options = {"endpoint": server.url, "access_key_id": "AKID", "secret_access_key": "secret"}
    args = arguments("s3://bucket/store.zarr", tmp_path)
    done = run_job(*args, "--data.storage_options", json.dumps(options), ranks=ranks)
    assert done.status == 0, done.err
    result = read_result(tmp_path)
    assert (result["source"]["path"], result["groups"]) == ("s3://bucket/store.zarr", groups)
    assert 1 <= done.err.count("warning: state/c/") <= 2 * ranks
    assert "secret" not in done.err + (tmp_path / "statistics.json").read_text()


def test_chunks_are_requested_at_once(server, groups, tmp_path, read_result):
    server.latency = 0.1
    try:
        assert run_stats(arguments(f"{server.url}/bucket/store.zarr", tmp_path)) == 0
    finally:
        server.latency = 0.0
    assert read_result(tmp_path)["groups"] == groups
    run = json.loads((tmp_path / "statistics.json").read_text())["run"]
    assert run["seconds"] < 60 * 0.1 / 4  # one after the other they take 6 s and more


def test_an_url_that_cannot_be_read_is_one_line(server, tmp_path, capsys):
    args = arguments(f"{server.url}/bucket/other.zarr", tmp_path)
    assert run_stats(args) == 2
    assert capsys.readouterr().err == (
        f"neural-prep: {server.url}/bucket/other.zarr cannot be opened as a zarr group (it holds "
        "no zarr.json and no .zgroup); check data.path and data.layout\n"
    )
