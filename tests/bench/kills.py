"""Kills runs at random moments, in every way and on changing numbers of ranks, and starts again.

Every run must end with the bits of an undisturbed one, and no block may be computed twice but those
that were in flight at a kill:

    python tests/bench/kills.py --rounds 200
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forks
import numpy as np
import xarray as xr

_LAGS = "[1,2,3,5,8]"
_FRAME = struct.Struct("<IIQII16s")  # of a record: checksum, series, block, kinds, variables, stamp
_MOST_RANKS = 3
_WAYS = {  # whom which signal hits, and whether the next start waits for all ranks' ends
    "SIGKILL of one": (signal.SIGKILL, "one", True),
    "SIGKILL of rank 0": (signal.SIGKILL, "first", True),
    "SIGKILL of rank 0, started again at once": (signal.SIGKILL, "first", False),
    "SIGKILL of all": (signal.SIGKILL, "all", True),
    "SIGTERM of one": (signal.SIGTERM, "one", True),
    "SIGTERM of all": (signal.SIGTERM, "all", True),
    "SIGUSR1 of all": (signal.SIGUSR1, "all", True),
}


def write_samples(root: Path) -> list[str]:
    """A store of 40 samples, each a block of its own."""
    folder = root / "samples" / "train"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    for day in range(40):
        values = generator.normal(1e5, 3.0, (25, 10, 12, 3)).astype(np.float32)
        np.save(folder / f"nwp_2022{day // 28 + 1:02d}{day % 28 + 1:02d}00_mbr000.npy", values)
    return ["--data.split", "train", "--data.block_bytes", "1", "--data.piece_steps", "1"]


def write_line(root: Path) -> list[str]:
    """A time line in 60 blocks of ten chunks, whose lags reach over blocks."""
    values = np.random.default_rng(2).normal(280.0, 5.0, (600, 4, 900)).astype(np.float32)
    store = xr.Dataset(
        {"state": (("time", "state_feature", "grid_index"), values)},
        coords={
            "time": np.datetime64("2020-01-01", "ns") + np.arange(600) * np.timedelta64(6, "h")
        },
    )
    store.to_zarr(root, zarr_format=2, encoding={"state": {"chunks": (1, 4, 900)}})
    return ["--data.block_bytes", str(10 * 4 * 900 * 4), "--data.piece_steps", "1"]


class BrokenPromiseError(Exception):
    """A promise that was not kept."""


class Runs:
    """Runs of one store, each killed over and over until it ends."""

    def __init__(self, fork: forks.Forks, folder: Path, write: Any, dice: random.Random) -> None:
        self._fork, self._folder, self._dice = fork, folder, dice
        self._args = ["--data.path", folder / "store", *write(folder / "store")]
        self._args += ["--model.lags", _LAGS]
        self._number = 0
        self.kills: collections.Counter[str] = collections.Counter()
        self.blocks = 0
        undisturbed = fork.run(*self._args, "--output.dir", folder / "undisturbed")
        self._expected, _ = _result(folder / "undisturbed", undisturbed)
        self.seconds = fork.run(*self._args, "--output.dir", folder / "again", ranks=2).seconds

    def run(self, kills: int) -> None:
        """One run, which is killed at most so many times.

        Raises:
            BrokenPromiseError: if it does not end as an undisturbed one does.
        """
        out = self._folder / f"run{self._number}"
        self._number += 1
        hurried = False
        lingering: list[forks.Job] = []
        for left in range(kills, -1, -1):
            before = sum(records_in(out).values())
            ranks = self._dice.randint(1, _MOST_RANKS)
            job = self._fork.start(*self._args, "--output.dir", out, ranks=ranks)
            if left and not self._disturb(job):
                lingering.append(job)
                hurried = True
                continue
            ended = job.wait()
            for earlier in lingering:
                earlier.wait()
            lingering.clear()
            self._check_start(ended, before, exactly=not hurried)
            if ended.status == 0:
                break
            if not left:
                raise BrokenPromiseError(f"nobody stopped it, and yet: {ended}")
            self._check_records(out, twice=_MOST_RANKS * kills if hurried else 0)
        result, run = _result(out, ended)
        if result != self._expected:
            raise BrokenPromiseError("the result has other bits")
        if (out / "journal").exists():
            raise BrokenPromiseError("the journal is still there")
        self.blocks += run["blocks"]

    def _disturb(self, job: forks.Job) -> bool:
        """Kills a start at a random moment; returns whether the next one waits for its end."""
        way = self._dice.choice(list(_WAYS))
        signum, whom, wait = _WAYS[way]
        ranks = range(len(job.pids))
        chosen = {"all": ranks, "first": [0], "one": [self._dice.choice(ranks)]}[whom]
        deadline = time.monotonic() + self._dice.uniform(0.1, 0.95) * self.seconds
        while job.is_running and time.monotonic() < deadline:
            time.sleep(0.002)
        if not job.is_running:
            return True
        job.kill(signum, chosen)
        self.kills[way] += 1
        return wait

    def _check_start(self, ended: forks.Ended, before: int, *, exactly: bool) -> None:
        found = re.search(r"^resuming: (\d+) of (\d+) blocks done$", ended.err, re.M)
        if found is not None and exactly and int(found[1]) != before:
            raise BrokenPromiseError(f"{before} blocks were done: {ended}")
        if "Traceback" in ended.err:
            raise BrokenPromiseError(f"an error: {ended}")

    @staticmethod
    def _check_records(out: Path, twice: int) -> None:
        records = records_in(out)
        again = sum(records.values()) - len(records)
        if again > twice:
            raise BrokenPromiseError(f"{again} blocks were computed twice")


def records_in(out: Path) -> collections.Counter[tuple[int, int]]:
    """How many whole records of each block a journal holds, by its format alone."""
    found: collections.Counter[tuple[int, int]] = collections.Counter()
    for path in (out / "journal").glob("*.blocks"):
        content = path.read_bytes()
        at = content.find(b"\n") + 1
        while 0 < at <= len(content) - _FRAME.size:
            _, series, block, kinds, variables, _ = _FRAME.unpack_from(content, at)
            at += _FRAME.size + 64 * kinds * variables
            if at <= len(content):
                found[series, block] += 1
    return found


def _result(out: Path, ended: forks.Ended) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result less what may differ, and what is said of the run."""
    if ended.status:
        raise BrokenPromiseError(f"the run failed: {ended}")
    document = json.loads((out / "statistics.json").read_text())
    del document["created"]
    return document, document.pop("run")


