"""Arguments and results however nested, of which the tensors alone matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def map_tensors(change: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same arguments or results with each tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, list | tuple):
        changed = [map_tensors(change, each) for each in tree]
        if hasattr(tree, "_fields"):  # a named tuple
            return type(tree)(*changed)
        return type(tree)(changed)  # torch's own named results take a sequence too
    if isinstance(tree, dict):
        return {key: map_tensors(change, each) for key, each in tree.items()}
    return tree
