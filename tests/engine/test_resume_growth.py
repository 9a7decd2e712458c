"""A store that has grown or changed since: what still holds is kept, and the bits are the same."""

import os
import shutil
from functools import partial

import numpy as np
import pytest
import xarray as xr
import zarr

GRID = 20
VALUES = np.random.default_rng(3).normal(280.0, 5.0, (96, 3, GRID)).astype(np.float32)  # (T, V, N)
TIMES = np.datetime64("2020-01-01", "ns") + np.arange(96) * np.timedelta64(6, "h")
STEP_BYTES = VALUES[0].nbytes


def samples(root, sizes):
    """MEPS samples, one a day, and the flux of each; those that are there stay."""
    folder = root / "samples" / "train"
    folder.mkdir(parents=True, exist_ok=True)
    for day in range(sizes):
        name = f"202201{day + 1:02d}00"
        if not (folder / f"nwp_{name}_mbr000.npy").exists():
            values = VALUES[day : day + 9].transpose(0, 2, 1).reshape(9, 4, 5, 3)  # (T, y, x, V)
            np.save(folder / f"nwp_{name}_mbr000.npy", values)
            np.save(folder / f"nwp_toa_downwelling_shortwave_flux_{name}.npy", values[..., 0])


def line(zarr_format):
    """A time line in chunks of 4 steps."""

    def write(root, steps):
        new = slice(length_of(root), steps)
        state = ("time", "state_feature", "grid_index"), VALUES[new]
        features = ["t", "u", "v"]
        append(root, {"state": state}, new, (4, 3, GRID), zarr_format, state_feature=features)

    return write


def forecasts(root, runs):
    """Forecasts of 6 steps each, two in a chunk, of two arrays."""
    new = slice(length_of(root), runs)
    fields = VALUES.reshape(16, 6, 3, GRID)[new]  # (run, lead, V, N)
    dims = ("time", "prediction_timedelta", "longitude")
    arrays = {"t": (dims, fields[:, :, 0]), "u": (dims, fields[:, :, 1])}
    leads = (np.arange(6) * np.timedelta64(6, "h")).astype("m8[ns]")
    append(root, arrays, new, (2, 6, GRID), 2, prediction_timedelta=leads)


def length_of(root):
    return zarr.open_group(root)["time"].shape[0] if root.exists() else 0


def append(root, arrays, new, chunks, zarr_format, **coords):
    data = xr.Dataset(arrays, coords={"time": TIMES[new], **coords})
    if new.start:
        data.to_zarr(root, append_dim="time", consolidated=False)
        return
    encoding = {name: {"chunks": chunks} for name in arrays}
    encoding["time"] = {"units": "hours since 2020-01-01", "dtype": "int64"}
    data.to_zarr(root, zarr_format=zarr_format, encoding=encoding, consolidated=False)


STORES = {  # its writer, and the options that cut it into small blocks
    "meps": (samples, ("--data.split", "train", "--data.block_bytes", "1")),
    "meps in pairs": (samples, ("--data.split", "train", "--data.block_bytes", 2 * 9 * STEP_BYTES)),
    "zarr 2": (line(2), ("--data.block_bytes", 8 * STEP_BYTES)),
    "zarr 3": (line(3), ("--data.block_bytes", 8 * STEP_BYTES)),
    "forecasts": (forecasts, ("--data.block_bytes", 2 * 6 * GRID * 4)),
    "forecasts in parts": (forecasts, ("--data.block_bytes", 6 * GRID * 4)),
}


