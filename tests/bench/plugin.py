"""Distributed tests by the pytest plugin, beside `torch.multiprocessing.spawn` and `torchrun`.

    python tests/bench/plugin.py --rounds 5

Contenders take turns in each round, so that a machine that others use slows all of them, and the
median of all rounds counts. The exit status is 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

RANKS, TESTS, DYNAMIC, SPAWNED = 2, 200, 10, 10
TIMES_SPAWN, STATIC, FRESH, INSTALLED = 200, 5e-3, 1.0, 50e-3  # the bounds: a ratio, and seconds

_OUTER = (
    *("RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "SLURM_", "GROUP_"),
    *("OMP_", "PYTEST_"),
)
_TEST = """\
import pytest
import torch
import torch.distributed as dist

def check():
    ones = torch.ones(())
    dist.all_reduce(ones)
    assert ones == dist.get_world_size()
"""
# Writes down when each test ended, as the leading session sees it, and when rank 0 began the first.
_CONFTEST = """\
import json, os, sys, time
import pytest

ended, begun = [], []

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    begun.append(time.monotonic())

def pytest_runtest_logfinish():
    ended.append(time.monotonic())

def pytest_unconfigure():
    with open(f"times{os.environ.get('RANK', '')}.json", "w") as file:
        json.dump({"begun": begun, "ended": ended, "torch": "torch" in sys.modules}, file)
"""
_SPAWN = """\
import json, os, sys, time
import torch.multiprocessing
from check import check, dist

def work(rank, port):
    store = dist.TCPStore("127.0.0.1", port, {ranks}, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size={ranks})
    check()
    dist.destroy_process_group()

if __name__ == "__main__":
    seconds = []
    for port in map(int, sys.argv[1:]):
        begun = time.monotonic()
        torch.multiprocessing.spawn(work, (port,), nprocs={ranks})
        seconds.append(time.monotonic() - begun)
    print(json.dumps(seconds))
"""
_LAUNCHED = """\
from check import check, dist

