"""Reads cases from YAML; whatever is wrong in it is one line that names file, case and key.

Each case, each input and each module is parsed by itself: the time that jsonargparse takes for a
list of cases grows with the square of its length. Keys, names, shapes and cuts are checked here, so
that a mistake shows before any rank is started.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser

from neural_prep.checks import sound
from neural_prep.checks.cases import Argument, Case, Constant, Defaults, Input, ModuleSpec
from neural_prep.checks.names import check_arguments, find_class, find_name, unknown
from neural_prep.errors import InputError
from neural_prep.strict_yaml import StrictLoader

_TYPE = re.compile(
    r"Expected (?:an? )?(?:<class '(?:collections\.abc\.)?)?(?:typing\.)?(\w+(?:\[[^]]*\])?)"
)
_WORDS = {"Mapping": "a mapping", "dict": "a mapping", "tuple": "a list", "list": "a list"}
_KEYS = ("defaults", "cases")
_DEFAULTS = tuple(field.name for field in dataclasses.fields(Defaults))
_INPUT = tuple(field.name for field in dataclasses.fields(Input))
_CASE = tuple(field.name for field in dataclasses.fields(Case) if field.name != "has_own_dtype")


def load_cases(path: str | Path) -> list[Case]:
    """The cases of a file, in its order.

    Args:
        path: A YAML file with a list `cases` and, if need be, `defaults`.

    Raises:
        InputError: if the file cannot be read or anything in it is wrong.
    """
    return cases_in(read(path, _KEYS), path)


def cases_in(content: Mapping[str, Any], path: str | Path) -> list[Case]:
    """The cases that a file holds.

    Raises:
        InputError: if anything in them is wrong.
    """
    try:
        defaults = _defaults(content.get("defaults"))
        found = content.get("cases")
        if not isinstance(found, list) or not found:
            raise InputError(f"cases: found {found!r}, expected a list of cases")
        cases: dict[str, Case] = {}
        for number, each in enumerate(found, 1):
            case = _case(each, number, defaults)
            if case.name in cases:
                raise InputError(f"case {case.name}: two cases have this name; give each its own")
            cases[case.name] = case
    except InputError as error:
        raise InputError(f"{path}: {error}") from error.__cause__
    return list(cases.values())


def read(path: str | Path, keys: Collection[str]) -> dict[str, Any]:
    """What a file holds, under no other keys than these.

    Raises:
        InputError: if the file cannot be read, or has another key.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            content = yaml.load(file, StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read ({reason}); give a YAML file") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {type(content).__name__}; expected defaults: and cases:")
    for key in content:
        if key not in keys:
            raise InputError(f"{path}: {unknown(key, keys)}")
    return content


def _defaults(content: Any) -> Defaults:
    values = _parse(Defaults, {} if content is None else content, _DEFAULTS, "defaults")
    sound.check_numbers(values, "defaults")
    return Defaults(**values)


def _case(content: Any, number: int, defaults: Defaults) -> Case:
    """One case.

    Raises:
        InputError: naming it, by its number where it has no name.
    """
    if not isinstance(content, dict):
        raise InputError(f"case number {number}: found {content!r}, expected a mapping with a name")
    name = content.get("name")
    if not isinstance(name, str) or not name:
        found = "nothing" if name is None else repr(name)
        raise InputError(f"case number {number}: name: found {found}, expected a name")
    try:
        case = _parsed(content, defaults)
        sound.check(case)
    except InputError as error:
        raise InputError(f"case {name}: {error}") from error.__cause__
    return case