@pytest.mark.parametrize(
    ("store", "sizes", "ranks", "then", "last"),
    [
        ("meps", (6, 9, 10), (1, 2, 1), (12, 18, 0), (18, 20, 0)),
        ("meps in pairs", (5, 8, 9), (2, 1, 2), (2, 6, 2), (5, 7, 1)),
        ("zarr 2", (32, 48, 53), (1, 2, 1), (4, 6, 0), (6, 7, 0)),
        ("zarr 2", (28, 47, 56), (2, 1, 2), (3, 6, 1), (5, 7, 1)),
        ("zarr 3", (30, 45, 60), (1, 2, 1), (3, 6, 1), (5, 8, 1)),
        ("forecasts", (6, 10, 12), (2, 1, 2), (6, 10, 0), (10, 12, 0)),
        ("forecasts", (5, 10, 11), (1, 2, 1), (4, 10, 2), (10, 12, 0)),
        ("forecasts in parts", (5, 9, 10), (2, 1, 2), (4, 10, 2), (8, 10, 2)),
    ],
)
def test_a_store_that_grows(
    forks, kills, said_of, read_result, tmp_path, store, sizes, ranks, then, last
):
    write, options = STORES[store]
    args = ("--data.path", tmp_path / "store", *options, "--model.lags", "[1,3]")
    out = ("--output.dir", tmp_path / "out")
    for number, expected in enumerate((None, then, last)):
        write(tmp_path / "store", sizes[number])
        keep = ("--output.keep_blocks", "false" if number == 2 else "true")
        ended = forks.run(*args, *out, *keep, ranks=ranks[number])
        assert ended.status == 0, ended.err
        assert said_of(ended) == expected
        assert len(list(tmp_path.glob("out/journal/*.blocks"))) == (number < 2)
        records = kills.records_in(tmp_path / "out")
        assert sum(records.values()) == len(records)
        assert not expected or len(records) == (expected[1] if number < 2 else 0)
    assert forks.run(*args, "--output.dir", tmp_path / "afresh").status == 0
    assert read_result(tmp_path / "out") == read_result(tmp_path / "afresh")
    assert not (tmp_path / "out" / "journal").exists()


@pytest.fixture
def kept(forks, tmp_path):
    """Runs on a store, keeping blocks, and returns how to run again, with more options."""

    def run(store, size):
        write, options = STORES[store]
        write(tmp_path / "store", size)
        args = ("--data.path", tmp_path / "store", *options, "--model.lags", "[1,3]")
        again = partial(forks.run, *args)
        ended = again("--output.dir", tmp_path / "out", "--output.keep_blocks", "true", ranks=2)
        assert ended.status == 0, ended.err
        return again

    return run


def touch(name):
    def change(root):
        (path,) = root.glob(name)
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))

    return change


def remove(*names):
    def change(root):
        for name in names:
            (path,) = root.glob(name)
            path.unlink()

    return change


def assign(name, where, value):
    def change(root):
        zarr.open_group(root)[name][where] = value

    return change


def shorten(root):
    path = root / "samples/train/nwp_2022010300_mbr000.npy"
    np.save(path, np.load(path)[:-1])


@pytest.mark.parametrize(
    ("store", "size", "change", "said"),
    [
        pytest.param("zarr 2", 60, touch("state/2.0.0"), (7, 8, 1), id="time of a chunk"),
        pytest.param("zarr 3", 60, touch("state/c/3/0/0"), (6, 8, 2), id="a chunk of two blocks"),
        pytest.param("zarr 2", 60, assign("state", slice(8, 12), 1e9), (7, 8, 1), id="values"),
        pytest.param("zarr 3", 60, remove("state/c/0/0/0"), (7, 8, 1), id="a chunk that is gone"),
        pytest.param("zarr 2", 60, assign("time", slice(44, 60), 900), (5, 8, 3), id="times"),
        pytest.param("forecasts", 8, touch("u/1.0.0"), (7, 8, 1), id="one array's chunk"),
        pytest.param("forecasts", 8, assign("time", 4, 1), (6, 8, 2), id="time of a forecast"),
        pytest.param("meps", 6, touch("samples/train/*0300_mbr000.npy"), (11, 12, 1), id="time"),
        pytest.param("meps", 6, shorten, (11, 12, 1), id="steps of a sample"),
        pytest.param(
            "meps",
            6,
            remove("samples/train/*0500_mbr000.npy"),
            (10, 11, 1),
            id="a file that is gone",
        ),
    ],
)
def test_what_has_changed_is_read_again(
    kept, said_of, read_result, tmp_path, store, size, change, said
):
    again = kept(store, size)
    change(tmp_path / "store")
    ended = again("--output.dir", tmp_path / "out", ranks=2)
    assert (ended.status, said_of(ended)) == (0, said), ended.err
    assert again("--output.dir", tmp_path / "afresh").status == 0
    assert read_result(tmp_path / "out") == read_result(tmp_path / "afresh")


