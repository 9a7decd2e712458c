"""Sums, means, variances and counts: each rank's part is a sum, and parts are added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.reduction import Dims, Reduction, reducing
from neural_prep.sharding.registry import name_of
from neural_prep.sharding.roots import root
from neural_prep.sharding.shard_tensor import ShardTensor
from neural_prep.sharding.transport import summed_in

Function = Callable[..., Any]


@reducing("sum", "nansum")
def _sum(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> ShardTensor:
    whole = Reduction.of(input, dim, keepdim)
    part = function(whole.local, whole.dims, True, dtype=summed_in(result))
    return whole.finish(whole.add(part).to(result))


@reducing("mean", "nanmean")
def _mean(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> ShardTensor:
    whole = Reduction.of(input, dim, keepdim)
    count: Tensor | int = whole.count
    add_up = torch.sum
    if name_of(function) == "nanmean":
        count = whole.add((~whole.local.detach().isnan()).sum(whole.dims, True))
        add_up = torch.nansum
    part = add_up(whole.local, whole.dims, True, dtype=summed_in(result))
    return whole.finish((whole.add(part) / count).to(result))


@reducing("var", "std", "var_mean", "std_mean")
def _moments(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: None = None,
) -> ShardTensor | tuple[ShardTensor, ShardTensor]:
    if isinstance(dim, bool):  # var(input, unbiased)
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    whole = Reduction.of(input, dim, keepdim)
    whole = whole.on(whole.local.to(summed_in(input.dtype)))
    mean, squares = about_mean(whole)
    # No freedom gives NaN or infinity, as in torch.
    spread = squares / max(whole.count - correction, 0)
    name = name_of(function)
    spread = whole.finish((root(spread, 2) if "std" in name else spread).to(result))
    return (spread, whole.finish(mean.to(input.dtype))) if "mean" in name else spread


def about_mean(whole: Reduction) -> tuple[Tensor, Tensor]:
    """The mean, and the sum of squared distances from it; both joined.

    The whole tensor's mean comes first: sums of squares would cancel where it is large.
    """
    mean = whole.add(whole.local.sum(whole.dims, True)) / whole.count
    distance = whole.local - whole.enter(mean)
    squares = (distance * distance.conj()).real if distance.is_complex() else distance.square()
    return mean, whole.add(squares.sum(whole.dims, True))


@reducing("any", "all")
def _any(
    function: Function,
    result: torch.dtype,
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    out: None = None,
) -> ShardTensor:
    whole = Reduction.of(input, dim, keepdim)
    if isinstance(dim, tuple | list) and not dim:  # unlike other functions these then reduce none
        whole = Reduction(whole.local, whole.layout, (), keepdim)
    inverted = name_of(function) == "all"  # all are unless any is not
    part = (whole.local == 0) if inverted else (whole.local != 0)
    found = whole.add(part.any(whole.dims, True))
    return whole.finish((found ^ inverted).to(result))


@reducing("count_nonzero")
def _count_nonzero(
    function: Function, result: torch.dtype, input: Tensor, dim: Dims = None
) -> ShardTensor:
    whole = Reduction.of(input, dim, keepdim=False)
    return whole.finish(whole.add((whole.local != 0).sum(whole.dims, True)))
