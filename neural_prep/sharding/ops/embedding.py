"""Embeddings: the product of one-hot indices and a table, whose rows may be cut, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.contractions import (
    Division,
    Labels,
    divide,
    raise_as_torch,
    refuse_options,
)
from neural_prep.sharding.operands import operand, reduce_over
from neural_prep.sharding.registry import sharded, sharded_alike
from neural_prep.sharding.rows import bounds
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local


@sharded_alike("embedding")
def embedding(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> ShardTensor:
    """`F.embedding(input, weight)` and `torch.embedding(weight, indices)`."""
    return (_embedding if function is F.embedding else _bare_embedding)(*args, **kwargs)


@sharded("one_hot")
def one_hot(tensor: ShardTensor, num_classes: int = -1) -> ShardTensor:
    """A new last dimension, of all classes that any rank has unless their number is given."""
    lowest, highest = bounds(tensor)
    known = tensor.numel() > 0
    ends = torch.tensor([lowest, highest] if known else [], dtype=tensor.dtype)
    F.one_hot(ends, num_classes)  # raises what torch raises
    classes = highest + 1 if num_classes == -1 else num_classes
    return from_local(F.one_hot(to_local(tensor), classes), tensor.sharding)


def _bare_embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, *options: bool, **named: bool
) -> ShardTensor:
    chosen = {**dict(zip(("scale_grad_by_freq", "sparse"), options, strict=False)), **named}
    # Here -1 says that there is none.
    return _embedding(indices, weight, None if padding_idx < 0 else padding_idx, **chosen)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> ShardTensor:
    layout = next(shards_in((input, weight))).sharding
    options = {"max_norm": max_norm, "scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}
    refuse_options("embedding", layout, options)
    rows = weight.shape[0] if weight.ndim else 0
    if weight.ndim != 2:  # raises what torch raises, which it doesn't without memory
        F.embedding(torch.zeros(1, dtype=torch.int64), torch.zeros([1] * weight.ndim))
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise_as_torch(F.embedding, input, weight, padding_idx)
    _check_range(input, rows)
    batch: list[int] = list(range(input.ndim))
    labels: list[Labels] = [batch, ["row", "feature"]]
    division = divide((input, weight), labels)
    indices, table = (
        operand(each, division.layout(names, each.shape), division.work)
        for each, names in zip((input, weight), labels, strict=True)
    )
    padding = None if padding_idx is None else padding_idx % rows
    found = _look_up(indices, table, padding, division, rows)
    whole = reduce_over(found, division.work, *division.axes_without([*batch, "feature"]))
    shape = (*input.shape, weight.shape[1])
    return from_local(whole, division.layout([*batch, "feature"], shape))


def _look_up(
    indices: Tensor, table: Tensor, padding: int | None, division: Division, rows: int
) -> Tensor:
    """Looks up in this rank's rows; indices of other rows find zeros."""
    start, size = division.part("row", rows)
    if size == rows:
        return F.embedding(indices, table, padding)
    own = indices - start
    own = torch.where((own >= 0) & (own < size), own, size)
    if padding is not None:
        padding = padding - start if start <= padding < start + size else None
    return F.embedding(own, torch.cat([table, table.new_zeros(1, table.shape[1])]), padding)


def _check_range(indices: Tensor, rows: int) -> None:
    """Raises on all ranks where an index on any of them is out of range."""
    lowest, highest = bounds(indices)
    if highest >= rows or lowest < 0:
        raise IndexError(
            f"embedding: index {lowest if lowest < 0 else highest} is out of range; "
            f"the table has {rows} rows"
        )
