"""What reducing dimensions does to a sharded tensor: the layout of the result, and how parts join.

Every rank reduces its piece and keeps the reduced dimensions, of size 1, until the very end. The
parts then join over the mesh axes that cut reduced dimensions, and over no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import enter, gather
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.operands import reduce_over
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import Version, name_of, sharded_alike
from neural_prep.sharding.rehearsal import key_of, value_of
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local

_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}  # torch takes NumPy's names too

Dims = int | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Reduction:
    """One rank's part in a reduction.

    Attributes:
        local: Its piece.
        layout: How the whole is cut.
        dims: The dimensions that are reduced, not negative.
        keepdim: Whether the result keeps them.
    """

    local: Tensor
    layout: Layout
    dims: tuple[int, ...]
    keepdim: bool = True

    @classmethod
    def of(cls, tensor: Tensor, dim: Dims, keepdim: bool = True) -> Reduction:
        """The reduction of a sharded tensor; None and no dimensions mean all."""
        assert isinstance(tensor, ShardTensor)
        dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
        kept = tuple(each % tensor.ndim for each in dims) or tuple(range(tensor.ndim))
        return cls(to_local(tensor), tensor.sharding, kept, keepdim)

    @property
    def axes(self) -> tuple[int, ...]:
        """The mesh axes that cut what is reduced."""
        return tuple(axis for axis, cut in self.layout.cut_axes() if cut.dim in self.dims)

    @property
    def count(self) -> int:
        """How many elements of the whole tensor go into one of the result."""
        shape = self.layout.global_shape(self.local.shape)
        return prod(shape[dim] for dim in self.dims)

    @property
    def is_empty(self) -> bool:
        """Whether this rank has nothing to give."""
        return prod(self.local.shape[dim] for dim in self.dims) == 0

    @property
    def starts(self) -> tuple[int, ...]:
        """The global index, along each dimension, of the piece's first element."""
        cuts = {cut.dim: cut.start(self.layout.rank(axis)) for axis, cut in self.layout.cut_axes()}
        return tuple(cuts.get(dim, 0) for dim in range(self.local.ndim))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of this rank's part."""
        return tuple(1 if dim in self.dims else n for dim, n in enumerate(self.local.shape))

    def on(self, local: Tensor) -> Reduction:
        """The same reduction of another piece."""
        return replace(self, local=local)

    def add(self, part: Tensor) -> Tensor:
        """The sum of all parts: one value from then on."""
        return reduce_over(part, self.layout, *self.axes)

    def enter(self, value: Tensor) -> Tensor:
        """Lets the joined value take part in work on the pieces."""
        for axis in self.axes:
            value = enter(value, self.layout.group(axis))
        return value

    def join(self, part: Tensor, combine: Callable[[Tensor], Tensor]) -> Tensor:
        """Joins parts by a function of all of them, stacked along a new first dimension."""
        for axis in self.axes:
            part = combine(self.stack(part, axis))
        return part

    def stack(self, part: Tensor, axis: int) -> Tensor:
        """All ranks' parts along an axis."""
        ranks = self.layout.mesh.size(axis)
        return gather(part[None], [1] * ranks, 0, self.layout.group(axis))

    def finish(self, value: Tensor) -> ShardTensor:
        """The result, a value that has been joined."""
        if self.keepdim:
            return from_local(value, self.layout.with_dims({dim: dim for dim in self._kept}))
        moved = {dim: place for place, dim in enumerate(self._kept)}
        shape = [value.shape[dim] for dim in moved]
        return from_local(value.reshape(shape), self.layout.with_dims(moved))

    @property
    def _kept(self) -> list[int]:
        return [dim for dim in range(self.local.ndim) if dim not in self.dims]


def reducing(*names: str) -> Callable[[Version], Version]:
    """Registers a version of reductions, which is given the function and what torch makes of it.

    It is called with the function, the dtype of torch's (first) result, and the arguments.
    """

    def register(version: Version) -> Version:
        def reduced(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            kwargs = named_as_torch(kwargs)
            return version(function, result_dtype(function, args, kwargs), *args, **kwargs)

        sharded_alike(*names)(reduced)
        return version

    return register


def named_as_torch(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a reduction under torch's own names.

    >>> named_as_torch({"axis": 0, "keepdims": True})
    {'dim': 0, 'keepdim': True}
    """
    return {_NUMPY_NAMES.get(key, key): value for key, value in kwargs.items()}


def result_dtype(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.dtype:
    """The dtype of a reduction's first result; raises what torch raises of such arguments.

    The function runs on a tensor with as many dimensions, each of at most two elements: every rank
    finds a mistake in the arguments, whatever its piece.
    """
    if kwargs.get("out") is not None:
        layout = next(shards_in((args, kwargs))).sharding
        raise refusal(name_of(function), layout, "cannot write to out")
    kind = "cpu"  # where it runs, whatever the device of the tensors
    autocast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
    return _dtype_of(function, key_of(args), key_of(kwargs), autocast)


@lru_cache(maxsize=1024)
def _dtype_of(function: Callable[..., Any], args: Any, kwargs: Any, autocast: Any) -> torch.dtype:
    values, named = value_of(args, _small), value_of(kwargs, _small)
    result = function(*values, **named)
    first = result if isinstance(result, Tensor) else result[0]
    return first.dtype


def _small(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.zeros([min(size, 2) for size in shape], dtype=dtype)
