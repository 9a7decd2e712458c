"""A file system in trouble: what fails for the moment is read again, and the result is the same."""

import errno
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from neural_prep.engine.command import run_stats

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """The environment in which reading some files fails."""
    library = tmp_path_factory.mktemp("faulty") / "faulty.so"
    source = Path(__file__).with_name("faulty.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)

    def environment(path, times, error=errno.EIO, call="read"):
        settings = {"PATH": path, "TIMES": times, "ERRNO": int(error), "CALL": call}
        named = {f"FAULT_{name}": str(value) for name, value in settings.items()}
        return {"LD_PRELOAD": str(library), **named}

    return environment


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The same fields as a zarr store and as samples."""
    folder = tmp_path_factory.mktemp("stores")
    values = np.random.default_rng(5).normal(1e5, 9.0, (12, 4, 5, 2)).astype(np.float32)
    times = np.datetime64("2020-01-01", "ns") + np.arange(12) * np.timedelta64(6, "h")
    names = ("time", "latitude", "longitude")
    data = xr.Dataset({n: (names, values[..., v]) for v, n in enumerate("tz")}, {"time": times})
    chunks = {name: {"chunks": (3, 4, 5)} for name in "tz"}
    data.to_zarr(folder / "store.zarr", encoding=chunks, consolidated=False)
    samples = folder / "meps/samples/train"
    samples.mkdir(parents=True)
    for member in range(3):
        np.save(samples / f"nwp_2020010100_mbr00{member}.npy", values + member)
    return {"zarr": folder / "store.zarr", "meps": folder / "meps"}


def arguments(stores, kind, out, *more):
    split = ["--data.split", "train"] if kind == "meps" else []
    args = ["--data.path", stores[kind], "--output.dir", out, "--data.block_bytes", "1"]
    return [*map(str, args), *split, *more]


@pytest.fixture(scope="module")
def undisturbed(stores, tmp_path_factory, read_result):
    """Results of runs without trouble."""
    results = {}
    for kind in stores:
        out = tmp_path_factory.mktemp(kind)
        assert run_stats(arguments(stores, kind, out)) == 0
        results[kind] = read_result(out)
    return results


@pytest.mark.parametrize(
    ("kind", "path", "times", "error", "call"),
    [
        ("zarr", "z/c/", 3, errno.ESTALE, "read"),
        ("zarr", "t/zarr.json", 1, errno.ETIMEDOUT, "read"),
        ("zarr", "time/c/0", 1, errno.EIO, "read"),
        ("meps", "mbr001.npy", 1, errno.EIO, "read"),
        ("meps", "mbr001.npy", 2, errno.EFAULT, "madvise"),
    ],
    ids=["chunks", "metadata", "coordinate", "header", "pages"],
)
def test_what_fails_for_the_moment(
    run_job, stores, undisturbed, faulty, read_result, tmp_path, kind, path, times, error, call
):
    environment = faulty(path, times, error, call)
    done = run_job(*arguments(stores, kind, tmp_path), environment=environment)
    assert done.status == 0, done.err
    assert read_result(tmp_path) == undisturbed[kind]
    reason = os.strerror(errno.EIO if call == "madvise" else error)
    said = rf"^warning: \S*{path}\S*(?: in \S+)? failed \({reason}\): attempt 2 of 6 in \d\.\d s$"
    assert re.search(said, done.err, re.M), done.err


def test_what_stays_ends_the_run(run_job, stores, faulty, tmp_path):
    environment = faulty("t/c/2/0/0", 1000)
    args = arguments(stores, "zarr", tmp_path, "--data.retries", "1")
    done = run_job(*args, environment=environment, ranks=2)
    assert done.status == 1
    said = [line for line in done.err.splitlines() if line.startswith("neural-prep: ")]
    assert said == [
        f"neural-prep: t in {stores['zarr']} at 2020-01-02T12:00 to 2020-01-03T00:00 cannot be "
        "read (t/c/2/0/0: Input/output error, 2 attempts); start again when it can"
    ]


def test_missing_does_not_mean_what_cannot_be_read(run_job, stores, faulty, tmp_path):
    args = arguments(stores, "zarr", tmp_path, "--data.retries", "0", "--data.corrupt", "missing")
    done = run_job(*args, environment=faulty("t/c/2/0/0", 1000))
    assert done.status == 1
    assert "(t/c/2/0/0: Input/output error); start again" in done.err


def test_a_sample_whose_pages_cannot_be_read(run_job, stores, faulty, tmp_path):
    args = arguments(stores, "meps", tmp_path, "--data.retries", "1", "--data.piece_steps", "4")
    done = run_job(*args, environment=faulty("mbr001.npy", 1000, errno.EFAULT, "madvise"))
    assert done.status == 1
    sample = stores["meps"] / "samples/train/nwp_2020010100_mbr001.npy"
    said = "steps 0 to 3 cannot be read (Input/output error, 2 attempts); start again when it can"
    assert f"neural-prep: {sample}, {said}" in done.err


def test_a_signal_during_a_pause_stops_at_once(start_job, stores, faulty, tmp_path):
    args = arguments(stores, "zarr", tmp_path, "--data.retries", "20")
    job = start_job(*args, environment=faulty("t/c/2/0/0", 1000))
    line = ""
    while "failed" not in line:
        line = job.process.stderr.readline()
        assert line, "it ended"
    time.sleep(6.0)  # amid a pause of four seconds or more
    begun = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    done = job.wait(timeout=20)
    assert time.monotonic() - begun < 2.0
    assert done.status == 75
    assert "stopped by SIGTERM" in done.err
