"""The memory that a plan announces is what a run takes, at most and not much less."""

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr

from neural_prep.engine.planning import run_plan

SCRIPT = """
import sys
from neural_prep.engine.command import run_stats
status = run_stats(sys.argv[1:])
with open("/proc/self/status") as file:  # of this program alone, unlike getrusage's
    print("peak", next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM")))
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("steps", "chunk", "lag"),
    [
        pytest.param(120, 1, 1, id="small-chunks"),
        pytest.param(60, 12, 1, id="large-chunks"),
        pytest.param(120, 1, 60, id="a-long-lag"),
    ],
)
def test_peak(tmp_path, capsys, steps, chunk, lag):
    group = zarr.open_group(tmp_path / "store", mode="w", zarr_format=3)
    values = np.broadcast_to(np.arange(steps, dtype=np.float32)[:, None, None], (steps, 4, 250_000))
    group.create_array(
        "state",
        data=values,
        chunks=(chunk, 4, 250_000),  # 4 MB a step
        dimension_names=("time", "state_feature", "grid_index"),
    )
    args = ["--data.path", str(tmp_path / "store"), "--model.lags", f"[{lag}]"]
    args += ["--trainer.devices", "1", "--data.workers", "2"]
    assert run_plan([*args, "--json"]) == 0
    announced = json.loads(capsys.readouterr().out)["memory"]["total"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args, "--output.dir", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    peak = int(done.stdout.split()[-1])
    # Versions of what is imported differ by some tens of MB; threads may never have all pieces
    # that they are allowed in memory at once.
    assert 0.65 * announced < peak < 1.1 * announced
