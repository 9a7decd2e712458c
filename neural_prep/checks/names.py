"""Import paths in a file of cases: found, or refused with the nearest name that there is."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from neural_prep.errors import InputError


def unknown(key: object, known: Iterable[str]) -> str:
    """What to say of a key that there is not.

    >>> unknown("shpe", ["cut", "shape"])
    'shpe is not a known key; the nearest is shape'
    """
    return f"{key} is not a known key{nearest(str(key), known)}"


def find_name(path: str, where: str) -> Any:
    """What an import path names.

    Raises:
        InputError: if a module or a name is not there, or a module cannot be imported.

    >>> find_name("math.pi", "function")
    3.141592653589793
    """
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise InputError(f"{where}: {path} is no import path; expected one such as torch.add")
    for count in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:count])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                continue
            raise InputError(f"{where}: {module} cannot be imported ({error})") from error
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"{where}: {module} cannot be imported ({reason})") from error
        return _find_inside(found, module, parts[count:], where)
    raise InputError(f"{where}: {path}: there is no module {parts[0]}")


def find_class(path: str, base: type, where: str) -> type:
    """The class of an import path.

    Raises:
        InputError: if there is none, or it is none of `base`.
    """
    found = find_name(path, where)
    if not isinstance(found, type) or not issubclass(found, base):
        raise InputError(f"{where}: {path} is no subclass of {base.__name__}")
    return found


def check_arguments(kind: type, given: Mapping[str, Any], where: str) -> None:
    """Checks the names of a constructor's arguments.

    Raises:
        InputError: if one is unknown, or one that is needed is missing.
    """
    parameters = list(inspect.signature(kind).parameters.values())
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = [one.name for one in named]
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        for key in given:
            if key not in names:
                raise InputError(f"{where}: init_args: {unknown(key, names)}")
    missing = [one.name for one in named if one.default is one.empty and one.name not in given]
    if missing:
        raise InputError(f"{where}: init_args: {missing[0]} is not given")


def _find_inside(found: Any, reached: str, names: Collection[str], where: str) -> Any:
    for name in names:
        try:
            found = getattr(found, name)
        except AttributeError:
            near = nearest(name, (each for each in dir(found) if not each.startswith("_")))
            raise InputError(f"{where}: {reached} has no {name}{near}") from None
        reached = f"{reached}.{name}"
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message on a name that there is not.

    >>> nearest("shpe", ["cut", "shape"])
    '; the nearest is shape'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    return f"; the nearest is {near[0]}" if near else ""