def kill_runs(fork: forks.Forks, folder: Path, rounds: int, seed: int) -> str:
    """Kills runs so many times, and says how it went.

    Raises:
        BrokenPromiseError: at the first promise that is not kept.
    """
    dice = random.Random(seed)
    begun, number = time.monotonic(), 0
    stores = []
    for write in (write_samples, write_line):
        place = folder / write.__name__
        place.mkdir()
        stores.append(Runs(fork, place, write, dice))
    while (done := sum(sum(each.kills.values()) for each in stores)) < rounds:
        stores[number % 2].run(min(rounds - done, dice.randint(3, 8)))
        number += 1
    kills = sum((each.kills for each in stores), collections.Counter[str]())
    blocks = sum(each.blocks for each in stores)
    listed = ", ".join(f"{count} {way}" for way, count in sorted(kills.items()))
    return (
        f"{sum(kills.values())} kills of {number} runs in {time.monotonic() - begun:.1f} s "
        f"({listed}): the same bits, and none of {blocks} blocks computed twice"
    )


def main(args: Sequence[str] | None = None) -> int:
    """Kills, and prints how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="number of kills")
    parser.add_argument("--seed", type=int, default=None, help="for the same kills again")
    options = parser.parse_args(args)
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}")
    fork = forks.Forks()
    try:
        with tempfile.TemporaryDirectory() as folder:
            print(kill_runs(fork, Path(folder), options.rounds, seed))
    except BrokenPromiseError as broken:
        print(broken)
        return 1
    finally:
        fork.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
