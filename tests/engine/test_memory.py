"""Memory does not grow with the store."""

import subprocess
import sys

import numpy as np
import pytest
import zarr

SCRIPT = """
import resource, sys
from neural_prep.engine.command import run_stats
status = run_stats(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(status)
"""
SLACK = 64_000  # kB; how much is in flight depends on the machine's load


@pytest.fixture
def peak(tmp_path):
    """Peak memory in kB of the command on a store of so many steps of 4 MB."""

    def measure(steps, chunk=1):
        store = tmp_path / f"{steps}"
        group = zarr.open_group(store, mode="w", zarr_format=3)
        dims = ("time", "state_feature", "grid_index")
        state = group.create_array(
            "state", shape=(steps, 4, 250_000), chunks=(chunk, 4, 250_000), dtype="f4",
            dimension_names=dims,
        )  # fmt: skip
        for first in range(0, steps, chunk):
            state[first : first + chunk] = np.arange(chunk, dtype=np.float32)[:, None, None]
        time = group.create_array("time", shape=(steps,), dtype="i8", dimension_names=dims[:1])
        time[:] = np.arange(steps)
        time.attrs["units"] = "hours since 2020-01-01"
        args = ["--data.path", str(store), "--output.dir", str(tmp_path / "out")]
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *args, "--trainer.devices", "1"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return int(done.stdout.split()[-1])

    return measure


def test_memory_of_a_store_three_times_as_long(peak):
    assert peak(240) < peak(80) + SLACK


def test_memory_of_large_chunks(peak):
    # One in use; the next, and its copy while it is decoded.
    assert peak(128, chunk=32) < peak(1) + 3 * 128_000 + SLACK
