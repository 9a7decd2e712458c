"""Elements of a sharded tensor by tensors, lists or masks as indices."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.shard_tensor import shards_in


def take(input: Tensor, index: Any) -> Tensor:
    """What `input[index]` gives, where the index is no mere integers and slices."""
    layout = next(shards_in((input, index))).sharding
    raise refusal("__getitem__", layout, "takes integers and slices only as an index")
