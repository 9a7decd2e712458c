"""What all ranks have called a collective with, compared: all raise the same, or none does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from neural_prep.sharding.layout import Layout


@dataclass(frozen=True, slots=True)
class Call:
    """What one rank has called a collective with."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int
    sizes: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    matrix: tuple[tuple[int, ...], ...] = ()
    ends: tuple[int, int] = (0, -1)
    root: int = 0
    halo: tuple[int, int, str] = (0, 0, "none")
    mode: str = ""
    requires_grad: bool = False


def compare(
    name: str, tensor: Tensor, dim: int, group: ProcessGroup | None, **what: object
) -> list[Call]:
    """All ranks' calls, in order of ranks."""
    what["requires_grad"] = tensor.requires_grad and torch.is_grad_enabled()
    mine = Call(name, tuple(tensor.shape), tensor.dtype, dim, **what)  # type: ignore[arg-type]
    calls: list[Call | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(calls, mine, group)
    found = [call for call in calls if call is not None]
    check_agreement(name, found, "name", "dim")
    return found


def taking_part(tensor: Tensor, calls: Sequence[Call]) -> Tensor:
    """The tensor, with a gradient if any rank's has one: all take part in backward, or none."""
    if tensor.requires_grad or not any(call.requires_grad for call in calls):
        return tensor
    return tensor.detach().requires_grad_()


def check_agreement(name: str, calls: Sequence[Call], *what: str) -> None:
    """Raises where a rank's call is not rank 0's."""
    show: Callable[[object], object] = lambda value: (  # noqa: E731
        list(value) if isinstance(value, tuple) else value
    )
    for field in what:
        expected = getattr(calls[0], field)
        for rank, call in enumerate(calls):
            value = getattr(call, field)
            if value != expected:
                raise ValueError(
                    f"{name}: {field} on rank {rank} is {show(value)}, on rank 0 {show(expected)}; "
                    "expected the same on all ranks"
                )


def check_root(name: str, root: int, ranks: int) -> None:
    """Raises unless the rank is one of the group's."""
    if not 0 <= root < ranks:
        raise ValueError(f"{name}: rank {root} is not in the group; it has {ranks} ranks")


def check_count(name: str, sizes: Sequence[object], ranks: int) -> None:
    """Raises unless there is one size for each rank, and none below 0."""
    if len(sizes) != ranks:
        raise ValueError(f"{name}: {len(sizes)} sizes for {ranks} ranks; expected one for each")
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise ValueError(f"{name}: sizes {list(sizes)}; expected none below 0")


def dim_of(name: str, calls: Sequence[Call], rank: int) -> int:
    """The dimension, counted from the front."""
    dim, ndim = calls[rank].dim, len(calls[rank].shape)
    if not -ndim <= dim < ndim:
        raise ValueError(f"{name}: dim {dim} of {list(calls[rank].shape)} on rank {rank}")
    return dim % ndim


def check_total(name: str, calls: Sequence[Call], rank: int, dim: int, total: int) -> None:
    """Raises unless a rank's tensor is as long along `dim` as its sizes add up to."""
    if calls[rank].shape[dim] != total:
        raise ValueError(
            f"{name}: dim {dim} of rank {rank} has {calls[rank].shape[dim]} elements; its sizes "
            f"add up to {total}"
        )


def check_other_dims(name: str, calls: Sequence[Call]) -> int:
    """The dimension; raises unless all others are the same on all ranks."""
    dim = dim_of(name, calls, 0)
    expected = calls[0].shape
    for rank, call in enumerate(calls):
        if (
            len(call.shape) != len(expected)
            or call.shape[:dim] != expected[:dim]
            or call.shape[dim + 1 :] != expected[dim + 1 :]
        ):
            raise ValueError(
                f"{name}: shape {list(call.shape)} on rank {rank}, {list(expected)} on rank 0; "
                f"expected the same but for dim {dim}"
            )
    return dim


def check_pieces(name: str, calls: Sequence[Call], sizes: Sequence[int]) -> int:
    """The dimension; raises unless every rank's piece is as long as its size says."""
    dim = check_other_dims(name, calls)
    check_count(name, sizes, len(calls))
    for rank, (call, size) in enumerate(zip(calls, sizes, strict=True)):
        if call.shape[dim] != size:
            raise ValueError(
                f"{name}: rank {rank} has {call.shape[dim]} elements along dim {dim}; its size "
                f"is {size} of {list(sizes)}"
            )
    return dim


def agree_on_pieces(local: Tensor, layout: Layout) -> Tensor:
    """This rank's piece, with a gradient if any rank's has one.

    Raises:
        ValueError: on all ranks, unless all pieces fit the one layout that all of them give.
    """
    mesh = layout.mesh
    place, graph = tuple(mesh.get_coordinate() or ()), local.requires_grad
    mine = (tuple(local.shape), local.dtype, layout.cuts, place, graph)
    found: list[Any] = [mine]
    for axis in range(mesh.ndim):
        lists: list[Any] = [None] * mesh.size(axis)
        dist.all_gather_object(lists, found, mesh.get_group(axis))
        found = [each for part in lists for each in part]
    _, dtype, cuts, _, _ = found[0]
    for _, cut in layout.cut_axes():
        if any(cut.dim >= len(piece) for piece, *_ in found):
            pieces = [list(piece) for piece, *_ in found]
            raise ValueError(f"from_local: dim {cut.dim} is cut, but pieces are {pieces}")
    shape = layout.global_shape(found[0][0])
    for piece, its_dtype, its_cuts, place, _ in found:
        if (its_dtype, its_cuts) != (dtype, cuts):
            raise ValueError(
                f"from_local: the rank at {place} of the mesh gives {its_dtype} and {its_cuts}, "
                f"the first {dtype} and {cuts}; expected the same"
            )
        expected = list(shape)
        for axis, cut in layout.cut_axes():
            expected[cut.dim] = cut.sizes[place[axis]]
        if list(piece) != expected:
            raise ValueError(
                f"from_local: the rank at {place} of the mesh gives a piece of {list(piece)}; "
                f"expected {expected}"
            )
    if any(graph for *_, graph in found) and not local.requires_grad:
        return local.detach().requires_grad_()
    return local
