"""What a case runs, twice: serial on ordinary tensors, and sharded on tensors of the same values.

Everything random comes from generators seeded by the case's name, so that all ranks draw alike.
Parameters and buffers are moved away from where modules start them: ones and zeros hide mistakes.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jsonargparse import Namespace
from torch import Generator, Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from neural_prep.checks.cases import Case, Constant, Input, ModuleSpec
from neural_prep.checks.loading import parse_module
from neural_prep.checks.names import find_name
from neural_prep.checks.sound import shape_of
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.transport import summed_in

_SHIFT = 0.1  # of parameters and buffers


@dataclass(frozen=True, slots=True)
class Twin:
    """A function, its arguments, and what has gradients or state.

    Attributes:
        function: A module, or any function.
        args: Positional arguments.
        kwargs: Keyword arguments.
        leaves: The inputs whose gradients are compared, by name; whole on every rank.
    """

    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    leaves: dict[str, Tensor]

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter, by name."""
        if isinstance(self.function, nn.Module):
            yield from self.function.named_parameters()

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Every buffer, by name."""
        if isinstance(self.function, nn.Module):
            yield from self.function.named_buffers()

    def has_sharded_input(self) -> bool:
        """Whether anything that it is given is sharded."""
        given = [*self.args, *self.kwargs.values()]
        parts = [part for each in given for part in (each if isinstance(each, list) else [each])]
        return any(isinstance(part, ShardTensor) for part in parts)


def make_twins(case: Case, mesh: DeviceMesh, generator: Generator) -> tuple[Twin, Twin]:
    """The serial and the sharded twin of a case.

    Args:
        case: The case.
        mesh: The ranks, as the case arranges them.
        generator: Draws values; alike on all ranks.
    """
    sizes = mesh.size()

    def scatter(part: Input, leaf: Tensor) -> Tensor:
        if part.plain:
            return _in_memory(part, leaf)
        shard = ShardTensor.scatter(leaf, mesh, part.cut, part.sizes.get(sizes))
        return from_local(_in_memory(part, to_local(shard)), shard.sharding)

    return make_twins_by(scatter, case, mesh.device_type, generator)


def make_twins_by(
    place: Callable[[Input, Tensor], Tensor], case: Case, device: str, generator: Generator
) -> tuple[Twin, Twin]:
    """The serial twin of a case, and one whose tensors are placed on ranks.

    The serial twin of 16-bit floats is in float32, and of the same values.

    Args:
        place: Puts a tensor where its input says.
        case: The case.
        device: The kind of device.
        generator: Draws values; alike on all ranks.
    """
    function = _function(case, generator, device)
    drawn = {
        name: _draw_input(part, case.dtype, generator).to(device) for name, part in _tensors(case)
    }
    placed = _twin(case, copy.deepcopy(function), drawn, place)
    narrow = dtype_of(case)
    wide = summed_in(narrow)
    if isinstance(function, nn.Module):
        function = function.to(wide)
    widened = {
        name: leaf.to(wide) if leaf.dtype == narrow else leaf for name, leaf in drawn.items()
    }
    return _twin(case, function, widened, _in_memory), placed


def dtype_of(case: Case) -> torch.dtype:
    """Of its parameters, and of inputs that have none of their own."""
    found: torch.dtype = getattr(torch, case.dtype)
    return found


def seed_of(case: Case) -> int:
    """A seed for whatever a case draws: alike on all ranks and in every run."""
    return zlib.crc32(case.name.encode())


def draw(shape: tuple[int, ...], dtype: torch.dtype, generator: Generator) -> Tensor:
    """Normal numbers, drawn in double precision so that they are the same in any other."""
    double = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=double).to(dtype)


def build_module(spec: ModuleSpec) -> nn.Module:
    """A module, built from its class path and arguments, which may be modules themselves.

    jsonargparse only parses: it may add defaults, which are text there where they are functions.
    """
    given = {"class_path": spec.class_path, "init_args": spec.init_args}
    module = _build(parse_module(spec).module, given)
    assert isinstance(module, nn.Module)
    return module


def _build(parsed: Any, given: Any) -> Any:
    """An argument as jsonargparse has parsed it, with classes in it built."""
    if isinstance(parsed, list | tuple) and isinstance(given, list | tuple):
        return type(parsed)(map(_build, parsed, given))
    if not isinstance(parsed, Namespace):
        return parsed
    init_args = parsed.get("init_args")
    values = {**(parsed.get("dict_kwargs") or {}), **(vars(init_args) if init_args else {})}
    args = {key: _build(values[key], each) for key, each in given.get("init_args", {}).items()}
    return find_name(parsed.class_path, "module")(**args)


def _twin(
    case: Case,
    function: Callable[..., Any],
    drawn: Mapping[str, Tensor],
    place: Callable[[Input, Tensor], Tensor],
) -> Twin:
    """One of the twins, its inputs placed as they are or on ranks."""
    leaves: dict[str, Tensor] = {}

    def argument(name: str, part: Input | Constant) -> Any:
        if isinstance(part, Constant):
            return copy.deepcopy(part.value)
        leaf = drawn[name].clone()
        if part.grad and (leaf.is_floating_point() or leaf.is_complex()):
            leaves[name] = leaf.requires_grad_()
        return place(part, leaf)

    args: list[Any] = []
    kwargs = copy.deepcopy(dict(case.kwargs))
    for number, each in enumerate(case.inputs):
        name = _name(number, each)
        if isinstance(each, tuple):
            args.append([argument(f"{name}[{i}]", part) for i, part in enumerate(each)])
        elif each.name is None:
            args.append(argument(name, each))
        else:
            kwargs[each.name] = argument(name, each)
    return Twin(function, args, kwargs, leaves)


def _tensors(case: Case) -> Iterator[tuple[str, Input]]:
    """The inputs that are tensors, by name."""
    for number, each in enumerate(case.inputs):
        parts = enumerate(each) if isinstance(each, tuple) else [(-1, each)]
        for place, part in parts:
            if isinstance(part, Input):
                yield _name(number, each) + (f"[{place}]" if place >= 0 else ""), part


def _name(number: int, argument: Any) -> str:
    keyword = getattr(argument, "name", None)
    return f"input {number}" if keyword is None else f"input {keyword}"


def _draw_input(part: Input, default: str, generator: Generator) -> Tensor:
    """An input's values, on the CPU."""
    dtype: torch.dtype = getattr(torch, part.dtype or default)
    shape, values = shape_of(part), part.values
    if isinstance(values, str):
        return draw(shape, dtype, generator)
    if "integers" in values:
        low, high = values["integers"]
        integers = torch.randint(low, high, shape, generator=generator)
        return integers.to(dtype) if part.dtype else integers
    if "tensor" in values:
        tensor = torch.tensor(values["tensor"])
        keeps = part.dtype is None and tensor.dtype == torch.bool
        # From the numbers themselves: on the way they would be rounded to float32.
        return tensor if keeps else torch.tensor(values["tensor"], dtype=dtype)
    double = torch.complex128 if dtype.is_complex else torch.float64
    normal = draw(shape, double, generator)
    return normal.mul(float(values["std"])).add(float(values["mean"])).to(dtype)


def _in_memory(part: Input, tensor: Tensor) -> Tensor:
    """The tensor, or one of the same values that lies in memory with gaps."""
    return tensor if part.contiguous else torch.stack([tensor, tensor], -1)[..., 0]


def _function(case: Case, generator: Generator, device: str) -> Callable[..., Any]:
    if case.module is None:
        assert case.function is not None
        found: Callable[..., Any] = find_name(case.function, "function")
        return found
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(case))
        module = build_module(case.module)
    module = module.to(device=device, dtype=dtype_of(case)).train(case.training)
    with torch.no_grad():
        for parameter in module.parameters():
            shift = draw(tuple(parameter.shape), parameter.dtype, generator)
            parameter.add_(shift.to(device), alpha=_SHIFT)
        for buffer in module.buffers():
            if buffer.is_floating_point():  # upwards: a variance stays positive
                share = torch.rand(buffer.shape, generator=generator, dtype=torch.float64)
                buffer.add_((buffer.abs() + 1) * share.to(device, buffer.dtype), alpha=_SHIFT)
    return module
