"""neural-lam's own script on its own layout: two passes over the samples, beside one of ours.

Its dependencies are not those of neural-prep, so it runs in a Python of its own:

    python3 -m venv /path/to/venv
    /path/to/venv/bin/pip install neural-lam==0.7.0
    python tests/bench/throughput.py --groups neural-lam --neural-lam /path/to/venv/bin/python

What the script takes on a store of a few bytes is its start-up, and does not count. It writes into
the store's `static` folder.

It runs in two ways, and the faster one counts: dask's threads load samples in its own process, or
two worker processes do. With those dask must be told to use no threads: forked processes have its
pool and none of the pool's threads, and wait for ever. Version 0.7.0 lists an analysis once for
each of its members and then goes through all members of each entry, so that with two members it
reads each sample twice in a pass; the ratio is given per sample that it reads, too.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from outcome import Rates, Section
from running import environment, seconds_of_stats, take_turns
from stores import STORES, Shelf, Store, usual_nbytes
from writing import write_meps

TIMES, LAG = 40.0, 3
_SCRIPT = "neural_lam.datastore.npyfilesmeps.compute_standardization_stats"
_WAYS = {"no workers": (0, "threads"), "2 workers": (2, "synchronous")}  # and dask's scheduler
_BATCH = 1
_TINY = (4, 5)  # grid points along y and x


def measure(shelf: Shelf, args: Namespace) -> list[Section]:
    """One row: lag 3, state and flux, the same files on both sides."""
    section = Section(
        f"Beside neural-lam's script (batch size {_BATCH}), on {args.ranks} ranks: GB/s of the "
        "best round (the worst)"
    )
    if args.neural_lam is None:
        section.notes.append("not measured: give --neural-lam a Python that has neural-lam 0.7")
        return [section]
    with shelf.store("meps", usual_nbytes("meps", args.gigabytes)) as store:
        _measure(section, store, args)
    return [section]


def _measure(section: Section, store: Store, args: Namespace) -> None:
    seconds, samples, apart = _rounds(store, args)
    stats = Rates(seconds["stats"], store.nbytes)
    row: dict[str, object] = {"store": store.name, "GB": store.nbytes / 1e9, "stats": stats}
    scripts = []
    for way in _WAYS:
        start = min(seconds[f"start-up, {way}"])
        counted = [each - start for each in seconds[f"script, {way}"]]
        scripts.append(Rates(counted, store.nbytes))
        row |= {f"script, {way}": scripts[-1], f"start-up, {way}, s": start}
    times = min(stats.over(script) for script in scripts)
    repeats = samples / sum("_mbr" in file.name for file in store.files)
    section.rows.append(row | {"reads a sample": repeats, "times": times})
    section.notes += [f"{name} of both differ by {value:.1g}" for name, value in apart.items()]
    section.hold("times neural-lam's script", TIMES, store.name, times, least=True)
    what = "times neural-lam's script, per sample that it reads"
    section.hold(what, TIMES, store.name, times / repeats, least=True)


def _rounds(store: Store, args: Namespace) -> tuple[dict[str, list[float]], int, dict[str, float]]:
    """Seconds of all contenders; the script's samples in a pass; how far both results differ."""
    with tempfile.TemporaryDirectory() as folder:
        tiny, output = Path(folder) / "tiny", Path(folder) / "out"
        write_meps(tiny, STORES["meps"], 0, _TINY)
        samples: set[int] = set()
        extra = ["--output.formats", "[json,neural_lam]", *args.stats_args]
        stats = {"ranks": args.ranks, "lags": (LAG,), "output": output}
        contenders: dict[str, Callable[[], float]] = {
            "stats": partial(seconds_of_stats, store, extra, **stats)
        }
        for way in _WAYS:
            contenders[f"start-up, {way}"] = partial(_run, args.neural_lam, tiny, way, set())
            path = Path(store.path)
            contenders[f"script, {way}"] = partial(_run, args.neural_lam, path, way, samples)
        rare = {name: args.neural_lam_repeat for name in contenders if name != "stats"}
        seconds = take_turns(contenders, max(args.repeat, args.neural_lam_repeat), rare)
        return seconds, max(samples), _apart(Path(store.path) / "static", output)


def _apart(theirs: Path, ours: Path) -> dict[str, float]:
    """How far both sides' numbers are from each other, in units of the state's std."""
    std = torch.load(ours / "parameter_std.pt", weights_only=True)
    found = {}
    for name, unit in (("parameter_mean", std), ("parameter_std", std), ("diff_std", 1)):
        one, other = (torch.load(path / f"{name}.pt", weights_only=True) for path in (theirs, ours))
        found[name] = float(((one - other) / unit).abs().max())
    return found


def _run(python: Path, store: Path, way: str, samples: set[int]) -> float:
    """Seconds of the whole script; adds how many samples it goes through in a pass."""
    workers, scheduler = _WAYS[way]
    command = [str(python), "-m", _SCRIPT, "--datastore_config_path", "data_config.yaml"]
    command += ["--step_length", str(LAG), "--batch_size", str(_BATCH)]
    command += ["--n_workers", str(workers)]
    variables = environment() | {"DASK_SCHEDULER": scheduler}
    begun = time.monotonic()
    done = subprocess.run(
        command, cwd=store, env=variables, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - begun
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {done.stderr}")
    samples |= {_BATCH * int(batches) for batches in re.findall(r"\d+/(\d+) \[", done.stderr)}
    return seconds
