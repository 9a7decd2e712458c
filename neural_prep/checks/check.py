"""One case beside its serial twin, as one rank sees it; no rank hears of another here.

A rank compares its own piece of each output, and the whole of each gradient, which is whole on
every rank. Nothing is gathered for that: a wrong layout cannot leave ranks waiting for one another.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

import torch
from torch import Generator, Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from neural_prep.checks.cases import Case
from neural_prep.checks.compare import (
    Found,
    Tolerance,
    compare,
    compare_shard,
    digest,
    leaves_of,
    local_slices,
    unlike,
)
from neural_prep.checks.twins import Twin, draw, dtype_of, make_twins, seed_of
from neural_prep.sharding.shard_tensor import ShardTensor, from_local
from neural_prep.world import group
from neural_prep.world.group import World

_CHECKS, _TORCH = os.path.dirname(__file__), os.path.dirname(torch.__file__)


class Part(Enum):
    """What an error is of."""

    OUTPUT = "output"
    INPUT = "input gradient"
    PARAMETER = "parameter gradient"


@dataclass(slots=True)
class Outcome:
    """What a rank has found.

    Attributes:
        errors: The largest error of each part that was compared.
        differences: What differs: a line for each tensor.
        raised: What ended the case here, in a line.
        refused: Whether that was a refusal: NotImplementedError.
        trace: Where it was raised.
        same: What must be the same on other ranks, by tensor: which piece it is, and its digest.
        layouts: How each output is cut, which must be the same on all ranks.
        position: How many collectives each process group has run since the case began.
        cut_off: Where this rank was when it was cut off, in a line and in full.
        is_back: Whether it can go on.
    """

    errors: dict[Part, float] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    raised: str = ""
    refused: bool = False
    trace: str = ""
    same: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    position: dict[str, int] = field(default_factory=dict)
    cut_off: tuple[str, str] | None = None
    is_back: bool = True

    @property
    def failed(self) -> bool:
        """Whether something is wrong on this rank, whatever others have found."""
        return bool(self.differences or self.raised)

    def add(self, part: Part, tensor: str, found: Found) -> None:
        """Takes in a comparison."""
        self.errors[part] = max(self.errors.get(part, 0.0), found.error)
        if found.text:
            self.differences.append(f"{tensor} {found.text}")


class SerialError(Exception):
    """What is to be checked does not run on ordinary tensors."""


def run_case(case: Case, world: World) -> Outcome:
    """Runs a case on this rank; every rank of the world does the same.

    Whatever the case raises is in the outcome.
    """
    outcome = Outcome()
    mesh = mesh_of(world, tuple(case.mesh_on(world.size).items()))
    before = group.position()
    try:
        with unwritten_memory_as_nan():
            _run(case, mesh, outcome)
    except Exception as error:
        is_serial = isinstance(error, SerialError)
        outcome.raised = str(error) if is_serial else f"raises {_in_a_line(error)}"
        outcome.refused = isinstance(error, NotImplementedError)
        outcome.trace = _trace_of(error.__cause__ if is_serial and error.__cause__ else error)
    after = group.position()
    outcome.position = {name: count - before.get(name, 0) for name, count in after.items()}
    return outcome


@contextlib.contextmanager
def unwritten_memory_as_nan() -> Iterator[None]:
    """Fills what `torch.empty` gives with NaN, or large integers, so that reading it shows."""
    settings: Any = torch.utils.deterministic
    mode, filled = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    # Not torch.use_deterministic_algorithms, which imports torch's compiler, in seconds. And only
    # a warning where an operation of CUDA has no deterministic form: that is not the matter.
    torch.set_deterministic_debug_mode("warn")
    settings.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*deterministic")
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        settings.fill_uninitialized_memory = filled


@lru_cache(maxsize=16)
def mesh_of(world: World, axes: tuple[tuple[str, int], ...]) -> DeviceMesh:
    """The world's ranks with these axes; made once, as it takes all ranks to make one."""
    names, sizes = zip(*axes, strict=True)
    return init_device_mesh(world.device.type, sizes, mesh_dim_names=names)


def _run(case: Case, mesh: DeviceMesh, outcome: Outcome) -> None:
    generator = Generator().manual_seed(seed_of(case))
    serial, sharded = make_twins(case, mesh, generator)
    if case.raises is not None:
        _check_refusal(case.raises, sharded, outcome)
        return
    tolerance = Tolerance(case.rtol, case.atol, dtype_of(case))
    try:
        expected = _call(serial, case)
    except Exception as error:
        raise SerialError(f"the serial twin raises {_in_a_line(error)}") from error
    found = _call(sharded, case)
    roots = _compare_outputs(expected, found, sharded, tolerance, outcome)
    if roots:
        _backward(roots, generator)
        _compare_gradients(serial, sharded, tolerance, outcome)
    for (name, one), (_, other) in zip(serial.buffers(), sharded.buffers(), strict=True):
        _compare_whole(Part.OUTPUT, f"buffer {name}", one, other, tolerance, outcome)


def _call(twin: Twin, case: Case) -> Any:
    group.seed_generators(seed_of(case))
    return twin.function(*twin.args, **twin.kwargs)


