"""Reads samples: cases without cuts, one or more for each module and function to be swept.

Their file has the format of cases, whose names may be left out, and two keys besides: `untried`
says why what has no sample has none, and `checked_in` names a file of cases for the same things.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neural_prep.checks.cases import Case
from neural_prep.checks.loading import cases_in, load_cases, read
from neural_prep.errors import InputError

_KEYS = ("defaults", "cases", "untried", "checked_in")


@dataclass(frozen=True, slots=True)
class Samples:
    """What a file of samples holds.

    Attributes:
        cases: The samples.
        untried: By import path, why there is no sample.
        checks: Cases that check the same modules and functions, among others.
    """

    cases: tuple[Case, ...]
    untried: Mapping[str, str]
    checks: tuple[Case, ...]


def load_samples(path: str | Path) -> Samples:
    """The samples of a file.

    Raises:
        InputError: if the file cannot be read or anything in it is wrong.
    """
    content = read(path, _KEYS)
    untried, checked_in = content.get("untried") or {}, content.get("checked_in")
    texts = isinstance(untried, dict) and all(isinstance(why, str) for why in untried.values())
    if not texts:
        raise InputError(f"{path}: untried: found {untried!r}, expected a reason for each name")
    if not isinstance(checked_in, str | None):
        raise InputError(f"{path}: checked_in: found {checked_in!r}, expected a file of cases")
    cases = cases_in(_named(content), path)
    for case in cases:
        if any(part.cut for part in case.tensors()):
            raise InputError(f"{path}: case {case.name}: a sample is not cut; leave out cut")
    checks = load_cases(Path(path).parent / checked_in) if checked_in else []
    return Samples(tuple(cases), untried, tuple(checks))


def _named(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a name for each case: the last part of what it checks, numbered if need be."""
    found = content.get("cases")
    if not isinstance(found, list):
        return dict(content)
    seen: dict[str, int] = {}
    named = []
    for each in found:
        if isinstance(each, dict) and "name" not in each:
            name = _last_part(each)
            seen[name] = seen.get(name, 0) + 1
            each = {"name": name if seen[name] == 1 else f"{name}-{seen[name]}", **each}
        named.append(each)
    return {**content, "cases": named}


def _last_part(content: Mapping[str, Any]) -> str:
    module = content.get("module")
    path = module.get("class_path") if isinstance(module, dict) else content.get("function")
    return str(path).rpartition(".")[2]
