"""What torch returns, or raises, for global shapes: found without values, once for each call.

A user's mistake must raise on all ranks alike, also where a rank's piece is empty and it would not
call torch at all. Hence every call is tried first on tensors that have only shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def rehearse(
    function: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[tuple[int, ...], torch.dtype]:
    """The global shape and the dtype of a function's first result.

    Args:
        function: Any of torch's that takes meta tensors.
        args: Its arguments; of tensors only shapes and dtypes matter.
        kwargs: Named ones.

    Raises:
        Exception: whatever torch raises.
    """
    return _rehearse(function, _key(args), _key(kwargs))


@dataclass(frozen=True, slots=True)
class _Shape:
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Named:
    items: tuple[tuple[str, Any], ...]


@lru_cache(maxsize=1024)
def _rehearse(
    function: Callable[..., Any], args: Any, kwargs: _Named
) -> tuple[tuple[int, ...], torch.dtype]:
    result = function(*map(_value, args), **{name: _value(each) for name, each in kwargs.items})
    first = result[0] if isinstance(result, tuple) else result
    return tuple(first.shape), first.dtype


def _key(value: Any) -> Any:
    """An argument as a key."""
    if isinstance(value, Tensor):
        return _Shape(tuple(value.shape), value.dtype)
    if isinstance(value, Mapping):
        return _Named(tuple((name, _key(each)) for name, each in value.items()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_key, value))
    return value


def _value(key: Any) -> Any:
    """An argument for a rehearsal."""
    if isinstance(key, _Shape):
        return torch.empty(key.shape, dtype=key.dtype, device="meta")
    if isinstance(key, tuple):
        return tuple(map(_value, key))
    return key
