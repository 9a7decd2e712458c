"""Products and sums of exponentials: parts are joined as their own elements were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.extremes import extreme
from neural_prep.sharding.reduction import Dims, Reduction, reducing
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.shard_tensor import ShardTensor
from neural_prep.sharding.transport import summed_in

Function = Callable[..., Any]


@reducing("prod")
def _prod(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> ShardTensor:
    """Products of products: torch's gradient is right where factors are zero, in both."""
    whole = Reduction.of(input, dim, keepdim)
    kind = summed_in(result)
    if dim is None:
        part = whole.local.prod(dtype=kind).reshape(whole.shape)
    else:
        part = whole.local.prod(dim, True, dtype=kind)
    return whole.finish(whole.join(part, lambda parts: parts.prod(0)).to(result))


@reducing("logsumexp")
def _logsumexp(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    dim: Dims,
    keepdim: bool = False,
    *,
    out: None = None,
) -> ShardTensor:
    whole = Reduction.of(input, dim, keepdim)
    if input.is_complex():
        raise refusal("logsumexp of complex numbers", whole.layout)
    whole = whole.on(whole.local.to(summed_in(result)))
    greatest = extreme(whole, greatest=True)
    shift = torch.where(greatest.isinf(), torch.zeros_like(greatest), greatest)
    total = whole.add((whole.local - shift).exp().sum(whole.dims, True))
    return whole.finish((total.log() + shift).to(result))
