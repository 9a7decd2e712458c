"""The cases of sharded layers on PyTorch's DTensor, beside ShardTensor, on two gloo ranks.

    python tests/bench/against_dtensor.py

Both have the same global inputs and parameters, and are compared with the same serial twin, to the
same tolerance: outputs, gradients of all inputs and parameters, buffers. Inputs are cut by
`distribute_tensor`, along the same dimensions into its own pieces; parameters, buffers and ordinary
tensors are replicated. Cases whose pieces are of other sizes can't be expressed, and random numbers
can't be compared: these do not count. What bfloat16 loses on one process too is not held against
DTensor. A case without an answer in time costs its world, which is started again.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parents[2] / "configs" / "sharded_layers.yaml"
RANKS = 2
STARTING = 120.0  # seconds until ranks have imported torch
GRACE = 3.0  # seconds that a rank has once the other one is done
RIGHT, WRONG, REFUSED, HANGS = "right", "wrong in silence", "refused", "no answer"
CANNOT = "not compared"
WORDS = (RIGHT, WRONG, REFUSED, HANGS, CANNOT)


def families(path: Path) -> dict[str, str]:
    """The family of each case: the first line of the comment above its section."""
    family, found, before = "basics", {}, ""
    for line in path.read_text(encoding="utf-8").splitlines():
        title = re.fullmatch(r"  # (\S.*)", line)
        name = re.match(r"  - (?:\{)?name: ([^,\s]+)", line)
        if title and not before:
            family = title[1].lower()
        elif name:
            found[name[1]] = family
        before = line
    return found


def can_express(case: Any) -> bool:
    """Whether all pieces are of the sizes into which DTensor cuts."""
    from neural_prep.checks.sound import shape_of

    for part in case.tensors():
        for dim, sizes in zip(part.cut.values(), part.sizes.get(RANKS, ()), strict=False):
            total = shape_of(part)[dim]
            first = min(-(-total // RANKS), total)
            if tuple(sizes) != (first, total - first):
                return False
    return True


class World:
    """Two ranks, started again where a case has broken them."""

    def __init__(self, path: Path, timeout: float, *, ours: bool) -> None:
        self._args = (str(path), ours)
        self._timeout = timeout
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        self.starts = 0

    def run(self, name: str) -> tuple[str, str]:
        """A case's verdict, and why."""
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send(name)
        answers = self._hear(self._timeout)
        if len(answers) < RANKS:
            self.end()
            said = "; ".join(f"rank {rank}: {why}" for rank, (_, why, _) in answers.items())
            return HANGS, said or f"nothing in {self._timeout:g} s"
        words = {word for word, _, _ in answers.values()}
        why = "; ".join(dict.fromkeys(text for _, text, _ in answers.values() if text))
        if len({json.dumps(position) for _, _, position in answers.values()}) > 1:
            self.end()
        if words > {REFUSED} and WRONG not in words:
            self.end()
            return HANGS, f"raises on one rank only: {why}"
        return (WRONG if WRONG in words else words.pop()), why

    def end(self) -> None:
        """Kills the ranks."""
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._connections = [], []

    def _start(self) -> None:
        self.starts += 1
        context = get_context("spawn")
        folder = tempfile.mkdtemp()
        for rank in range(RANKS):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(rank, f"{folder}/meeting", theirs, *self._args), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(mine)
        if len(self._hear(STARTING)) < RANKS:
            raise SystemExit("the ranks did not start")

    def _hear(self, seconds: float) -> dict[int, Any]:
        deadline = time.monotonic() + seconds
        found: dict[int, Any] = {}
        left = dict(zip(self._connections, range(RANKS), strict=True))
        while left and (ready := wait(list(left), max(deadline - time.monotonic(), 0))):
            for connection in ready:
                rank = left.pop(connection)  # type: ignore[call-overload]
                try:
                    found[rank] = connection.recv()  # type: ignore[union-attr]
                except EOFError:
                    continue
                deadline = min(deadline, time.monotonic() + max(GRACE, 0.1 * seconds))
        return found


def serve(rank: int, meeting: str, connection: Connection, path: str, ours: bool) -> None:
    """One rank: runs the cases that it is sent."""
    import torch
    import torch.distributed as dist
    import torch.distributed.tensor  # takes seconds: not in a case's time

    from neural_prep.checks import load_cases
    from neural_prep.world import group

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, RANKS)
    from datetime import timedelta

    world = group.open_world(store, rank, RANKS, name="bench", patience=timedelta(minutes=30))
    cases = {case.name: case for case in load_cases(path)}
    connection.send((RIGHT, "", {}))
    while True:
        try:
            case = cases[connection.recv()]
        except EOFError:
            return
        before = group.position()
        word, why = (on_shard_tensor if ours else on_dtensor)(case, world)
        moved = {name: n - before.get(name, 0) for name, n in group.position().items()}
        connection.send((word, why, moved))