dist.init_process_group("gloo")
check()
dist.destroy_process_group()
"""


@dataclass
class Measured:
    """Seconds, of each round or of each run."""

    static: list[float] = field(default_factory=list)  # a test
    dynamic: list[float] = field(default_factory=list)  # a test
    spawn: list[float] = field(default_factory=list)  # a test
    first: list[float] = field(default_factory=list)  # from pytest's start to the first test's
    torchrun: list[float] = field(default_factory=list)
    without: list[float] = field(default_factory=list)  # pytest that has no plugin
    installed: list[float] = field(default_factory=list)  # pytest that has it and doesn't need it
    torch: bool = False  # whether that imported torch


class Project:
    """A folder with tests, and the programs that run them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tests = "".join(f"\ndef test_{number}():\n    check()\n" for number in range(TESTS))
        marked = "\npytestmark = pytest.mark.multigpu_{kind}\n"
        few = "".join(f"\ndef test_{number}():\n    check()\n" for number in range(DYNAMIC + 1))
        for name, text in {
            "conftest.py": _CONFTEST,
            "check.py": _TEST,
            "spawn.py": _SPAWN.format(ranks=RANKS),
            "launched.py": _LAUNCHED,
            "test_static.py": _TEST + marked.format(kind="static") + tests,
            "test_dynamic.py": _TEST + marked.format(kind="dynamic") + few,
            "test_first.py": _TEST
            + marked.format(kind="static")
            + "\ndef test_0():\n    check()\n",
            "test_plain.py": "def test_nothing():\n    pass\n",
        }.items():
            (folder / name).write_text(text)

    def run(self, *command: str) -> tuple[float, str]:
        """Runs Python with these arguments: seconds, and what it wrote."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_OUTER)}
        # Other plugins that happen to be installed would slow one side and import for the other.
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - begun
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return seconds, done.stdout

    def pytest(self, *args: str) -> float:
        """Runs pytest: seconds."""
        return self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *args)[0]

    def distributed(self, kind: str, name: str) -> float:
        """Runs distributed tests; returns the moment at which it began."""
        begun = time.monotonic()
        ranks = ("--nproc-per-node", str(RANKS))
        self.pytest("-p", "neural-prep", f"--multigpu-{kind}", *ranks, name)
        return begun

    def times(self, rank: str = "") -> dict[str, list[float]]:
        """What the last run wrote down."""
        found: dict[str, list[float]] = json.loads((self.folder / f"times{rank}.json").read_text())
        return found

    def per_test(self, kind: str) -> list[float]:
        """Seconds of each test but the first, which waits for the start."""
        self.distributed(kind, f"test_{kind}.py")
        ended = self.times()["ended"]
        return [after - before for before, after in pairwise(ended)]

    def first_test(self) -> float:
        """Seconds from the start of pytest to that of the first static test on rank 0."""
        begun = self.distributed("static", "test_first.py")
        return self.times("0")["begun"][0] - begun

    def torchrun(self) -> float:
        """Seconds of torchrun for one all-reduce."""
        with _free_ports(1) as (port,):
            pass
        ranks = ("--nproc-per-node", str(RANKS), "--master-port", port)
        return self.run("-m", "torch.distributed.run", *ranks, "launched.py")[0]

    def spawn(self, count: int) -> list[float]:
        """Seconds of each of so many tests, whose ranks are spawned each time."""
        with _free_ports(count) as ports:
            pass
        return json.loads(self.run("spawn.py", *ports)[1])


def measure(project: Project, rounds: int, plain: int) -> Measured:
    """All rounds, after one of each kind that warms caches and counts nothing."""
    found = Measured()
    project.first_test()
    project.torchrun()
    for turn in range(rounds):
        static = project.per_test("static")
        found.static.append(sum(static) / len(static))
        share = SPAWNED * (turn + 1) // rounds - SPAWNED * turn // rounds
        found.spawn += project.spawn(share) if share else []
        dynamic = project.per_test("dynamic")
        found.dynamic.append(sum(dynamic) / len(dynamic))
        found.first.append(project.first_test())
        found.torchrun.append(project.torchrun())
        print(f"round {turn + 1} of {rounds}: {_round(found)}", flush=True)
    for _ in range(plain):
        found.without.append(project.pytest("test_plain.py"))
        found.installed.append(project.pytest("-p", "neural-prep", "test_plain.py"))
        found.torch |= bool(project.times()["torch"])
    return found


def rows_of(found: Measured) -> list[tuple[str, str, str, bool]]:
    """What was measured, its value, its bound, and whether it holds."""
    static, dynamic, spawn = (median(one) for one in (found.static, found.dynamic, found.spawn))
    of_spawn = spawn / static
    first, torchrun = median(found.first), median(found.torchrun)
    of_torchrun = median(a / b for a, b in zip(found.first, found.torchrun, strict=True))
    more = median(a - b for a, b in zip(found.installed, found.without, strict=True))
    return [
        ("a static test", f"{1e3 * static:.2f} ms", "<= 5 ms", static <= STATIC),
        ("the same by spawn", f"{spawn:.2f} s", "", True),
        ("spawn / static", f"{of_spawn:.0f}", f">= {TIMES_SPAWN}", of_spawn >= TIMES_SPAWN),
        ("a dynamic test", f"{dynamic:.2f} s", f"< {FRESH:g} s", dynamic < FRESH),
        ("pytest to first static test", f"{first:.2f} s", "", True),
        ("torchrun, one all-reduce", f"{torchrun:.2f} s", "", True),
        ("first static test / torchrun", f"{of_torchrun:.2f}", "<= 1", of_torchrun <= 1),
        ("pytest without the plugin", f"{1e3 * median(found.without):.0f} ms", "", True),
        ("more with it installed", f"{1e3 * more:.0f} ms", "< 50 ms", more < INSTALLED),
        ("and imports torch", "yes" if found.torch else "no", "no", not found.torch),
    ]


def _round(found: Measured) -> str:
    return (
        f"static {1e3 * found.static[-1]:.2f} ms, spawn {found.spawn[-1]:.2f} s, "
        f"dynamic {found.dynamic[-1]:.2f} s, "
        f"first test {found.first[-1]:.2f} s, torchrun {found.torchrun[-1]:.2f} s"
    )


@contextmanager
def _free_ports(count: int) -> Iterator[list[str]]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    yield [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()


def main() -> int:
    """Measures, then prints the table; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plain", type=int, default=15, help="pairs of runs of plain pytest")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(measure(Project(Path(folder)), args.rounds, args.plain))
    print(f"\n{RANKS} ranks, {TESTS} static tests, median of {args.rounds} rounds")
    for name, value, bound, holds in rows:
        said = f"  {bound:<9}{'holds' if holds else 'MISSED'}" if bound else ""
        print(f"{name:<30}{value:>10}{said}")
    return int(not all(holds for *_, holds in rows))


if __name__ == "__main__":
    sys.exit(main())