def test_a_changed_store_has_no_finished_block(kept, said_of, tmp_path):
    again = kept("zarr 2", 16)
    for chunk in (tmp_path / "store" / "state").glob("[0-9]*"):
        touch(chunk.name)(chunk.parent)
    out = ("--output.dir", tmp_path / "out")
    ended = again(*out, "--output.resume", "require", ranks=2)
    assert ended.statuses == (2, 2)
    assert ended.err.count("neural-prep: ") == 1
    assert (
        f"neural-prep: output.resume: require, but the store has changed since {tmp_path}/out/"
        "journal was written: none of its blocks holds; leave it out to begin anew"
    ) in ended.err.splitlines()
    ended = again(*out)
    assert (ended.status, said_of(ended)) == (0, (0, 2, 2))


def rewrite(**changes):
    """Writes the time line again with another grid, type, chunks or names."""

    def change(root):
        grid, dtype, chunk = (changes.get(key) for key in ("grid", "dtype", "chunk"))
        shutil.rmtree(root)
        state = ("time", "state_feature", "grid_index"), VALUES[:16, :, :grid].astype(dtype or "f4")
        names = changes.get("names", ["t", "u", "v"])
        chunks = (chunk or 4, 3, grid or GRID)
        append(root, {"state": state}, slice(0, 16), chunks, 2, state_feature=names)

    return change


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (None, ("--model.lags", "[1,2]"), "model.lags was [1, 3], now [1, 2]"),
        (None, ("--data.block_bytes", "960"), "data.block_bytes was 1920, now 960"),
        (None, ("--data.infinite", "missing"), "data.infinite was fail, now missing"),
        (None, ("--data.end", "2020-01-03"), "data.end was not set, now 2020-01-03"),
        (None, ("--data.drop", "[1]"), "data.drop was not set, now [1], and store."),
        (None, ("--data.layout", "cf"), "layout was mllam, now cf, and "),
        (rewrite(chunk=8), (), "store.arrays.state.chunks was [4, 3, 20], now [8, 3, 20]"),
        (rewrite(dtype="f8"), (), "store.arrays.state.dtype was <f4, now <f8"),
        (rewrite(grid=19), (), "store.arrays.state.shape was [null, 3, 20], now [null, 3, 19]"),
        (
            rewrite(names=["t", "u", "w"]),
            (),
            'store.names.state was ["t", "u", "v"], now ["t", "u"',
        ),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_another_run_is_refused(kept, said_of, tmp_path, change, options, said):
    again = kept("zarr 2", 16)
    before = (tmp_path / "out" / "statistics.json").read_bytes()
    if change is not None:
        change(tmp_path / "store")
    ended = again("--output.dir", tmp_path / "out", *options)
    (line,) = ended.err.splitlines()
    assert ended.status == 2
    assert line.startswith(
        f"neural-prep: {tmp_path}/out/journal holds blocks of another run: {said}"
    )
    assert line.endswith(
        "; choose another output.dir, remove that folder, or drop it with --output.resume never"
    )
    assert (tmp_path / "out" / "statistics.json").read_bytes() == before
    ended = again("--output.dir", tmp_path / "out", *options, "--output.resume", "never")
    assert (ended.status, said_of(ended)) == (0, None)