def on_shard_tensor(case: Any, world: Any) -> tuple[str, str]:
    """What ShardTensor makes of a case."""
    from neural_prep.checks.check import run_case

    outcome = run_case(case, world)
    if outcome.refused or (case.raises == "NotImplementedError" and not outcome.failed):
        return REFUSED, ""
    if outcome.failed:
        return WRONG, outcome.raised or outcome.differences[0]
    return RIGHT, ""


def on_dtensor(case: Any, world: Any) -> tuple[str, str]:
    """What DTensor makes of a case."""
    import torch
    from torch import nn
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    from neural_prep.checks.check import mesh_of
    from neural_prep.checks.compare import Tolerance
    from neural_prep.checks.twins import dtype_of, make_twins_by, seed_of
    from neural_prep.world import group

    mesh = mesh_of(world, (("domain", RANKS),))
    leaves = []

    def place(part: Any, leaf: Any) -> Any:
        placements = [Shard(dim % leaf.ndim) for dim in part.cut.values()] or [Replicate()]
        if not part.contiguous:
            leaf = torch.stack([leaf, leaf], -1)[..., 0].detach().requires_grad_(leaf.requires_grad)
        placed = distribute_tensor(leaf, mesh, placements)
        if leaf.requires_grad:
            leaves.append(placed)
        return placed

    generator = torch.Generator().manual_seed(seed_of(case))
    try:
        serial, placed = make_twins_by(place, case, world.device.type, generator)
        if isinstance(placed.function, nn.Module):
            distribute_module(placed.function, mesh)
    except Exception as error:
        return REFUSED, in_a_line(error)
    group.seed_generators(seed_of(case))
    expected_error = None
    try:
        expected = serial.function(*serial.args, **serial.kwargs)
    except Exception as error:
        expected_error = error
    group.seed_generators(seed_of(case))
    try:
        found = placed.function(*placed.args, **placed.kwargs)
        if expected_error is not None:
            return WRONG, f"raises nothing, expected {in_a_line(expected_error)}"
        if is_random(case, expected):
            return CANNOT, "random numbers"
        tolerance = Tolerance(case.rtol, case.atol, dtype_of(case))
        for what in differences(serial, placed, leaves, expected, found, tolerance, generator):
            return (RIGHT, "as on one process") if is_lost_by_rounding(case) else (WRONG, what)
    except Exception as error:
        return (RIGHT if expected_error is not None else REFUSED), in_a_line(error)
    return RIGHT, ""


def is_lost_by_rounding(case: Any) -> bool:
    """Whether one process in the case's own 16-bit floats is not within its tolerance either."""
    import torch

    from neural_prep.checks.compare import Tolerance
    from neural_prep.checks.twins import dtype_of, make_twins_by, seed_of

    if dtype_of(case) not in (torch.bfloat16, torch.float16):
        return False
    generator = torch.Generator().manual_seed(seed_of(case))
    serial, narrow = make_twins_by(lambda part, leaf: leaf, case, "cpu", generator)
    results = [twin.function(*twin.args, **twin.kwargs) for twin in (serial, narrow)]
    tolerance = Tolerance(case.rtol, case.atol, dtype_of(case))
    leaves = list(narrow.leaves.values())
    return any(differences(serial, narrow, leaves, *results, tolerance, generator))


def is_random(case: Any, expected: Any) -> bool:
    """Whether the serial twin itself gives something else from another seed."""
    import torch

    from neural_prep.checks.compare import leaves_of
    from neural_prep.checks.twins import make_twins_by, seed_of
    from neural_prep.world import group

    if case.raises != "NotImplementedError":  # all that are random are refused
        return False
    generator = torch.Generator().manual_seed(seed_of(case))
    twin, _ = make_twins_by(lambda part, leaf: leaf, case, "cpu", generator)
    group.seed_generators(seed_of(case) + 1)
    again = twin.function(*twin.args, **twin.kwargs)
    pairs = zip(leaves_of(expected, ""), leaves_of(again, ""), strict=True)
    return not all(one is None or torch.equal(one, other) for (_, one), (_, other) in pairs)


