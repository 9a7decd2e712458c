"""Losses of classes: each target's logarithm comes from the rank that has its class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.broadcast import broadcast_pieces
from neural_prep.sharding.contractions import raise_as_torch
from neural_prep.sharding.layout import Cut, Layout, split_sizes
from neural_prep.sharding.operands import operand, reduce_over
from neural_prep.sharding.ops.losses import MEAN, NONE, cast_as_torch, reduced
from neural_prep.sharding.reduction import result_dtype
from neural_prep.sharding.registry import name_of, sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local

Function = Callable[..., Tensor]

_nn: Any = torch._C._nn


@sharded_alike(_nn.nll_loss, _nn.nll_loss2d, _nn.nll_loss_nd)
def nll_loss(
    function: Function,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> Tensor:
    """`(N, C, ...)` logarithms and `(N, ...)` classes, or one row without `N`."""
    args = (input, target, weight, NONE, ignore_index)
    dtype = _check(function, args, _fits(input, target.shape, weight))
    input, weight = cast_as_torch(dtype, input, weight)
    logs = _sharded(input, target, weight)
    return _Targets(function, logs, target, weight, ignore_index).loss(reduction)


@sharded_alike(_nn.cross_entropy_loss)
def cross_entropy_loss(
    function: Function,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """`(N, C, ...)` and `(N, ...)` classes or `(N, C, ...)` shares; or one row without `N`."""
    args = (input, target, weight, NONE, ignore_index, label_smoothing)
    dim = _class_dim(input)
    rows = target.shape
    if shares := input.shape == target.shape:
        rows = rows[:dim] + rows[dim + 1 :]
    dtype = _check(function, args, _fits(input, rows, weight))
    input, target, weight = cast_as_torch(dtype, input, target, weight)
    count = input.shape[dim]
    logs = torch.log_softmax(_sharded(input, target, weight), dim)
    assert isinstance(logs, ShardTensor)
    weighted = logs if weight is None else logs * weight.reshape(-1, *(1,) * (input.ndim - 1 - dim))
    if shares:
        if label_smoothing > 0:
            target = target * (1 - label_smoothing) + label_smoothing / count
        return reduced(-(weighted * target).sum(dim), reduction)
    targets = _Targets(_nn.nll_loss_nd, logs, target, weight, ignore_index)
    loss = targets.loss(reduction)
    if label_smoothing <= 0:
        return loss
    smooth = targets.reduce(-weighted.sum(dim), reduction)
    return (1 - label_smoothing) * loss + smooth * (label_smoothing / count)


@sharded_alike(_nn.multi_margin_loss)
def multi_margin_loss(
    function: Function,
    input: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """`(N, C)` and `(N,)` classes, or one row without `N`."""
    fits = input.ndim in (1, 2) and _fits(input, target.shape, weight)
    _check(function, (input, target, p, margin, weight, NONE), fits)
    outside = (target < 0) | (target >= input.shape[-1])
    if bool(outside.any()):
        one = target.new_full((1,), -1, dtype=torch.int64)
        _raise_as_torch(function, input, one)
    return _of_rows(function, input, target, p, margin, weight, reduction=reduction)


@sharded_alike(_nn.multilabel_margin_loss)
def multilabel_margin_loss(
    function: Function, input: Tensor, target: Tensor, reduction: int = MEAN
) -> Tensor:
    """`(N, C)` and `(N, C)`, each row of which ends with -1; or one row without `N`."""
    fits = input.ndim in (1, 2) and input.shape == target.shape
    _check(function, (input, target, NONE), fits)
    below, above = bool((target < -1).any()), bool((target >= input.shape[-1]).any())
    if below or above:
        one = torch.full((1, input.shape[-1]), -2 if below else input.shape[-1])
        _raise_as_torch(function, input, one)
    return _of_rows(function, input, target, reduction=reduction)


class _Targets:
    """Classes that are expected, and how much each of them counts."""

    def __init__(
        self,
        function: Function,
        logs: ShardTensor,
        target: Tensor,
        weight: Tensor | None,
        ignore_index: int,
    ) -> None:
        target = target.long()
        self._ignored = target == ignore_index
        dim = _class_dim(logs)
        _check_classes(target, self._ignored, logs.shape[dim])
        if weight is not None and weight.requires_grad and torch.is_grad_enabled():
            one = torch.zeros(1, logs.shape[dim]), torch.zeros(1, dtype=torch.int64)
            function(*one, torch.ones(logs.shape[dim], requires_grad=True))  # raises
        classes = torch.where(self._ignored, 0, target)
        picked = -_pick(logs, classes, dim)
        self._weights = _look_up(weight, classes) if weight is not None else torch.ones_like(picked)
        self._losses = picked * self._weights

    def loss(self, reduction: int) -> Tensor:
        """The negative logarithms of their probabilities."""
        return self.reduce(self._losses, reduction)

    def reduce(self, losses: Tensor, reduction: int) -> Tensor:
        """Losses of those that are not ignored; the mean counts each with its weight."""
        kept = losses.masked_fill(self._ignored, 0.0)
        if reduction != MEAN:
            return reduced(kept, reduction)
        return kept.sum() / self._weights.masked_fill(self._ignored, 0.0).sum()


def _pick(logs: ShardTensor, classes: Tensor, dim: int) -> ShardTensor:
    """The element of each class: ranks that don't have it add nothing."""
    axis = logs.sharding.axis_of(dim)
    if axis is not None and logs.shape[dim] == 1:  # it would count as broadcast
        logs = logs.redistribute(logs.sharding.with_cut(axis, None))
    (local, wanted), layout = broadcast_pieces([logs, classes.unsqueeze(dim)])
    axis = layout.axis_of(dim)
    cut = None if axis is None else layout.cuts[axis]
    start = 0 if axis is None or cut is None else cut.start(layout.rank(axis))
    size = local.shape[dim]
    if size:
        own = wanted - start
        found = local.gather(dim, own.clamp(0, size - 1))
        found = found.masked_fill((own < 0) | (own >= size), 0.0)
    else:
        found = connected(wanted.shape, local, local)
    if axis is not None:
        found, layout = reduce_over(found, layout, axis), layout.with_cut(axis, None)
    return from_local(found, layout).squeeze(dim)  # type: ignore[return-value]


