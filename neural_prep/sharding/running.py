"""Runs a function of torch on sharded tensors: its sharded version, or on whole values as it is.

In-place functions are computed out of place, and their result overwrites the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from neural_prep.sharding.in_place import is_in_place, out_of_place
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.names import VALUES
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import (
    Version,
    is_always_sharded,
    name_of,
    runs_versions,
    version_of,
)
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local
from neural_prep.sharding.trees import map_tensors


@runs_versions
def run(func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs the sharded version of a function, or refuses."""
    version = version_of(func)
    layouts = [shard.sharding for shard in shards_in((args, kwargs))]
    replicated = all(layout.is_replicated for layout in layouts)
    if any(layout.mesh != layouts[0].mesh for layout in layouts[1:]):
        raise ValueError(f"{name}: its tensors are of different meshes; bring them to one")
    if is_in_place(func, name, kwargs):
        own = version if name.endswith("_") else None  # not that of the function out of place
        return _run_in_place(func, name, own, args, kwargs, layouts)
    if version is not None and not (replicated and not is_always_sharded(func)):
        return version(*args, **kwargs)
    if replicated:
        return _run_replicated(func, args, kwargs, layouts)
    raise refusal(name, next(each for each in layouts if not each.is_replicated))


def _run_in_place(
    func: Callable[..., Any],
    name: str,
    version: Version | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    layouts: Sequence[Layout],
) -> Any:
    """Computes out of place and overwrites the first argument."""
    target = args[0] if args else None
    if not isinstance(target, ShardTensor):
        if isinstance(target, Tensor) and all(layout.is_replicated for layout in layouts):
            func(*map_tensors(to_local, list(args)), **map_tensors(to_local, kwargs))
            return target
        cut = next((each for each in layouts if not each.is_replicated), layouts[0])
        raise refusal(name, cut, "can't change ordinary tensors")
    if version is not None:
        return version(*args, **kwargs)
    found = out_of_place(func, name, kwargs)
    if found is None:
        raise refusal(name, target.sharding, "can't be done in place")
    function, kwargs = found
    return target.overwrite(function(*args, **kwargs), name)


def _run_replicated(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    layouts: Sequence[Layout],
) -> Any:
    """Runs a function on values that every rank has whole."""
    layout = Layout.replicated(layouts[0].mesh)
    pieces, named = map_tensors(to_local, list(args)), map_tensors(to_local, dict(kwargs))
    result = func(*pieces, **named)
    if name_of(func) in VALUES:
        return result
    return map_tensors(lambda tensor: from_local(tensor, layout), result)
