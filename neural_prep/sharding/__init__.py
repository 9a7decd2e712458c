"""Sharded tensors and differentiable collectives that are numerically right, or refuse."""

from neural_prep.sharding import ops, running
from neural_prep.sharding.layout import Cut, Layout, split_sizes
from neural_prep.sharding.shard_tensor import ShardTensor

__all__ = ["Cut", "Layout", "ShardTensor", "ops", "running", "split_sizes"]
