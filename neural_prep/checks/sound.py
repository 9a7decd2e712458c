"""Whether a case makes sense: its meshes, cuts, sizes and values, on every number of ranks."""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping
from typing import Any

import torch

from neural_prep.checks.cases import Case, Constant, Input
from neural_prep.checks.names import find_class, unknown
from neural_prep.errors import InputError

_DTYPES = sorted(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))
_VALUES = {("mean", "std"), ("integers",), ("tensor",)}


def check_numbers(values: Mapping[str, Any], where: str = "") -> None:
    """Checks what defaults and cases have in common.

    Raises:
        InputError: if a dtype, a number of ranks or a tolerance is none.
    """
    prefix = f"{where}: " if where else ""
    if "dtype" in values:
        _check_dtype(values["dtype"], prefix)
    ranks = values.get("ranks", (1,))
    if not ranks or min(ranks) < 1 or len(set(ranks)) < len(ranks):
        raise InputError(f"{prefix}ranks: found {list(ranks)}, expected numbers of ranks")
    for key in ("rtol", "atol"):
        if not 0.0 <= values.get(key, 0.0) < math.inf:
            raise InputError(f"{prefix}{key}: found {values[key]}, expected a number from 0")


def check_exception(name: str) -> None:
    """Checks that an exception is built in, or can be imported.

    Raises:
        InputError: if not.
    """
    if "." in name:
        find_class(name, BaseException, "raises")
        return
    known = [each for each in dir(builtins) if _is_exception(getattr(builtins, each))]
    if name not in known:
        raise InputError(f"raises: {unknown(name, known).replace('a known key', 'an exception')}")


def check(case: Case) -> None:
    """Checks a case whose types are right.

    Raises:
        InputError: naming the input and key, what was found and what was expected.
    """
    _check_mesh(case)
    names = set(case.kwargs)
    for number, argument in enumerate(case.inputs):
        parts = argument if isinstance(argument, tuple) else (argument,)
        for place, part in enumerate(parts):
            inside = f"[{place}]" if isinstance(argument, tuple) else ""
            where = f"inputs[{number}]{inside}: "
            if part.name is not None and part.name in names:
                raise InputError(f"{where}name: {part.name} is given twice; keep one")
            names |= set() if part.name is None else {part.name}
            if isinstance(part, Constant):
                continue
            _check_input(part, where)
            for ranks in sorted({*case.ranks, *part.sizes}):
                _check_cut(part, case, ranks, where)


def _check_mesh(case: Case) -> None:
    if case.own_ranks is None:
        return
    if not case.mesh or min(case.mesh.values()) < 1:
        raise InputError(f"mesh: found {case.mesh}, expected the size of each axis")
    if case.ranks != (case.own_ranks,):
        raise InputError(
            f"mesh: {dict(case.mesh)} has {case.own_ranks} ranks, but ranks is "
            f"{list(case.ranks)}; expected ranks: [{case.own_ranks}]"
        )


def _check_input(part: Input, where: str) -> None:
    if part.dtype is not None:
        _check_dtype(part.dtype, where)
    _check_values(part, where)
    if part.shape is None and not _has_tensor(part):
        raise InputError(f"{where}shape is not given")
    if part.shape is not None and any(size < 0 for size in part.shape):
        raise InputError(f"{where}shape: found {list(part.shape)}, expected sizes of 0 or more")
    if _has_tensor(part) and part.shape not in (None, shape_of(part)):
        raise InputError(
            f"{where}shape: found {list(part.shape or ())}, but values is a tensor of "
            f"{list(shape_of(part))}; leave it out"
        )
    if part.plain and part.cut:
        raise InputError(f"{where}plain: an ordinary tensor is not cut; leave out plain or cut")
    if part.sizes and not part.cut:
        raise InputError(f"{where}sizes: nothing is cut; give cut, too")


def _check_values(part: Input, where: str) -> None:
    values = part.values
    if values == "normal":
        return
    expected = "expected normal, {mean: , std: }, {integers: [low, high]} or {tensor: }"
    if not isinstance(values, Mapping) or tuple(sorted(values)) not in _VALUES:
        raise InputError(f"{where}values: found {values!r}, {expected}")
    if "mean" in values and not all(isinstance(each, int | float) for each in values.values()):
        raise InputError(f"{where}values: found {dict(values)}, expected numbers")
    if "integers" in values:
        bounds = values["integers"]
        if not _are_bounds(bounds):
            raise InputError(f"{where}values: integers: found {bounds!r}, expected [low, high]")
    if "tensor" in values:
        try:
            torch.tensor(values["tensor"])
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{where}values: tensor: {error}") from error


def shape_of(part: Input) -> tuple[int, ...]:
    """The shape of an input, given or that of its values."""
    if part.shape is not None and not _has_tensor(part):
        return part.shape
    assert isinstance(part.values, Mapping)
    return tuple(torch.tensor(part.values["tensor"]).shape)


def _has_tensor(part: Input) -> bool:
    return isinstance(part.values, Mapping) and "tensor" in part.values


def _are_bounds(bounds: Any) -> bool:
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        return False
    return all(isinstance(each, int) for each in bounds) and bounds[0] < bounds[1]


def _check_cut(part: Input, case: Case, ranks: int, where: str) -> None:
    """Checks how an input is cut on so many ranks."""
    mesh, shape = case.mesh_on(ranks), shape_of(part)
    dims: dict[int, str] = {}
    for axis, dim in part.cut.items():
        if axis not in mesh:
            raise InputError(f"{where}cut: {axis} is no axis of the mesh; it has {', '.join(mesh)}")
        if not -len(shape) <= dim < len(shape):
            raise InputError(f"{where}cut: {axis}: dim {dim} of a shape {list(shape)}")
        if dim % len(shape) in dims:
            other = dims[dim % len(shape)]
            raise InputError(f"{where}cut: dim {dim} is cut along both {other} and {axis}")
        dims[dim % len(shape)] = axis
    sizes = part.sizes.get(ranks)
    if sizes is None:
        return
    at = f"{where}sizes: {ranks}: "
    if case.own_ranks not in (None, ranks):
        raise InputError(f"{at}the mesh has {case.own_ranks} ranks")
    if len(sizes) != len(part.cut):
        raise InputError(
            f"{at}found {len(sizes)} lists, expected one for each of {len(part.cut)} cuts"
        )
    for (axis, dim), pieces in zip(part.cut.items(), sizes, strict=True):
        if len(pieces) != mesh[axis] or min(pieces) < 0:
            raise InputError(
                f"{at}found {list(pieces)} along {axis}, expected a size for each of "
                f"{mesh[axis]} ranks"
            )
        if sum(pieces) != shape[dim]:
            raise InputError(
                f"{at}{list(pieces)} along {axis} add up to {sum(pieces)}, expected {shape[dim]}, "
                f"the size of dim {dim}"
            )


def _check_dtype(name: str, prefix: str) -> None:
    if name not in _DTYPES:
        raise InputError(
            f"{prefix}dtype: {unknown(name, _DTYPES).replace('a known key', 'a dtype')}"
        )


def _is_exception(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, BaseException)
