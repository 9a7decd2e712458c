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
    return _rehearse(function, key_of(args), key_of(kwargs))


@dataclass(frozen=True, slots=True)
class _Shape:
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Named:
    items: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class _Plain:
    """A number that equals an integer is another argument nevertheless."""

    kind: type
    value: Any


@lru_cache(maxsize=1024)
def _rehearse(
    function: Callable[..., Any], args: Any, kwargs: _Named
) -> tuple[tuple[int, ...], torch.dtype]:
    result = function(*value_of(args, _meta), **value_of(kwargs, _meta))
    first = result[0] if isinstance(result, tuple) else result
    return tuple(first.shape), first.dtype


def key_of(value: Any) -> Any:
    """Arguments as a key for what is kept."""
    if isinstance(value, Tensor):
        return _Shape(tuple(value.shape), value.dtype)
    if isinstance(value, Mapping):
        return _Named(tuple((name, key_of(each)) for name, each in value.items()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(key_of, value))
    if isinstance(value, bool | float):
        return _Plain(type(value), value)
    return value


def value_of(key: Any, make: Callable[[tuple[int, ...], torch.dtype], Tensor]) -> Any:
    """Arguments of a key, with tensors made for their shapes and dtypes."""
    if isinstance(key, _Shape):
        return make(key.shape, key.dtype)
    if isinstance(key, _Named):
        return {name: value_of(each, make) for name, each in key.items}
    if isinstance(key, tuple):
        return tuple(value_of(each, make) for each in key)
    return key.value if isinstance(key, _Plain) else key


def _meta(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
