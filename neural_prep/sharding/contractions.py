"""Products of tensors whose dimensions have labels, as in Einstein's notation, divided over ranks.

Whatever is linear in each of its operands is such a product. Along each mesh axis one label is cut:
all operands that have it are cut alike, others enter the divided work whole, and where the result
does not have it, the ranks' partial products are summed.

Labels are numbers or text. A dimension labelled by a number broadcasts: it is 1 or as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.operands import operand, reduce_over
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local
from neural_prep.sharding.transport import summed_in
from neural_prep.sharding.trees import map_tensors

Label = int | str
Labels = Sequence[Label]


@dataclass(frozen=True, slots=True)
class Division:
    """How work is divided.

    Attributes:
        mesh: The ranks.
        cuts: For each mesh axis the label that is cut along it with every rank's part, or None.
    """

    mesh: DeviceMesh
    cuts: tuple[tuple[Label, tuple[int, ...]] | None, ...]

    @property
    def work(self) -> Layout:
        """A layout that cuts something along each axis that divides the work."""
        return Layout(self.mesh, _work(self.cuts))

    def layout(self, labels: Labels, shape: Sequence[int]) -> Layout:
        """How a tensor with these labels is cut; dimensions that broadcast are not."""
        return Layout(self.mesh, _cuts_of(self.cuts, labels, shape))

    def axes_without(self, labels: Labels) -> list[int]:
        """The axes that cut a label which is none of these."""
        return [axis for axis, cut in enumerate(self.cuts) if cut and cut[0] not in labels]

    def part(self, label: Label, size: int) -> tuple[int, int]:
        """Where this rank's part of a label begins, and its size."""
        for axis, cut in enumerate(self.cuts):
            if cut is not None and cut[0] == label:
                rank = int(self.mesh.get_local_rank(axis))
                return sum(cut[1][:rank]), cut[1][rank]
        return 0, size


def product(
    compute: Callable[..., Tensor],
    operands: Sequence[Tensor],
    labels: Sequence[Labels],
    result: Labels,
    *,
    division: Division | None = None,
    term: Tensor | None = None,
    beta: Any = 1,
    alpha: Any = 1,
) -> ShardTensor:
    """The sharded version of a function that is linear in each operand.

    Sums over ranks of 16-bit floats are formed in float32, and rounded once.

    Args:
        compute: The function, of the operands alone.
        operands: At least one of them is sharded.
        labels: For each operand its dimensions' labels.
        result: The result's labels.
        division: How to divide the work; by default so that the largest operand stays as it is.
        term: What is added: `beta * term + alpha * product`.
        beta: Its factor.
        alpha: That of the product.

    Raises:
        RuntimeError: what torch raises where labels and shapes don't fit.
    """
    shapes, names = _shapes(operands), _names(labels)
    if _sizes(shapes, names) is None:
        raise_as_torch(compute, *operands)
    _check_dtypes(operands)
    division = division or divide(operands, labels)
    plan = _plan(shapes, names, tuple(result), division.cuts)
    mesh = division.mesh
    work = Layout(mesh, plan.work)
    pieces = [
        operand(tensor, Layout(mesh, cuts), work)
        for tensor, cuts in zip(operands, plan.operands, strict=True)
    ]
    narrow = operands[0].dtype
    wide = summed_in(narrow) if plan.summed else narrow
    whole = reduce_over(compute(*(piece.to(wide) for piece in pieces)), work, *plan.summed)
    found = from_local(whole, Layout(mesh, plan.result))
    found = found if term is None else plus(found, term, beta, alpha)
    return found if wide == narrow else from_local(to_local(found).to(narrow), found.sharding)


def divide(operands: Sequence[Tensor], labels: Sequence[Labels]) -> Division:
    """Divides work so that the largest operands stay as they are.

    A label that an operand has twice is not cut: its diagonal lies across pieces.
    """
    mesh = next(shards_in(operands)).sharding.mesh
    cuts = tuple(each.sharding.cuts if isinstance(each, ShardTensor) else None for each in operands)
    return Division(mesh, _divide(_shapes(operands), _names(labels), cuts, mesh.ndim))


def sizes_of(operands: Sequence[Tensor], labels: Sequence[Labels]) -> dict[Label, int] | None:
    """Each label's size; None: labels and shapes don't fit."""
    return _sizes(_shapes(operands), _names(labels))