def differences(
    serial: Any,
    placed: Any,
    leaves: list[Any],
    expected: Any,
    found: Any,
    tolerance: Any,
    generator: Any,
) -> Iterator[str]:
    """All that differs, after backward from the same gradients."""
    import torch

    from neural_prep.checks.compare import compare, leaves_of
    from neural_prep.checks.twins import draw

    def judge(name: str, one: Any, other: Any) -> Iterator[str]:
        if one is None or other is None:
            if one is not other:
                yield f"{name} is {'missing' if other is None else 'there'}"
        elif text := compare(one, whole(other), tolerance).text:
            yield f"{name} {text}"

    ones, others = dict(leaves_of(expected, "output")), dict(leaves_of(found, "output"))
    if list(ones) != list(others):
        yield "other outputs"
        return
    roots = []
    for name, one in ones.items():
        if not isinstance(one, torch.Tensor):
            if one != others[name]:
                yield f"{name} is {others[name]!r}, expected {one!r}"
            continue
        other = whole(others[name])
        yield from judge(name, one, other)
        if one.requires_grad != other.requires_grad:
            yield f"{name} has {'a' if other.requires_grad else 'no'} gradient"
        elif one.requires_grad:
            roots.append((one, other, draw(tuple(one.shape), other.dtype, generator)))
    if roots:
        torch.autograd.backward([r[0] for r in roots], [r[2].to(r[0].dtype) for r in roots])
        torch.autograd.backward([r[1] for r in roots], [r[2] for r in roots])
        for (name, one), other in zip(serial.leaves.items(), leaves, strict=True):
            yield from judge(f"gradient of {name}", one.grad, other.grad)
        pairs = zip(serial.parameters(), placed.parameters(), strict=True)
        for (name, one), (_, other) in pairs:
            yield from judge(f"gradient of parameter {name}", one.grad, other.grad)
    for (name, one), (_, other) in zip(serial.buffers(), placed.buffers(), strict=True):
        yield from judge(f"buffer {name}", one, other)


def whole(tensor: Any) -> Any:
    """All of a DTensor, on every rank; its gradient is whole on every rank too."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def in_a_line(error: BaseException) -> str:
    """An exception, briefly."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def main() -> None:
    """Runs all cases on both, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=CONFIG, help="the cases")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds that a case may take")
    parser.add_argument("--only", default="", help="a regular expression for names of cases")
    parser.add_argument("--json", type=Path, help="where each case's verdicts are written")
    parser.add_argument("--verbose", action="store_true", help="every case that is not right")
    args = parser.parse_args()

    import torch

    from neural_prep.checks import load_cases

    family_of = families(args.config)
    cases = [
        case
        for case in load_cases(args.config)
        if RANKS in case.ranks and re.search(args.only, case.name)
    ]
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for contender in ("ours", "DTensor"):
        world = World(args.config, args.timeout, ours=contender == "ours")
        try:
            for number, case in enumerate(cases, 1):
                verdict = (CANNOT, "")
                if contender == "ours" or can_express(case):
                    verdict = world.run(case.name)
                found.setdefault(case.name, {})[contender] = verdict
                print(f"\r{contender}: {number} of {len(cases)}", end="", file=sys.stderr)
        finally:
            world.end()
        print(f", {world.starts} worlds", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if args.verbose:
        for name, verdicts in found.items():
            for contender, (word, why) in verdicts.items():
                if word not in (RIGHT, CANNOT):
                    print(f"{name}: {contender} {word}: {why}")
    show(found, family_of, torch.__version__.partition("+")[0])


def show(
    found: dict[str, dict[str, tuple[str, str]]], family_of: dict[str, str], version: str
) -> None:
    """Prints a table of families, in Markdown."""
    print(f"\ntorch {version}, {RANKS} ranks of gloo\n")
    header = ["family", "cases", "ours: right", "refused", "DTensor: right", "wrong in silence"]
    header += ["refused", "no answer", "not compared"]
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    rows: dict[str, list[str]] = {}
    for name in found:
        rows.setdefault(family_of.get(name, "others"), []).append(name)
    for family, names in [*rows.items(), ("**all**", list(found))]:
        ours = Counter(found[name]["ours"][0] for name in names)
        theirs = Counter(found[name]["DTensor"][0] for name in names)
        cells = [family, len(names), ours[RIGHT], ours[REFUSED], *(theirs[word] for word in WORDS)]
        print(f"| {' | '.join(map(str, cells))} |")
        if ours[WRONG] or ours[HANGS]:
            print(f"ours: {ours[WRONG]} wrong, {ours[HANGS]} hang in {family}", file=sys.stderr)


if __name__ == "__main__":
    main()
