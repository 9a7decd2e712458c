"""Linear and bilinear layers and products of matrices, as products of labelled dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.contractions import (
    Labels,
    divide,
    product,
    raise_as_torch,
    refuse_options,
)
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.registry import name_of, sharded, sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in


@sharded("linear")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> ShardTensor:
    """`input @ weight.T + bias`; the bias is added once, after sums over ranks."""
    if input.ndim == 0 or weight.ndim not in (1, 2):
        raise_as_torch(F.linear, input, weight, bias)
    input = _sharded_if_none_is(input, weight, bias=bias)
    batch: list[int] = list(range(input.ndim - 1))
    rows = ["out"] * (weight.ndim - 1)
    labels: list[Labels] = [[*batch, "in"], [*rows, "in"]]
    division = divide((input, weight), labels)
    if bias is not None and not division.axes_without([*batch, *rows]) and bias.ndim == 1:
        operands = (input, weight, bias)
        return product(F.linear, operands, [*labels, rows], [*batch, *rows], division=division)
    factors = (input, weight)
    return product(F.linear, factors, labels, [*batch, *rows], division=division, term=bias)


@sharded("bilinear")
def bilinear(
    input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ShardTensor:
    """`input1 @ weight @ input2` for each output feature, and the bias."""
    if input1.ndim == 0 or weight.ndim != 3:
        raise_as_torch(F.bilinear, input1, input2, weight, bias)
    input1 = _sharded_if_none_is(input1, input2, weight, bias=bias)
    batch = [f"batch{dim}" for dim in range(input1.ndim - 1)]
    labels = [[*batch, "in1"], [*batch, "in2"], ["out", "in1", "in2"]]
    return product(_bilinear, (input1, input2, weight), labels, [*batch, "out"], term=bias)


def _sharded_if_none_is(first: Tensor, *others: Tensor, bias: Tensor | None) -> Tensor:
    """The first factor; where the bias alone is sharded, as what all ranks have of it."""
    if next(shards_in((first, *others)), None) is not None:
        return first
    assert isinstance(bias, ShardTensor)
    return from_local(first, Layout.replicated(bias.sharding.mesh))


def _bilinear(input1: Tensor, input2: Tensor, weight: Tensor) -> Tensor:
    """`F.bilinear`, which has no answer for empty pieces of its inputs' features."""
    if input1.shape[-1] and input2.shape[-1]:
        return F.bilinear(input1, input2, weight)
    return torch.einsum("...i,oij,...j->...o", input1, weight, input2)


@sharded("matmul", "__matmul__")
def matmul(input: Tensor, other: Tensor, **options: Any) -> ShardTensor:
    """The product of matrices or vectors, over broadcast batch dimensions."""
    refuse_options("matmul", next(shards_in((input, other))).sharding, options)
    if not input.ndim or not other.ndim:
        raise_as_torch(torch.matmul, input, other)
    row, column = ["n"] * (input.ndim > 1), ["m"] * (other.ndim > 1)
    first, second = _batch(input.ndim - 2), _batch(other.ndim - 2)
    labels: list[Labels] = [[*first, *row, "k"], [*second, "k", *column]]
    batch = max(first, second, key=len)
    return product(torch.matmul, (input, other), labels, [*batch, *row, *column])


@sharded("__rmatmul__")
def rmatmul(input: Tensor, other: Tensor) -> ShardTensor:
    """`other @ input`."""
    return matmul(other, input)


def _batch(count: int) -> list[int]:
    """Labels of batch dimensions, which are aligned at their ends."""
    return list(range(-count, 0))


_PRODUCTS = {  # labels of both operands and of the result
    "mm": ("nk", "km", "nm"),
    "bmm": ("bnk", "bkm", "bnm"),
    "mv": ("nk", "k", "n"),
    "dot": ("k", "k", ""),
    "vdot": ("k", "k", ""),
    "outer": ("n", "m", "nm"),
    "ger": ("n", "m", "nm"),
    "addmm": ("nk", "km", "nm"),
    "addmv": ("nk", "k", "n"),
    "addr": ("n", "m", "nm"),
    "baddbmm": ("bnk", "bkm", "bnm"),
    "addbmm": ("bnk", "bkm", "nm"),
}


