"""Reading from object storage with 50 ms a request, beside a reader of one chunk after the other.

    python tests/bench/latency.py --latency 0.05

A server on loopback answers late. It and the reader share this machine's cores, which bound the
rate where the latency does not: the column `folder` has the same job's rate without any server. A
benchmark judges nothing: the exit status is 0 whatever it finds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from memory import run_watched
from obstore.store import HTTPStore
from zarr.codecs import BloscCodec
from zarr.storage import ObjectStore

BOUND = 20.0  # times a one-by-one reader
_ONE_BY_ONE = 40  # chunks that the slow reader reads
_STARTED_BY = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "SLURM_", "PL_", "GROUP_")


@dataclass(frozen=True, slots=True)
class Kind:
    """A store to make.

    Attributes:
        chunk_nbytes: Uncompressed bytes of a chunk, which is one step.
        chunks: How many of them.
    """

    chunk_nbytes: int
    chunks: int


KINDS = {"100 kB": Kind(100_000, 12_000), "4 MB": Kind(4_000_000, 500)}


def make_store(path: Path, kind: Kind) -> None:
    """Steps of values that compress as packed fields do, a chunk each."""
    points = kind.chunk_nbytes // 4
    group = zarr.open_group(path, mode="w")
    array = group.create_array(
        "t",
        shape=(kind.chunks, points),
        chunks=(1, points),
        dtype="float32",
        compressors=BloscCodec(cname="lz4"),
        dimension_names=("time", "x"),
    )
    generator = np.random.default_rng(0)
    smooth = 280 + 20 * np.sin(np.linspace(0, 60, 2 * points))
    fields = np.rint(4 * (smooth + generator.normal(0, 0.2, 2 * points))).astype(np.float32) / 4
    for step in range(kind.chunks):
        first = step * 97 % points
        array[step] = fields[first : first + points]
    hours = group.create_array("time", data=np.arange(kind.chunks), dimension_names=("time",))
    hours.attrs.update({"units": "hours since 2020-01-01", "calendar": "standard"})
    zarr.consolidate_metadata(path)


@contextmanager
def serving(folder: Path, latency: float) -> Iterator[str]:
    """The URL of a server in a process of its own."""
    script = Path(__file__).with_name("object_server.py")
    command = [sys.executable, script, folder, str(latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def read_one_by_one(url: str, kind: Kind) -> float:
    """Bytes a second of a reader that reads chunk after chunk."""
    store = ObjectStore(HTTPStore(url, client_options={"allow_http": True}), read_only=True)
    array = zarr.open_array(store, path="t", mode="r")
    begun = time.perf_counter()
    for step in range(_ONE_BY_ONE):
        array[step]
    return _ONE_BY_ONE * kind.chunk_nbytes / (time.perf_counter() - begun)


def run_stats(path: str, extra: list[str]) -> tuple[float, float]:
    """Bytes a second that the command reads and sums, and its peak memory."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "neural_prep.cli", "stats", "--data.path", path]
        command += ["--data.layout", "cf", "--output.dir", out, "--trainer.devices", "1", *extra]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_STARTED_BY)}
        _, peak = run_watched(command, environment)
        run = json.loads((Path(out) / "statistics.json").read_text())["run"]
    return run["bytes"] / run["seconds"], peak.resident


def main() -> None:
    """Measures both kinds of stores."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--repeat", type=int, default=2, help="rounds, of which the best counts")
    parser.add_argument("stats_args", nargs="*", help="after --: more options of neural-prep stats")
    args = parser.parse_args()
    print(
        f"{'chunks':8} {'one by one':>12} {'stats':>12} {'ratio':>6} {'folder':>12} {'memory':>8}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with serving(folder, args.latency) as url:
            for number, (name, kind) in enumerate(KINDS.items()):
                make_store(folder / f"{number}.zarr", kind)
                slow = read_one_by_one(f"{url}/{number}.zarr", kind)
                local, _ = run_stats(str(folder / f"{number}.zarr"), args.stats_args)
                runs = [
                    run_stats(f"{url}/{number}.zarr", args.stats_args) for _ in range(args.repeat)
                ]
                fast, peak = max(runs)
                print(
                    f"{name:8} {slow / 1e6:7.1f} MB/s {fast / 1e6:7.0f} MB/s {fast / slow:6.1f} "
                    f"{local / 1e6:7.0f} MB/s {peak / 1e6:5.0f} MB"
                    f"{'' if fast >= BOUND * slow else f'   misses {BOUND:.0f} times'}"
                )


if __name__ == "__main__":
    main()
