"""Reads a run's YAML and options more strictly than usual: no key twice, none unknown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from neural_prep.errors import InputError
from neural_prep.strict_yaml import StrictLoader


def known_keys(parser: ArgumentParser) -> set[str]:
    """Every key of a section, dotted, and the keys that stand outside sections."""
    names = {action.dest for action in parser._actions if "+" not in action.dest}
    dotted = {name for name in names if "." in name and not name.endswith(".help")}
    return dotted | {"seed_everything"}


def check_arguments(
    args: Sequence[str], known: Collection[str], ignored: Collection[str] = ()
) -> list[str]:
    """The arguments with each file, `--config FILE` or `--data FILE`, replaced by its content.

    Args:
        args: The arguments.
        known: Every key that may be set, dotted, such as `data.path`.
        ignored: Sections, and keys outside of sections, of which unknown ones are left out.

    Raises:
        InputError: if a file is wrong, or an option unknown.
    """
    sections = {key.split(".")[0] for key in known if "." in key}
    replaced: list[str] = []
    rest = iter(_without(args, known, ignored))
    for arg in rest:
        name, equals, value = arg.partition("=")
        if arg.startswith("-c") and not equals and len(arg) > 2:
            name, equals, value = "-c", "=", arg[2:]
        key = "config" if name == "-c" else name.removeprefix("--")
        if key not in sections | {"config"} or not name.startswith("-"):
            if name.startswith("--") and _is_unknown(key, known):
                raise InputError(f"--{unknown_key(key, known)}")
            replaced.append(arg)
            continue
        value = value if equals else next(rest, "--")
        if value.startswith("--"):
            raise InputError(f"{name}: the file after it is missing")
        if key == "config":
            content = read_config(value, known, ignored)
        else:
            content = _read_section(value, known, key, ignored)
        replaced += [f"--{key}", content]
    return replaced


def _without(args: Sequence[str], known: Collection[str], ignored: Collection[str]) -> list[str]:
    """The arguments less ignored options and their values.

    >>> _without(["--trainer.logger", "x", "--data.path", "y"], ["data.path"], ["trainer"])
    ['--data.path', 'y']
    """
    kept: list[str] = []
    dropping = False  # the value of an option that is ignored
    for arg in args:
        name, equals, _ = arg.partition("=")
        if name.startswith("--"):
            key = name.removeprefix("--").removesuffix("+")
            section = any(other.startswith(f"{key}.") for other in known)
            drop = key.split(".")[0] in ignored and key not in known and not section
            dropping = drop and not equals
            if not drop:
                kept.append(arg)
        elif dropping:
            dropping = False
        else:
            kept.append(arg)
    return kept


def _is_unknown(name: str, known: Collection[str]) -> bool:
    name = name.removesuffix("+")
    if name in ("help", "config", "print_config") or name.endswith(".help"):
        return False
    section = any(key.startswith(f"{name}.") for key in known)
    return not section and not any(name == key or name.startswith(f"{key}.") for key in known)


def read_config(path: str, known: Collection[str], ignored: Collection[str] = ()) -> str:
    """The file's content, checked, as YAML in which empty sections are left out.

    Args:
        path: The file.
        known: Every key that may be set, dotted, such as `data.path`.
        ignored: Sections, and keys outside of sections, of which unknown ones are left out.

    Raises:
        InputError: if the file cannot be read, or has an unknown or a repeated key.
    """
    content = _load(path, "--config")
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise InputError(
            f"--config: {path} holds {type(content).__name__}, not sections; expected trainer:, "
            "model:, data: and output:"
        )
    content = _known_ones(content, known, ignored)
    _check_keys(content, known, path)
    return _dump({section: _without_empty(value) for section, value in content.items()})


def _read_section(path: str, known: Collection[str], section: str, ignored: Collection[str]) -> str:
    """The same for a file that holds one section; what is no file is the section itself."""
    if Path(path).is_file():
        loaded = _load(path, f"--{section}")
    elif section in ignored:
        try:
            loaded = yaml.load(path, StrictLoader)
        except yaml.YAMLError:  # neither
            return path
    else:
        return "{}" if path == "null" else path
    content = _known_ones({section: loaded}, known, ignored)
    _check_keys(content, known, path)
    return _dump(_without_empty(content[section]))


def _known_ones(
    content: dict[Any, Any], known: Collection[str], ignored: Collection[str]
) -> dict[Any, Any]:
    """The content less unknown keys of ignored sections, and ignored sections without keys."""
    sections = {name.split(".")[0] for name in known if "." in name}
    kept = {}
    for section, value in content.items():
        if section not in ignored:
            kept[section] = value
        elif section in sections:
            keys = value.items() if isinstance(value, dict) else ()
            known_values = {key: each for key, each in keys if f"{section}.{key}" in known}
            kept[section] = known_values if isinstance(value, dict) else value
    return kept


def _load(path: str, option: str) -> Any:
    try:
        with Path(path).open(encoding="utf-8") as file:
            return yaml.load(file, StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{option}: {path} cannot be read ({reason}); give a YAML file") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{option}: {path} is no YAML: {reason}") from error


def _dump(content: Any) -> str:
    return yaml.safe_dump(content, default_flow_style=True, width=1_000_000)


def _without_empty(section: Any) -> Any:
    """A section less its empty keys, which mean their defaults as an empty section does."""
    if not isinstance(section, dict):
        return {} if section is None else section
    return {key: value for key, value in section.items() if value is not None}


def _check_keys(content: dict[Any, Any], known: Collection[str], path: str) -> None:
    """Sections and their keys; what a key's value may hold is for its type to say."""
    sections = {name.split(".")[0]: name for name in known if "." in name}
    for section, value in content.items():
        if section not in sections:
            if section not in known or "." in str(section):
                raise InputError(f"{path}: {unknown_key(str(section), known)}")
        elif isinstance(value, dict):
            for key in value:
                if f"{section}.{key}" not in known:
                    raise InputError(f"{path}: {unknown_key(f'{section}.{key}', known)}")
        elif value is not None:
            raise InputError(
                f"{path}: {section} is {value!r}; expected a section with keys such as "
                f"{sections[section]}"
            )


