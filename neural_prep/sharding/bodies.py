"""Torch's own Python functions, run on sharded tensors as they are written."""

from __future__ import annotations

from types import FunctionType
from typing import Any

_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def body_of(function: Any) -> FunctionType:
    """The same function, but it does not ask whether its arguments have a version of it.

    What it calls in turn does, so that checks, warnings and old options are torch's own, of global
    shapes, and the work is done by sharded versions.
    """
    names = {**function.__globals__, **dict.fromkeys(_QUESTIONS, _no)}
    body = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _no(*tensors: Any) -> bool:
    return False
