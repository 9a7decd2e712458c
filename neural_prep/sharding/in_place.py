"""In-place functions of torch and the function that each stands for.

They run out of place and the tensor is given the new value: memory is never written to, so that
nothing that was saved for backward can be spoiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from neural_prep.sharding.names import is_view

_RESHAPES = frozenset(["resize", "resize_as", "set", "share_memory"])
_SPACES = (torch.Tensor, torch, F, torch._C._nn)
_OPERATORS = {
    "__iadd__": "add",
    "__isub__": "sub",
    "__imul__": "mul",
    "__itruediv__": "true_divide",
    "__idiv__": "true_divide",
    "__ifloordiv__": "floor_divide",
    "__imod__": "remainder",
    "__ipow__": "pow",
    "__iand__": "bitwise_and",
    "__ior__": "bitwise_or",
    "__ixor__": "bitwise_xor",
    "__ilshift__": "bitwise_left_shift",
    "__irshift__": "bitwise_right_shift",
}


def is_in_place(func: Callable[..., Any], name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call changes one of its arguments.

    >>> is_in_place(torch.Tensor.add_, "add_", {}), is_in_place(F.relu, "relu", {"inplace": False})
    (True, False)
    """
    return (
        (name.endswith("_") and not name.endswith("__"))
        or name in _OPERATORS
        or name == "__setitem__"
        or getattr(func, "__name__", "") in ("__set__", "__delete__")
        or bool(kwargs.get("inplace"))
        or kwargs.get("out") is not None
    )


def out_of_place(
    func: Callable[..., Any], name: str, kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """The function, and its keywords, whose result the first argument gets; None: there is none.

    >>> out_of_place(torch.Tensor.add_, "add_", {"alpha": 2})[0].__name__
    'add'
    """
    kwargs = dict(kwargs)
    if kwargs.get("out") is not None:
        return None
    if kwargs.pop("inplace", False):
        return func, kwargs
    kwargs.pop("out", None)
    wanted = _OPERATORS.get(name, name.removesuffix("_"))
    if wanted == name or is_view(wanted) or wanted in _RESHAPES:
        return None
    for space in _SPACES:
        found = getattr(space, wanted, None)
        if callable(found):
            return found, kwargs
    return None


def check_leaf(tensor: torch.Tensor) -> None:
    """Raises what torch raises where a parameter would be overwritten inside its own graph."""
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation."
        )


def check_fit(tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raises what torch raises where a value does not fit what it is to overwrite."""
    if tuple(shape) != tuple(tensor.shape):
        raise RuntimeError(
            f"output with shape {list(tensor.shape)} doesn't match the broadcast shape "
            f"{list(shape)}"
        )
    if not torch.can_cast(dtype, tensor.dtype):
        raise RuntimeError(
            f"result type {dtype} can't be cast to the desired output type {tensor.dtype}"
        )
