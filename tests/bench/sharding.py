"""What sharded layers cost: bytes sent, time beside the serial layer, memory of a rank.

    python tests/bench/sharding.py
    python tests/bench/sharding.py --groups bytes overhead --ranks 2 --json out.json

Bytes are counted where ranks hand them to torch.distributed. Overhead is what a call takes beyond
torch's own on the same piece, collectives apart; calls take turns, and each one's best round
counts. A benchmark judges nothing: the exit status is 0 whatever it finds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp
from outcome import Section, to_json
from sharded_layers import Measured, measure_rank

MICROSECONDS = 200.0
RANKS = (1, 2, 3, 4)


def main() -> None:
    """Measures each group, prints its table, and then how its bounds fared."""
    options = _parse()
    sections = []
    for name in options.groups:
        section = GROUPS[name](options)
        sections.append(section)
        print("\n".join(section.lines()), end="\n\n", flush=True)
    for section in sections:
        for bound in section.bounds.values():
            print(bound)
    if options.json:
        options.json.write_text(json.dumps(to_json(sections, vars(options)), indent=1))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--repeat", type=int, default=7, help="rounds, of which the best counts")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _bytes(options: argparse.Namespace) -> Section:
    """A training step of a convolution: its halo, forward and back, and its parameters' sums."""
    section = Section("Bytes that all ranks send in a training step of a 3 x 3 convolution")
    for ranks in options.ranks:
        found = run(ranks, "bytes", options.repeat)
        sent = sum(each.numbers["sent"] for each in found)
        halo = found[0].numbers["halo"]
        section.rows.append(
            {
                "ranks": ranks,
                "halo rows forward and back (kB)": halo / 1e3,
                "sent (kB)": sent / 1e3,
                "summed gradients of parameters (kB a rank)": found[0].numbers["summed"] / 1e3,
                "step / serial step": found[0].numbers["seconds"] / found[0].numbers["serial"],
            }
        )
        if halo:
            section.hold("sent / halo", 1.0, f"{ranks} ranks", sent / halo, least=False)
    return section


def _overhead(options: argparse.Namespace) -> Section:
    """Every call on one rank, where a cut tensor takes the whole way but for collectives."""
    section = Section("Overhead of a call on small pieces (microseconds)")
    for name, value in run(1, "overhead", options.repeat)[0].numbers.items():
        operation, part = name.split("/")
        row = next((each for each in section.rows if each["call"] == operation), None)
        if row is None:
            section.rows.append(row := {"call": operation})
        row[part] = value
        if part == "forward":
            section.hold("overhead (microseconds)", MICROSECONDS, operation, value, least=False)
    return section


def _memory(options: argparse.Namespace) -> Section:
    """What autograd keeps for backward, of three convolutions with activations between them."""
    section = Section("Activations that a rank keeps for backward (MB)")
    for ranks in options.ranks:
        found = [each.numbers for each in run(ranks, "memory", 1)]
        most, serial = max(each["kept"] for each in found), found[0]["serial"]
        share = most * ranks / serial
        section.rows.append(
            {"ranks": ranks, "serial": serial / 1e6, "a rank": most / 1e6, "times ranks": share}
        )
        section.hold("of 1/ranks of serial memory", 1.1, f"{ranks} ranks", share, least=False)
    return section


def _ring(options: argparse.Namespace) -> Section:
    """Attention to a sequence that grows with the ranks: each rank has as many tokens as ever."""
    section = Section("Peak memory of ring attention, 2,048 tokens a rank, forward and back (MB)")
    alone = 0.0
    for ranks in options.ranks:
        peak = max(each.numbers["peak"] for each in run(ranks, "ring", 1))
        alone = alone or peak
        section.rows.append(
            {"ranks": ranks, "peak of a rank": peak / 1e6, "of the first": peak / alone}
        )
        section.hold(
            "peak / that of the first row", 1.25, f"{ranks} ranks", peak / alone, least=False
        )
    return section


def run(ranks: int, what: str, repeat: int) -> list[Measured]:
    """Starts the ranks, which measure; theirs in order."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        results: Any = context.SimpleQueue()
        arguments = (ranks, Path(folder) / "store", what, repeat, results)
        ranks_running = mp.start_processes(  # type: ignore[no-untyped-call]
            measure_rank, arguments, nprocs=ranks, start_method="spawn", join=False
        )
        found = [results.get() for _ in range(ranks)]
        while not ranks_running.join():
            pass
    return sorted(found, key=lambda each: each.rank)


GROUPS: dict[str, Callable[[argparse.Namespace], Section]] = {
    "bytes": _bytes,
    "overhead": _overhead,
    "memory": _memory,
    "ring": _ring,
}

if __name__ == "__main__":
    main()