def unknown_key(name: str, known: Collection[str]) -> str:
    """What to say of a key that there is not, with the nearest that there is.

    >>> unknown_key("data.pth", ["data.path", "model.lags"])
    'data.pth is not a known key; the nearest is data.path'
    >>> unknown_key("dta", ["data.path", "model.lags"])
    'dta is not a known key; the nearest is data'
    """
    sections = sorted({other.split(".")[0] for other in known})
    section = name.split(".")[0]
    inside = sorted(other for other in known if other.startswith(f"{section}."))
    candidates = (inside or sorted(known)) if "." in name else sections
    if name in known:
        key = name.split(".")[1]
        return f"{name} stands outside its section; write it as {section}: {{{key}: ...}}"
    nearest = difflib.get_close_matches(name, candidates, n=1, cutoff=0.0)
    return f"{name} is not a known key; the nearest is {nearest[0]}"


def explain(message: str) -> str:
    r"""The message of jsonargparse in the words of a user.

    >>> explain("Parser key \"model.lags\":\n  Expected a <class 'int'>. Got value: x")
    'model.lags: Expected int. Got value: x'
    >>> explain("the following arguments are required: stats.data.path")
    'data.path is not given; set it in the YAML file or with --data.path'
    """
    line = " ".join(message.split())
    if required := re.fullmatch(r"the following arguments are required: (?:stats\.)?(.*)", line):
        return f"{required[1]} is not given; set it in the YAML file or with --{required[1]}"
    line = re.sub(r'^Parser key "(?:stats\.)?([^"]*)":', r"\1:", line)
    line = re.sub(r"Does not validate against any of the Union subtypes.*?Errors: - ", "", line)
    line = re.sub(
        r" - Expected a <class 'NoneType'>(?: Given value type: \S+ \S+)?(?: Given value: (.*))?$",
        r". Got value: \1",
        line,
    )
    line = re.sub(r"invalid literal for int\(\) with base 10:", "Expected int, not", line)
    if "Expected a <class 'str'>" in line:
        line += "; put it in quotes"
    line = re.sub(r"typing\.Literal\[([^]]*)\]", r"one of \1", line)
    return re.sub(r"Expected an? ", "Expected ", re.sub(r"<class '([^']*)'>", r"\1", line))
