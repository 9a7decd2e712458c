"""Norms of vectors, of any order, and of matrices that are not cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.extremes import extreme, shared, without_gradient
from neural_prep.sharding.reduction import Dims, Reduction, reducing
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.roots import root
from neural_prep.sharding.shard_tensor import ShardTensor, from_local
from neural_prep.sharding.transport import summed_in

Function = Callable[..., Any]


@reducing("norm")
def _norm(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    *args: Any,
    **kwargs: Any,
) -> ShardTensor:
    """`torch.norm` and `Tensor.norm`, and `torch.linalg.norm`, whose orders mean other things."""
    if function is torch.linalg.norm:
        return _linalg_norm(result, input, *args, **kwargs)
    return _torch_norm(result, input, *args, **kwargs)


def _torch_norm(
    result: torch.dtype,
    input: Tensor,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    out: None = None,
    dtype: torch.dtype | None = None,
) -> ShardTensor:
    whole = Reduction.of(input, dim, keepdim)
    if p == "nuc":
        raise refusal("the nuclear norm", whole.layout)
    order = 2.0 if p is None or isinstance(p, str) else float(p)
    return whole.finish(_vector_norm(whole, order, dtype).to(result))


def _linalg_norm(
    result: torch.dtype,
    input: Tensor,
    ord: float | str | None = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: None = None,
    dtype: torch.dtype | None = None,
) -> ShardTensor:
    whole = Reduction.of(input, dim, keepdim)
    if ord is None or (len(whole.dims) == 1 and not isinstance(ord, str)):
        order = 2.0 if ord is None else float(ord)
        return whole.finish(_vector_norm(whole, order, dtype).to(result))
    dims = whole.dims if dim is None or isinstance(dim, int) else tuple(dim)
    return _matrix_norm(result, input, ord, dims, keepdim, dtype)


@reducing("vector_norm")
def _linalg_vector_norm(
    function: Function,
    result: torch.dtype,
    x: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> ShardTensor:
    whole = Reduction.of(x, dim, keepdim)
    return whole.finish(_vector_norm(whole, float(ord), dtype).to(result))


@reducing("matrix_norm")
def _linalg_matrix_norm(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    ord: float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> ShardTensor:
    return _matrix_norm(result, input, ord, dim, keepdim, dtype)


@reducing("normalize")
def _normalize(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    p: float = 2.0,
    dim: Dims = 1,
    eps: float = 1e-12,
    out: None = None,
) -> ShardTensor:
    whole = Reduction.of(input, dim)
    norm = _vector_norm(whole, float(p), None).to(result.to_real())
    return from_local(whole.local / whole.enter(norm.clamp_min(eps)), whole.layout)


def _matrix_norm(
    result: torch.dtype,
    input: Tensor,
    ord: float | str,
    dim: Sequence[int],
    keepdim: bool,
    dtype: torch.dtype | None,
) -> ShardTensor:
    whole = Reduction.of(input, dim, keepdim)
    if ord == "fro":
        return whole.finish(_vector_norm(whole, 2.0, dtype).to(result))
    if whole.axes:
        raise refusal(f"the matrix norm {ord} over dims {list(dim)}", whole.layout)
    if whole.local.numel():
        norm = torch.linalg.matrix_norm(whole.local, ord, tuple(dim), True, dtype=dtype)
    else:
        norm = connected(whole.shape, whole.local, whole.local, curved=True).to(result)
    return whole.finish(norm)


def _vector_norm(whole: Reduction, p: float, dtype: torch.dtype | None) -> Tensor:
    """The norm of order p, joined, in the dtype that it is formed in."""
    local = whole.local if dtype is None else whole.local.to(dtype)
    local = local.to(summed_in(local.dtype))
    if p == 2:
        squares = (local * local.conj()).real if local.is_complex() else local.square()
        return root(whole.add(squares.sum(whole.dims, True)), 2)
    whole = whole.on(local.abs())
    if abs(p) == float("inf"):
        return shared(whole, extreme(whole, greatest=p > 0), among_nan=True)
    if p == 0:
        count = whole.add((whole.local.detach() != 0).sum(whole.dims, True))
        return without_gradient(whole, count.to(whole.local.dtype))
    return root(whole.add(_powers(whole.local, p).sum(whole.dims, True)), p)


def _powers(size: Tensor, p: float) -> Tensor:
    """Powers whose gradient is 0 where the size is 0, as torch's is."""
    if p == 1:
        return size
    zero = size == 0
    powers = torch.where(zero, torch.ones_like(size), size) ** p
    return torch.where(zero, torch.full_like(size, 0.0 if p > 0 else float("inf")), powers)