Shapes = tuple[tuple[int, ...], ...]
Names = tuple[tuple[Label, ...], ...]
Divided = tuple[tuple[Label, tuple[int, ...]] | None, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What each rank does for a product.

    Attributes:
        work: Cuts of a layout that cuts something along each axis that divides the work.
        operands: Each operand's cuts.
        result: The result's.
        summed: The axes over which partial products are summed.
    """

    work: tuple[Cut | None, ...]
    operands: tuple[tuple[Cut | None, ...], ...]
    result: tuple[Cut | None, ...]
    summed: tuple[int, ...]


@lru_cache(maxsize=1024)
def _plan(shapes: Shapes, names: Names, result: tuple[Label, ...], cuts: Divided) -> _Plan:
    sizes = _sizes(shapes, names)
    assert sizes is not None
    return _Plan(
        work=_work(cuts),
        operands=tuple(
            _cuts_of(cuts, labels, shape) for shape, labels in zip(shapes, names, strict=True)
        ),
        result=_cuts_of(cuts, result, [sizes[label] for label in result]),
        summed=tuple(axis for axis, cut in enumerate(cuts) if cut and cut[0] not in result),
    )


@lru_cache(maxsize=1024)
def _divide(
    shapes: Shapes, names: Names, cuts: tuple[tuple[Cut | None, ...] | None, ...], axes: int
) -> Divided:
    """The label that is cut along each axis: operands with more elements choose first."""
    twice = {label for labels in names for label in labels if labels.count(label) > 1}
    found: list[tuple[Label, tuple[int, ...]] | None] = [None] * axes
    taken = set(twice)
    sizes = _sizes(shapes, names) or {}
    for place in sorted(range(len(shapes)), key=lambda each: -prod(shapes[each])):
        for axis, cut in enumerate(cuts[place] or ()):
            if cut is None or found[axis] is not None:
                continue
            label = names[place][cut.dim]
            if label not in taken and sizes.get(label) == cut.total:
                found[axis] = (label, cut.sizes)
                taken.add(label)
    return tuple(found)


@lru_cache(maxsize=1024)
def _sizes(shapes: Shapes, names: Names) -> dict[Label, int] | None:
    sizes: dict[Label, int] = {}
    for shape, labels in zip(shapes, names, strict=True):
        if len(shape) != len(labels):
            return None
        for label, size in zip(labels, shape, strict=True):
            known = sizes.setdefault(label, size)
            if known == size:
                continue
            if isinstance(label, str) or 1 not in (known, size):
                return None
            sizes[label] = size if known == 1 else known
    return sizes


def _work(cuts: Divided) -> tuple[Cut | None, ...]:
    return tuple(None if cut is None else Cut(axis, cut[1]) for axis, cut in enumerate(cuts))


def _cuts_of(cuts: Divided, labels: Labels, shape: Sequence[int]) -> tuple[Cut | None, ...]:
    """The cuts of a tensor with these labels; dimensions that broadcast are not cut."""
    return tuple(_cut(cut, labels, shape) for cut in cuts)


def _cut(
    cut: tuple[Label, tuple[int, ...]] | None, labels: Labels, shape: Sequence[int]
) -> Cut | None:
    if cut is None or cut[0] not in labels:
        return None
    dim = list(labels).index(cut[0])
    return Cut(dim, cut[1]) if shape[dim] == sum(cut[1]) else None


def _shapes(tensors: Sequence[Tensor]) -> Shapes:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def _names(labels: Sequence[Labels]) -> Names:
    return tuple(map(tuple, labels))


def _check_dtypes(operands: Sequence[Tensor]) -> None:
    """Raises where torch would, but on all ranks: torch does not look at empty pieces."""
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in operands))
    if len(dtypes) > 1 and not torch.is_autocast_enabled(operands[0].device.type):
        raise RuntimeError(
            f"expected all operands to have the same dtype, but got {', '.join(map(str, dtypes))}"
        )


def plus(result: ShardTensor, term: Tensor, beta: Any = 1, alpha: Any = 1) -> ShardTensor:
    """`beta * term + alpha * result`, once for all ranks; the term broadcasts to the result.

    A term that is multiplied by zero is ignored, NaN and all, as torch has it.
    """
    layout, shift = result.sharding, result.ndim - term.ndim
    if shift < 0 or any(
        size not in (1, total) for size, total in zip(term.shape, result.shape[shift:], strict=True)
    ):
        raise_as_torch(lambda a, b: a.expand(b.shape), term, result)
    target = Layout(
        layout.mesh,
        tuple(
            Cut(cut.dim - shift, cut.sizes)
            if cut and cut.dim >= shift and term.shape[cut.dim - shift] == cut.total
            else None
            for cut in layout.cuts
        ),
    )
    piece = operand(term, target, layout)
    local = result.local
    if torch.is_autocast_enabled(local.device.type):
        piece = piece.to(local.dtype)
    scaled = local if alpha == 1 else alpha * local
    if beta == 0:
        # Keeps the term in the graph, with a gradient of zeros, as on one rank.
        piece = torch.where(torch.ones_like(piece, dtype=torch.bool), 0, piece)
    elif beta != 1:
        piece = beta * piece
    return from_local(piece + scaled, layout)


def raise_as_torch(function: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
    """Raises what torch raises for the arguments' global shapes; refuses, should it raise nothing.

    It works on tensors without values, so that every rank raises alike.
    """

    def blank(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    function(*map_tensors(blank, list(args)), **map_tensors(blank, kwargs))
    layout = next(shards_in((args, kwargs))).sharding
    name = getattr(function, "__name__", "a product")
    raise refusal(name, layout, "is not sharded for these shapes")


def refuse_options(name: str, layout: Layout, options: Mapping[str, Any]) -> None:
    """Refuses arguments, such as `out`, that have no sharded meaning unless they are left out."""
    for option, value in options.items():
        if value is not None and value is not False:
            raise refusal(name, layout, f"is not sharded with {option}={value!r}"[:200])
