"""Seconds and memory of `neural-prep plan` on stores of terabytes, made as metadata alone.

    python tests/bench/plan.py

Beside them what any program takes that imports torch and Lightning. Rounds are interleaved, and the
best of each counts: a plan is to take under 1 s and 200 MB.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import archives
from memory import run_watched

IMPORTS = ("import torch, lightning.pytorch", "import numpy, zarr, jsonargparse, rich.table")


def write_stores(folder: Path) -> dict[str, Path]:
    """Each store by what it is."""
    hours = archives.HOURS
    return {
        "mllam, 436,524 steps, 7 TB": archives.write_mllam(
            folder / "mllam", steps=hours, points=63_784, features=63, chunk=63_784
        ),
        "mllam, 10 million chunks, 7 TB": archives.write_mllam(
            folder / "chunks", steps=hours, points=63_784, features=63, chunk=2_774
        ),
        "cf, 436,524 steps, 7 TB": archives.write_cf(folder / "cf", arrays=4, steps=hours),
        "cf, 10 million chunks, 42 TB": archives.write_cf(
            folder / "arrays", arrays=300, steps=33_334
        ),
        "cf, 24 million chunks, 100 TB": archives.write_cf(
            folder / "large", arrays=300, steps=80_266
        ),
    }


def main() -> None:
    """Measures each store on one rank and on 4,096."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="rounds, of which the best counts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = {what: [sys.executable, "-c", what] for what in IMPORTS}
        for name, path in write_stores(Path(folder)).items():
            for ranks in (1, 4096):
                plan = [sys.executable, "-m", "neural_prep.cli", "plan", "--data.path", str(path)]
                commands[f"{name}, {ranks} ranks"] = [*plan, "--trainer.devices", str(ranks)]
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        memory = dict.fromkeys(commands, 0)
        for _ in range(args.repeat):
            for name, command in commands.items():
                took, peak = run_watched(command, dict(os.environ))
                seconds[name].append(took)
                memory[name] = max(memory[name], peak.resident)
    for name, each in seconds.items():
        worst = f"({max(each):.2f})"
        print(f"{name:46} {min(each):6.2f} {worst:>7} s {memory[name] / 1e6:6.0f} MB")


if __name__ == "__main__":
    main()
