"""Time per byte of stores with 1, 4 and 16 times as many steps: constant, if cost is linear.

    python tests/bench/linear.py --steps 150 --ranks 2

Start-up is left out, all is read from the page cache, and rounds are interleaved; each store's best
round counts. The shortest store should take some seconds, or what is not per byte shows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import archives
import numpy as np
import zarr

TIMES = (1, 4, 16)
BOUND = 0.1  # by which the time per byte may differ from the shortest store's
POINTS, FEATURES = 63_784, 18  # MEPS


def write(path: Path, steps: int) -> Path:
    """A store of steps of 4.6 MB, each one chunk, of which a hundred differ."""
    archives.write_mllam(path, steps=steps, points=POINTS, features=FEATURES, chunk=POINTS)
    state = zarr.open_group(path, mode="a")["state"]
    assert isinstance(state, zarr.Array)
    generator = np.random.default_rng(0)
    fields = np.round(generator.normal(280, 5, (100, POINTS, FEATURES)), 1).astype(np.float32)
    for first in range(0, steps, len(fields)):
        stop = min(first + len(fields), steps)
        state[first:stop] = fields[: stop - first]
    return path


def run(store: Path, ranks: int) -> tuple[float, int]:
    """Seconds and bytes of a run, start-up apart."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "neural_prep.cli", "stats", "--data.path", str(store)]
        command += ["--output.dir", folder, "--trainer.devices", str(ranks)]
        subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
        took = json.loads((Path(folder) / "statistics.json").read_text())["run"]
    return took["seconds"], took["bytes"]


def main() -> None:
    """Measures the three stores in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="of the shortest store, 4.6 MB each")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5, help="rounds, of which the best counts")
    parser.add_argument("--folder", type=Path, help="keeps stores there, and takes those it has")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        stores = {}
        for times in TIMES:
            path = folder / f"linear_{args.steps * times}"
            stores[times] = path if path.is_dir() else write(path, args.steps * times)
        found: dict[int, list[float]] = {times: [] for times in TIMES}
        for _ in range(args.repeat):
            for times, store in stores.items():
                seconds, nbytes = run(store, args.ranks)
                found[times].append(seconds / nbytes)
    first = min(found[TIMES[0]])
    for times, each in found.items():
        ratio = min(each) / first
        holds = "holds" if abs(ratio - 1) <= BOUND else "misses"
        print(
            f"{args.steps * times:6} steps, {args.ranks} ranks: {min(each) * 1e9:.3f} "
            f"({max(each) * 1e9:.3f}) s/GB, {ratio:.3f} of the shortest's: {holds} {BOUND:.0%}"
        )


if __name__ == "__main__":
    main()