def _look_up(weight: Tensor, classes: Tensor) -> Tensor:
    """The weight of each class, which has no gradient."""
    whole = (weight.full() if isinstance(weight, ShardTensor) else weight).detach()
    if isinstance(classes, ShardTensor):
        return from_local(whole[to_local(classes)], classes.sharding)
    return whole[classes]


def _check_classes(target: Tensor, ignored: Tensor, count: int) -> None:
    """Raises on all ranks if there is no such class as one of them expects."""
    wrong = ((target < 0) | (target >= count)) & ~ignored
    if bool(wrong.any()):
        least = torch.where(wrong, target, torch.iinfo(target.dtype).max).min()
        raise IndexError(f"Target {int(least)} is out of bounds.")


def _of_rows(
    function: Function, input: Tensor, target: Tensor, *args: Any, reduction: int
) -> Tensor:
    """A loss that needs all classes of a row together."""
    input = _sharded(input, target, *args)
    dim, layout = input.ndim - 1, input.sharding
    axis = layout.axis_of(dim)
    if axis is not None:
        free = dim > 0 and layout.axis_of(0) is None
        sizes = split_sizes(input.shape[0], layout.mesh.size(axis))
        layout = layout.with_cut(axis, Cut(0, sizes) if free else None)
    rows: Layout = layout.with_dims({0: 0} if dim else {})
    local, wanted = operand(input, layout, layout), operand(target, rows, layout)
    given = [
        operand(each, Layout.replicated(layout.mesh), layout) if isinstance(each, Tensor) else each
        for each in args
    ]
    if local.numel():
        losses = function(local, wanted, *given, NONE)
    else:
        missing = f"derivative for aten::{name_of(function)}_backward is not implemented"
        losses = connected(local.shape[:-1], local, local, curved=True, once=RuntimeError(missing))
    return reduced(from_local(losses, rows), reduction)


def _raise_as_torch(function: Function, input: Tensor, target: Tensor) -> None:
    """Raises what torch does of a target that is out of range."""
    function(torch.zeros(1, input.shape[-1], dtype=input.dtype), target)


def _check(function: Function, args: tuple[Any, ...], fits: bool) -> torch.dtype:
    """The result's dtype; raises on all ranks what torch raises of such shapes and options."""
    if not fits:
        raise_as_torch(function, *args)
    return result_dtype(function, args, {})


def _fits(input: Tensor, target: Sequence[int], weight: Tensor | None) -> bool:
    """Whether there is a target for each row, and a weight for each class."""
    dim = _class_dim(input)
    rows = [size for each, size in enumerate(input.shape) if each != dim]
    return (
        input.ndim > 0
        and list(target) == rows
        and (weight is None or list(weight.shape) == [input.shape[dim]])
    )


def _sharded(input: Tensor, *others: Any) -> ShardTensor:
    """The input as a sharded tensor, also where another argument alone is one."""
    if isinstance(input, ShardTensor):
        return input
    mesh = next(shards_in(others)).sharding.mesh
    return from_local(input, Layout.replicated(mesh))


def _class_dim(input: Tensor) -> int:
    return 0 if input.ndim == 1 else 1
