"""Which function of torch has which sharded version: one table, filled by the files in `ops/`.

A sharded version takes the arguments of the function that it stands for. It is registered under
every name that torch gives that function: `torch.`, `Tensor.`, `torch.nn.functional.` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import isdatadescriptor
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

Version = Callable[..., Any]
_Any = TypeVar("_Any", bound=Version)

_NAMESPACES = (
    *(torch, torch.Tensor, F, torch.linalg, torch.special, torch.fft),
    *(torch._C._nn, getattr(torch._C, "_special", None)),
)
_versions: dict[Callable[..., Any], Version] = {}
_always: set[Callable[..., Any]] = set()
_runners: list[Version] = []


def sharded(
    *names: str | Callable[..., Any], always: bool = False, random: bool = False
) -> Callable[[_Any], _Any]:
    """Registers a sharded version under all aliases of functions with these names.

    Args:
        names: Bare names, such as `conv2d`; or a function that has no alias.
        always: Whether it is called also where all tensors are replicated.
        random: Whether the function draws random numbers, so that ranks must agree on them: it is
            called always, too.
    """

    def register(version: _Any) -> _Any:
        for name in names:
            for function in aliases(name):
                _register(function, version, always=always or random)
        return version

    return register


def sharded_alike(*names: str | Callable[..., Any], always: bool = False) -> Callable[[_Any], _Any]:
    """Registers one version for many functions; it is given the function before its arguments."""

    def register(version: _Any) -> _Any:
        for name in names:
            for function in aliases(name):
                _register(function, partial(version, function), always=always)
        return version

    return register


def has_function(name: str) -> bool:
    """Whether this version of torch has a function with this name."""
    return any(callable(getattr(space, name, None)) for space in _NAMESPACES)


def runs_versions(run: _Any) -> _Any:
    """Registers what runs functions on sharded tensors: it knows their class, which calls it."""
    _runners.append(run)
    return run


def run_version(
    function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Runs a function on sharded tensors, or refuses."""
    (run,) = _runners
    return run(function, name, args, kwargs)


def version_of(function: Callable[..., Any]) -> Version | None:
    """The sharded version of a function; None: there is none."""
    return _versions.get(function)


def is_always_sharded(function: Callable[..., Any]) -> bool:
    """Whether the sharded version is called also where all tensors are replicated."""
    return function in _always


def aliases(name: str | Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """All functions of torch with this name, each once; of a property, what reads it.

    >>> len(list(aliases("sum"))), name_of(next(aliases("mT")))
    (2, 'mT')
    """
    if not isinstance(name, str):
        yield name
        return
    spaces = (torch.Tensor,) if name.startswith("__") else _NAMESPACES  # modules have these too
    named = [getattr(space, name, None) for space in spaces]
    readers = [_reader(each) if isdatadescriptor(each) else each for each in named]
    found = [each for each in readers if callable(each)]
    if not found:
        raise LookupError(f"torch has no function {name}")
    yield from dict.fromkeys(found)


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called, in errors.

    >>> name_of(torch.Tensor.add), name_of(torch.Tensor.T.__get__)
    ('add', 'T')
    """
    name = getattr(function, "__name__", str(function))
    if name in ("__get__", "__set__", "__delete__"):
        return str(getattr(function.__self__, "__name__", name))  # type: ignore[attr-defined]
    return str(name)


def _register(function: Callable[..., Any], version: Version, *, always: bool) -> None:
    known = _versions.setdefault(function, version)
    same = _bare(known) is _bare(version)  # some names are aliases of others
    assert same, f"{name_of(function)} has two sharded versions"
    if always:
        _always.add(function)


def _reader(descriptor: Any) -> Any:
    """What torch hands over where a property is read."""
    return descriptor.__get__


def _bare(version: Version) -> Version:
    """A version without the function that it was given before its arguments."""
    return version.func if isinstance(version, partial) else version
