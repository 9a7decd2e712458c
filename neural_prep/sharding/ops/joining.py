"""Tensors joined along a dimension that they have, or along a new one; grids of coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.broadcast import broadcast_pieces
from neural_prep.sharding.joining import join
from neural_prep.sharding.ops.reshaping import at_least, reshape, unsqueeze
from neural_prep.sharding.reduction import named_as_torch
from neural_prep.sharding.registry import name_of, sharded, sharded_alike
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local


@sharded_alike("cat", "concat", "concatenate")
def cat(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], *args: Any, **kwargs: Any
) -> Any:
    """Joins along a dimension; what is cut along another one stays cut so."""
    kwargs = named_as_torch(kwargs)
    shape, dtype = rehearse(function, tensors, *args, **kwargs)
    return join(tensors, _dim(*args, **kwargs) % len(shape), shape, dtype)


@sharded("stack")
def stack(
    tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None, out: None = None
) -> ShardTensor:
    """Joins along a new dimension, which is not cut."""
    place = dim if axis is None else axis
    shape, dtype = rehearse(torch.stack, tensors, place)
    place %= len(shape)
    return join([_unsqueezed(each, place) for each in tensors], place, shape, dtype)


@sharded_alike("hstack", "vstack", "row_stack", "dstack", "column_stack")
def stack_by_name(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], *, out: None = None
) -> Any:
    """Joins along the second, first or third dimension; too few dimensions become more first."""
    shape, dtype = rehearse(function, tensors)
    name = name_of(function)
    if name == "hstack":
        found = [at_least(torch.atleast_1d, each) for each in tensors]
        return join(found, min(1, len(shape) - 1), shape, dtype)
    if name == "column_stack":
        return join([_as_columns(each) for each in tensors], 1, shape, dtype)
    if name == "dstack":
        return join([at_least(torch.atleast_3d, each) for each in tensors], 2, shape, dtype)
    return join([at_least(torch.atleast_2d, each) for each in tensors], 0, shape, dtype)


@sharded("meshgrid")
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[ShardTensor, ...]:
    """Grids of coordinates, all of them cut alike."""
    given = _listed(tensors)
    _check_lines(given)
    options = {} if indexing is None else {"indexing": indexing}
    shape, _ = rehearse(torch.meshgrid, *given, **options)
    places = list(range(len(given)))
    if indexing == "xy":
        places[:2] = reversed(places[:2])
    lines = [_line(each, place, len(given)) for each, place in zip(given, places, strict=True)]
    pieces, layout = broadcast_pieces(lines)
    own = layout.local_shape(shape)
    return tuple(from_local(piece.expand(own), layout) for piece in pieces)


@sharded("cartesian_prod")
def cartesian_prod(*tensors: Any) -> Tensor:
    """All combinations of elements, one a row."""
    given = _listed(tensors)
    rehearse(torch.cartesian_prod, *given)
    if len(given) == 1:
        return _reshaped(given[0], -1).clone()
    grids = [reshape(each, -1) for each in meshgrid(*given, indexing="ij")]
    return stack(grids, 1)


def _dim(dim: int = 0) -> int:
    return dim


def _listed(tensors: Sequence[Any]) -> Sequence[Tensor]:
    """Tensors, whether given one by one or together."""
    together = len(tensors) == 1 and isinstance(tensors[0], list | tuple)
    return tensors[0] if together else tensors


def _check_lines(tensors: Sequence[Tensor]) -> None:
    """Raises what torch does, which cannot word it for tensors without memory."""
    for each in tensors:
        if each.ndim > 1:
            raise RuntimeError(
                "torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: a tensor of "
                f"shape {list(each.shape)}"
            )


def _line(tensor: Tensor, place: int, ndim: int) -> Tensor:
    """A vector as one dimension of a grid."""
    shape = [1] * ndim
    shape[place] = tensor.numel()
    return _reshaped(tensor, *shape)


def _as_columns(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim > 1 else _reshaped(tensor, tensor.numel(), 1)


def _unsqueezed(tensor: Tensor, dim: int) -> Tensor:
    """Not by torch's function, which would call the operand aliased."""
    return unsqueeze(tensor, dim) if isinstance(tensor, ShardTensor) else tensor.unsqueeze(dim)


def _reshaped(tensor: Tensor, *shape: int) -> Tensor:
    return reshape(tensor, *shape) if isinstance(tensor, ShardTensor) else tensor.reshape(shape)
