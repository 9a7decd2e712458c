"""Places in sorted numbers, membership and counts: what is searched is whole on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.along import of_one_element
from neural_prep.sharding.extremes import extreme
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.operands import layout_of
from neural_prep.sharding.redistribute import relayout
from neural_prep.sharding.reduction import Reduction, result_dtype
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import sharded_alike
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local

Function = Callable[..., Any]


@sharded_alike("bucketize")
def _bucketize(function: Function, input: Any, boundaries: Tensor, **kwargs: Any) -> ShardTensor:
    return _each_in_whole(function, input, boundaries, kwargs)


@sharded_alike("isin")
def _isin(function: Function, elements: Any, test_elements: Any, **kwargs: Any) -> ShardTensor:
    return _each_in_whole(function, elements, test_elements, kwargs)


@sharded_alike("searchsorted")
def _searchsorted(
    function: Function,
    sorted_sequence: Tensor,
    input: Any,
    *,
    sorter: Tensor | None = None,
    **kwargs: Any,
) -> ShardTensor:
    """Rows of sequences, if there are several, are cut as the values' are."""
    rehearse(function, sorted_sequence, input, sorter=sorter, **kwargs)
    layout = next(shards_in((input, sorted_sequence, sorter))).sharding
    rows = {dim: dim for dim in range(sorted_sequence.ndim - 1)}
    if isinstance(input, ShardTensor):
        layout = input.sharding
    else:
        layout = layout_of(sorted_sequence, layout).with_dims(rows)
    if sorter is not None and rows and not layout.is_replicated:
        raise refusal("searchsorted", layout, "takes no sorter for several sequences")
    whole = layout.with_dims(rows)
    found = function(
        _piece(sorted_sequence, whole),
        _piece(input, layout),
        sorter=_piece(sorter, whole),
        **kwargs,
    )
    return from_local(found, layout)


@sharded_alike("histc")
def _histc(
    function: Function,
    input: ShardTensor,
    bins: int = 100,
    min: float = 0,
    max: float = 0,
    *,
    out: None = None,
) -> ShardTensor:
    """Counts of all ranks; between the extremes of all where no bounds are given."""
    result_dtype(function, (input, bins, min, max), {})
    whole = Reduction.of(input, None, keepdim=False)
    whole = whole.on(whole.local.detach())
    if min == max and input.numel():
        min, max = (float(extreme(whole, greatest=which)) for which in (False, True))
    if min == max:
        min, max = min - 1, max + 1

    def count(piece: Tensor) -> Tensor:
        return torch.histc(piece, bins, min, max)

    of_one_element(count, input)  # bounds may be infinite
    part = count(whole.local) if whole.local.numel() else whole.local.new_zeros(bins)
    return from_local(whole.add(part), Layout.replicated(whole.layout.mesh))


@sharded_alike("bincount")
def _bincount(
    function: Function, input: Tensor, weights: Tensor | None = None, minlength: int = 0
) -> ShardTensor:
    """Counts, or sums of weights, of all ranks; up to the greatest number on any."""
    result = result_dtype(function, (input, weights, minlength), {})
    if weights is not None and weights.shape != input.shape:
        torch.bincount(torch.zeros(1, dtype=torch.int64), torch.zeros(2))  # raises what torch does
    layout = layout_of(input, next(shards_in((input, weights))).sharding)
    replicated = Layout.replicated(layout.mesh)
    local, added = _piece(input, layout), _piece(weights, layout)  # empty pieces move some, too
    if not input.numel():
        return from_local(function(local, None, minlength), replicated)
    whole = Reduction(local, layout, (0,), keepdim=False)
    least, most = (int(extreme(whole, greatest=which)) for which in (False, True))
    if least < 0:
        torch.bincount(torch.tensor([-1]))  # raises what torch does
    length = max(minlength, most + 1)
    if local.numel():
        part = torch.bincount(local, added, length)
    else:
        part = torch.zeros(length, dtype=result, device=local.device)
    return from_local(whole.add(part), replicated)


def _each_in_whole(
    function: Function, input: Any, others: Any, kwargs: dict[str, Any]
) -> ShardTensor:
    """Functions of each element alone and of all elements of a second tensor."""
    replicated = Layout.replicated(next(shards_in((input, others))).sharding.mesh)
    layout = input.sharding if isinstance(input, ShardTensor) else replicated
    given = [_piece(input, layout), _piece(others, replicated)]
    return from_local(function(*given, **kwargs), layout)


def _piece(value: Any, layout: Layout) -> Any:
    """This rank's piece of a tensor without its gradient; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return relayout(to_local(value).detach(), layout_of(value, layout), layout).contiguous()