def _check_refusal(expected: str, sharded: Twin, outcome: Outcome) -> None:
    name = expected.rpartition(".")[2]
    try:
        sharded.function(*sharded.args, **sharded.kwargs)
    except Exception as error:
        if name in (kind.__name__ for kind in type(error).__mro__):
            outcome.same["message"] = ((), str(error))
            return
        outcome.trace = _trace_of(error)
        outcome.differences.append(f"raises {_in_a_line(error)}, expected {expected}")
    else:
        outcome.differences.append(f"raises nothing, expected {expected}")


def _compare_outputs(
    expected: Any, found: Any, sharded: Twin, tolerance: Tolerance, outcome: Outcome
) -> list[tuple[Tensor, Tensor]]:
    """Compares all outputs, and returns those that have gradients, with their twins."""
    ones, others = dict(leaves_of(expected, "output")), dict(leaves_of(found, "output"))
    if list(ones) != list(others):
        outcome.differences.append(f"has {_listed(others)}, expected {_listed(ones)}")
        return []
    if not any(isinstance(one, Tensor) for one in ones.values()):
        outcome.differences.append("returns no tensor, so that there is nothing to compare")
    roots = []
    for name, one in ones.items():
        other = others[name]
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            _compare_values(name, one, other, outcome)
            continue
        if sharded.has_sharded_input():
            result = compare_shard(one, other, tolerance)
        else:
            result = compare(one, other, tolerance)
        outcome.add(Part.OUTPUT, name, result)
        if not result.comparable:
            continue
        if isinstance(other, ShardTensor):
            _note_shard(name, other, outcome)
        else:
            outcome.same[name] = ((), digest(other))
        if one.requires_grad != other.requires_grad:
            words = "has" if other.requires_grad else "has no"
            outcome.differences.append(f"{name} {words} gradient, unlike its serial twin")
        elif one.requires_grad:
            roots.append((one, other))
    return roots


def _compare_values(name: str, one: Any, other: Any, outcome: Outcome) -> None:
    """What is no tensor must be equal."""
    if type(one) is type(other) and (one == other or one is other):
        return
    outcome.differences.append(f"{name} is {_shown(other)}, expected {_shown(one)}")


def _note_shard(name: str, shard: ShardTensor, outcome: Outcome) -> None:
    layout = shard.sharding
    outcome.layouts[name] = f"{layout} {[list(cut.sizes) for _, cut in layout.cut_axes()] or ''}"
    piece = tuple(layout.rank(axis) for axis, _ in layout.cut_axes())
    outcome.same[name] = (piece, digest(shard.local))


def _backward(roots: list[tuple[Tensor, Tensor]], generator: Generator) -> None:
    """Runs backward through both twins, from the same random gradient of each output."""
    ones, others, grads, pieces = [], [], [], []
    for one, other in roots:
        grad = draw(tuple(one.shape), other.dtype, generator).to(one.device)
        ones.append(one)
        others.append(other)
        grads.append(grad.to(one.dtype))
        if isinstance(other, ShardTensor):
            place = local_slices(other.sharding, one.shape)
            grad = from_local(grad[place].contiguous(), other.sharding)
        pieces.append(grad)
    torch.autograd.backward(ones, grads)
    torch.autograd.backward(others, pieces)


def _compare_gradients(serial: Twin, sharded: Twin, tolerance: Tolerance, outcome: Outcome) -> None:
    for name, leaf in serial.leaves.items():
        grads = (leaf.grad, sharded.leaves[name].grad)
        _compare_whole(Part.INPUT, f"gradient of {name}", *grads, tolerance, outcome)
    for (name, one), (_, other) in zip(serial.parameters(), sharded.parameters(), strict=True):
        what = f"gradient of parameter {name}"
        _compare_whole(Part.PARAMETER, what, one.grad, other.grad, tolerance, outcome)


def _compare_whole(
    part: Part,
    name: str,
    one: Tensor | None,
    other: Tensor | None,
    tolerance: Tolerance,
    outcome: Outcome,
) -> None:
    """Compares what every rank has whole."""
    if one is None or other is None:
        if one is not other:
            outcome.add(part, name, unlike(_one_is_missing(other)))
        return
    if isinstance(other, ShardTensor):
        outcome.add(part, name, unlike("is a ShardTensor, expected an ordinary one"))
        return
    outcome.add(part, name, compare(one, other, tolerance))
    outcome.same[name] = ((), digest(other))


def _one_is_missing(found: Tensor | None) -> str:
    return "is missing" if found is None else "is there, but its serial twin has none"


def _listed(names: dict[str, Any]) -> str:
    return ", ".join(names) or "no output"


def _shown(value: Any) -> str:
    return f"a tensor of {list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _in_a_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _trace_of(error: BaseException) -> str:
    """Where an error was raised, from the function under test on, less torch's own frames."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [number for number, frame in enumerate(frames) if _CHECKS in frame.filename]
    inside = frames[own[-1] + 1 :] if own else frames
    shown = [frame for frame in inside if not frame.filename.startswith(_TORCH)]
    lines = [(frame.filename, frame.lineno, frame.name, frame.line) for frame in shown]
    return "".join(traceback.format_list(lines)).rstrip()  # type: ignore[arg-type]