@sharded_alike("mm", "bmm", "mv", "dot", "vdot", "outer", "ger")
def two_factors(
    function: Callable[..., Tensor], input: Tensor, other: Tensor, **options: Any
) -> ShardTensor:
    """Products of two tensors whose dimensions are always the same ones."""
    name = name_of(function)
    refuse_options(name, next(shards_in((input, other))).sharding, options)
    first, second, result = _PRODUCTS[name]
    return product(function, (input, other), [first, second], result)


@sharded_alike("addmm", "addmv", "addr", "baddbmm", "addbmm")
def factors_and_term(
    function: Callable[..., Tensor],
    input: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    **options: Any,
) -> ShardTensor:
    """`beta * input + alpha * first @ second`."""
    name = name_of(function)
    refuse_options(name, next(shards_in((input, first, second))).sharding, options)
    if not any(isinstance(each, ShardTensor) for each in (first, second)):
        layout = next(shards_in(input)).sharding
        first = from_local(first, Layout.replicated(layout.mesh))
    left, right, result = _PRODUCTS[name]
    factors, labels = (first, second), [left, right]
    return product(_BARE[name], factors, labels, result, term=input, beta=beta, alpha=alpha)


def _sum_of_products(first: Tensor, second: Tensor) -> Tensor:
    return torch.bmm(first, second).sum(0)


_BARE: dict[str, Callable[..., Tensor]] = {
    "addmm": torch.mm,
    "addmv": torch.mv,
    "addr": torch.outer,
    "baddbmm": torch.bmm,
    "addbmm": _sum_of_products,
}


@sharded("inner")
def inner(input: Tensor, other: Tensor, **options: Any) -> ShardTensor:
    """Sums over both last dimensions; of a number, its multiples are refused."""
    refuse_options("inner", next(shards_in((input, other))).sharding, options)
    if not input.ndim or not other.ndim:
        raise_as_torch(torch.inner, input, other)
    left = [f"left{dim}" for dim in range(input.ndim - 1)]
    right = [f"right{dim}" for dim in range(other.ndim - 1)]
    return product(torch.inner, (input, other), [[*left, "k"], [*right, "k"]], [*left, *right])


@sharded("vecdot")
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1, **options: Any) -> ShardTensor:
    """Sums over one dimension of both, the first one conjugated."""
    refuse_options("vecdot", next(shards_in((x, y))).sharding, options)
    count = max(x.ndim, y.ndim)
    if not -count <= dim < count:
        raise_as_torch(torch.linalg.vecdot, x, y, dim=dim)
    dim = dim - count if dim >= 0 else dim

    def compute(x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = torch.linalg.vecdot(x, y, dim=dim)
        return result

    kept = [label for label in _batch(count) if label != dim]
    return product(compute, (x, y), [_batch(x.ndim), _batch(y.ndim)], kept)


@sharded("tensordot")
def tensordot(a: Tensor, b: Tensor, dims: Any = 2, out: Tensor | None = None) -> ShardTensor:
    """Sums over pairs of dimensions."""
    refuse_options("tensordot", next(shards_in((a, b))).sharding, {"out": out})
    firsts, seconds = _pairs(a, b, dims)
    if len(firsts) != len(seconds):
        raise_as_torch(torch.tensordot, a, b, dims)
    left: list[int] = list(range(a.ndim))
    right = list(range(a.ndim, a.ndim + b.ndim))
    for first, second in zip(firsts, seconds, strict=True):
        right[second] = left[first]
    summed = {left[first] for first in firsts}
    result = [label for label in (*left, *right) if label not in summed]

    def compute(a: Tensor, b: Tensor) -> Tensor:
        result: Tensor = torch.tensordot(a, b, (firsts, seconds))
        return result

    return product(compute, (a, b), [left, right], result)


def _pairs(a: Tensor, b: Tensor, dims: Any) -> tuple[list[int], list[int]]:
    """The dimensions of both tensors that are summed over."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, Sequence) and len(dims) == 2:
        firsts, seconds = (
            [int(each)] if isinstance(each, int) else [int(dim) for dim in each] for each in dims
        )
        return firsts, seconds
    count = int(dims[0] if isinstance(dims, Sequence) else dims)
    return list(range(a.ndim - count, a.ndim)), list(range(count))