def _parsed(content: dict[str, Any], defaults: Defaults) -> Case:
    """The case as it is given, of the right types."""
    flat = {key: value for key, value in content.items() if key not in ("inputs", "module")}
    values = _parse(Case, flat, _CASE)
    sound.check_numbers(values)
    if "mesh" in values and "ranks" not in values:
        values["ranks"] = (prod(values["mesh"].values()),)
    values = {**dataclasses.asdict(defaults), **values}
    given = [key for key in ("module", "function") if content.get(key) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "neither"
        raise InputError(f"found {found}, expected one of module and function")
    if given == ["module"]:
        values["module"] = _module(content["module"])
    else:
        found = find_name(values["function"], "function")
        if not callable(found):
            raise InputError(f"function: {values['function']} cannot be called")
    if "raises" in values:
        sound.check_exception(values["raises"])
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise InputError(f"inputs: found {inputs!r}, expected a list")
    values["inputs"] = tuple(_inputs(inputs, "inputs"))
    return Case(**values, has_own_dtype="dtype" in content)


def _inputs(content: list[Any], where: str) -> Iterator[Argument]:
    for number, each in enumerate(content):
        place = f"{where}[{number}]"
        if isinstance(each, list):
            yield tuple(_input(part, f"{place}[{i}]", inside=True) for i, part in enumerate(each))
        else:
            yield _input(each, place)


def _input(content: Any, where: str, *, inside: bool = False) -> Input | Constant:
    if isinstance(content, dict) and inside and "name" in content:
        raise InputError(f"{where}: name: a part of a list has none")
    if isinstance(content, dict) and "value" in content:
        for key in content:
            if key not in ("value", "name"):
                raise InputError(f"{where}: {key} is given beside value, which is no tensor")
        return Constant(**content)
    values = _parse(Input, content, _INPUT, where)
    values["sizes"] = {
        ranks: tuple(map(tuple, sizes)) for ranks, sizes in values.get("sizes", {}).items()
    }
    return Input(**values)


def _module(content: Any) -> ModuleSpec:
    """A module whose class is there and takes these arguments; nested ones by `class_path` too."""
    if not isinstance(content, dict) or not isinstance(content.get("class_path"), str):
        raise InputError(f"module: found {content!r}, expected class_path: and init_args:")
    for key in content:
        if key not in ("class_path", "init_args"):
            raise InputError(f"module: {unknown(key, ('class_path', 'init_args'))}")
    path, args = content["class_path"], content.get("init_args") or {}
    if not isinstance(args, dict):
        raise InputError(f"module: init_args: found {args!r}, expected a mapping")
    check_arguments(find_class(path, torch.nn.Module, "module"), args, "module")
    spec = ModuleSpec(path, args)
    parse_module(spec)
    return spec


def parse_module(spec: ModuleSpec) -> Any:
    """A module's configuration, as jsonargparse makes it.

    Raises:
        InputError: if an argument has a wrong type.
    """
    args = dict(spec.init_args)
    given = {"class_path": spec.class_path, "init_args": args}
    try:
        return _module_parser().parse_object({"module": given}, defaults=False)
    except (ArgumentError, ValueError, TypeError) as error:
        raise InputError(f"module: {explain(error, args)}") from error


@cache
def _module_parser() -> ArgumentParser:
    """A parser of one module, of any class."""
    parser = ArgumentParser(exit_on_error=False)
    # Some of torch's own say no types.
    parser.add_subclass_arguments(torch.nn.Module, "module", fail_untyped=False, required=False)
    return parser


@cache
def _parser(kind: type) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    left_out = {"inputs", "module", "has_own_dtype"} if kind is Case else set()
    parser.add_class_arguments(kind, skip=left_out)
    return parser


def _parse(kind: type, content: Any, known: tuple[str, ...], where: str = "") -> dict[str, Any]:
    """The keys that are given, of the types that the dataclass says."""
    prefix = f"{where}: " if where else ""
    if not isinstance(content, Mapping):
        raise InputError(f"{prefix}found {content!r}, expected a mapping")
    for key in content:
        if key not in known:
            raise InputError(f"{prefix}{unknown(key, known)}")
    given = {key: value for key, value in content.items() if value is not None}
    try:
        parsed = _parser(kind).parse_object(given, defaults=False).as_dict()
    except (ArgumentError, ValueError, TypeError) as error:
        raise InputError(f"{prefix}{explain(error, given)}") from error
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in parsed.items()
    }


def explain(error: Exception, given: Mapping[str, Any]) -> str:
    r"""What jsonargparse says, in a line: the key, what was found, what was expected.

    >>> message = "Parser key \"grad\":\n  Expected a <class 'bool'>. Got value: maybe"
    >>> explain(ValueError(message), {"grad": "maybe"})
    "grad: found 'maybe', expected bool"
    """
    text = " ".join(str(error).split())
    keys = re.findall(r'Parser key "([^"]+)"', text)
    types = dict.fromkeys(_TYPE.findall(text.replace("invalid literal for int()", "Expected int.")))
    names = [_WORDS.get(name, name) for name in types if name != "NoneType"]
    names = [re.sub(r"^Literal\[(.*)\]$", r"one of \1", name) for name in names]
    if keys and keys[-1] in given and names:
        return f"{keys[-1]}: found {given[keys[-1]]!r}, expected {' or '.join(names)}"
    text = re.sub(r'Parser key "([^"]+)":', r"\1:", text).replace("typing.Literal", "one of ")
    return re.sub(r"^module: Problem with given class_path '[^']+': ", "", text)
