"""Tries a function on small tensors, to find what torch makes of its arguments but for values.

Indexing on tensors without values, as in `rehearsal`, leaves out checks of shapes and dtypes, and
its first call takes seconds. Sizes here are small but compare with one another as the real ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.trees import map_tensors


def try_out(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Raises what torch raises of such arguments: on all ranks alike, as they have the same shapes.

    Args:
        function: Of torch; what it makes of sizes depends on how they compare alone.
        args: Its arguments; of tensors only shapes and dtypes matter, and indices are zeros.
        kwargs: Named ones.
    """
    tensors: list[Tensor] = []
    map_tensors(tensors.append, [args, kwargs])
    sizes = sorted({1, *(size for tensor in tensors for size in tensor.shape if size > 0)})

    def small(tensor: Tensor) -> Tensor:
        shape = [sizes.index(size) + 1 if size else 0 for size in tensor.shape]
        return torch.zeros(shape, dtype=tensor.dtype)

    def blank(tensor: Tensor) -> Tensor:
        return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)

    try:
        function(*map_tensors(small, args), **map_tensors(small, kwargs))
    except Exception:
        function(*map_tensors(blank, args), **map_tensors(blank, kwargs))  # names real sizes
        raise
