"""What a check is: a module or a function, its inputs, and how they are cut.

A case is plain data. It can be sent to a rank, and nothing is built before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

FLOAT32 = 1.0e-5  # rtol and atol of a case that is run in float32 instead


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for every case that does not say otherwise.

    Attributes:
        dtype: Of parameters, and of inputs that have none of their own.
        ranks: Numbers of ranks on which a case is checked.
        rtol: Error that is allowed, relative to the largest value of a tensor.
        atol: Error that is allowed besides.
    """

    dtype: str = "float64"
    ranks: tuple[int, ...] = (1, 2, 3)
    rtol: float = 1.0e-12
    atol: float = 1.0e-12


_USUAL = Defaults()


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that is given to the module or function.

    Attributes:
        shape: Its global shape; that of `values`, where those are a tensor.
        cut: By mesh axis, the dimension that is cut along it. Without it every rank has all of it.
        sizes: By number of ranks, each rank's part for each entry of `cut`; else as even as can be.
        grad: Whether its gradient is checked; that of integers and booleans never is.
        dtype: Its own; else the case's, int64 of `integers`, and bool of booleans.
        values: `normal`, `{mean: ..., std: ...}`, `{integers: [low, high]}` with `high` left out,
            or `{tensor: [...]}`.
        name: The keyword that it is given as.
        plain: Whether it is an ordinary tensor.
        contiguous: Whether it, or each piece of it, is contiguous in memory.
    """

    shape: tuple[int, ...] | None = None
    cut: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    grad: bool = True
    dtype: str | None = None
    values: str | Mapping[str, Any] = "normal"
    name: str | None = None
    plain: bool = False
    contiguous: bool = True


@dataclass(frozen=True, slots=True)
class Constant:
    """An argument that is no tensor: an equation, a number.

    Attributes:
        value: It.
        name: The keyword that it is given as.
    """

    value: Any
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    """A module that is built when its case runs.

    Attributes:
        class_path: Import path of its class.
        init_args: Arguments of its constructor.
    """

    class_path: str
    init_args: Mapping[str, Any] = field(default_factory=dict)


Argument = Input | Constant | tuple[Input | Constant, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One check.

    Attributes:
        name: What it is called.
        inputs: Arguments in order, or by keyword; several in a list are one list.
        module: What is checked; or
        function: The import path of what is checked.
        kwargs: Keyword arguments that are no tensors.
        mesh: Sizes of the mesh's axes; without it all ranks are along one axis, `domain`.
        raises: The exception that is expected, on every rank.
        training: Whether a module is in training mode.
        dtype: See `Defaults`; so are `ranks`, `rtol` and `atol`.
        has_own_dtype: Whether the case sets `dtype` itself: it is checked in that alone.
    """

    name: str
    inputs: tuple[Argument, ...]
    module: ModuleSpec | None = None
    function: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    mesh: Mapping[str, int] | None = None
    raises: str | None = None
    training: bool = True
    dtype: str = _USUAL.dtype
    ranks: tuple[int, ...] = _USUAL.ranks
    rtol: float = _USUAL.rtol
    atol: float = _USUAL.atol
    has_own_dtype: bool = False

    def __str__(self) -> str:
        """The name, and the dtype if that is not the usual one."""
        return self.name if self.dtype == _USUAL.dtype else f"{self.name}-{self.dtype}"

    def mesh_on(self, ranks: int) -> dict[str, int]:
        """Sizes of the mesh's axes, on so many ranks.

        >>> Case("a", ()).mesh_on(3)
        {'domain': 3}
        """
        return {"domain": ranks} if self.mesh is None else dict(self.mesh)

    def tensors(self) -> Iterator[Input]:
        """All inputs that are tensors."""
        for argument in self.inputs:
            for part in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(part, Input):
                    yield part

    @property
    def own_ranks(self) -> int | None:
        """The only number of ranks that its mesh has, if it has one."""
        return None if self.mesh is None else prod(self.mesh.values())


def in_float32(cases: Sequence[Case]) -> list[Case]:
    """The same checks in float32, to 1e-5, of those cases that don't set a dtype of their own.

    >>> [str(case) for case in in_float32([Case("a", ()), Case("b", (), has_own_dtype=True)])]
    ['a-float32']
    """
    return [
        replace(case, dtype="float32", rtol=max(FLOAT32, case.rtol), atol=max(FLOAT32, case.atol))
        for case in cases
        if not case.has_own_dtype
    ]
