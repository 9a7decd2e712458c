"""Recurrent layers on replicated values; along a cut they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import name_of, sharded_alike
from neural_prep.sharding.shard_tensor import from_local, shards_in, to_local
from neural_prep.sharding.trees import map_tensors


@sharded_alike("lstm", "gru", "rnn_tanh", "rnn_relu", always=True)
def recurrent(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """All steps of a layer, unless it draws dropout's numbers itself."""
    shards = list(shards_in((args, kwargs)))
    layout = next((s.sharding for s in shards if not s.sharding.is_replicated), shards[0].sharding)
    # Positions 5 and 6 are dropout and training; of a packed input, layers and dropout.
    if args[5] > 0.0 and args[6]:
        why = "with dropout would draw other numbers on every rank"
        raise refusal(name_of(function), layout, why)
    if not layout.is_replicated:
        raise refusal(name_of(function), layout)
    results = function(*map_tensors(to_local, list(args)))
    return map_tensors(lambda tensor: from_local(tensor, layout), results)
