"""What a format offers: each module of this package with `check` and `write` is one.

A new format is a new file here and nothing else; it goes by the file's name. Only the module asked
for is imported, because some bring heavy packages along; all of them are when a name is unknown,
to list those there are.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from neural_prep import writers
from neural_prep.errors import InputError
from neural_prep.stats.statistics import Statistics


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What a user may say about the files, whatever the formats.

    Attributes:
        parameter_weights: A variable's weight in the loss by its level; None writes no weights.
    """

    parameter_weights: Mapping[int, float] | None = None


class Format(Protocol):
    """A module that writes results in one format."""

    def check(
        self, groups: Mapping[str, Sequence[str]], lags: Sequence[int], options: FormatOptions
    ) -> None:
        """Says before the work what would keep `write` from succeeding after it.

        Args:
            groups: Each group's variable names.
            lags: The lags in the user's order.
            options: What the user said about the files.

        Raises:
            InputError: if the format cannot be written.
        """
        ...

    def write(
        self, statistics: Statistics, directory: Path, options: FormatOptions
    ) -> tuple[Path, ...]:
        """Replaces the format's files in `directory`, which exists, and returns their paths.

        Raises:
            OSError: if a file cannot be written; the old ones are then still whole.
        """
        ...


def find_format(name: str) -> Format:
    """The format of that name.

    Raises:
        InputError: if there is none; the message lists those there are, the nearest first.
    """
    module = _load(name) if name in _module_names() else None
    if module is not None:
        return module
    known = sorted(filter(_load, _module_names()), key=lambda each: _distance(name, each))
    raise InputError(f"output.formats: {name!r} is not a format; use one of {', '.join(known)}")


def _module_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(writers.__path__))


def _load(name: str) -> Format | None:
    """The module as a format, or None where it is none."""
    module = importlib.import_module(f"{writers.__name__}.{name}")
    is_format = callable(getattr(module, "check", None)) and callable(
        getattr(module, "write", None)
    )
    return cast(Format, module) if is_format else None


def _distance(name: str, other: str) -> float:
    return 1.0 - difflib.SequenceMatcher(None, name, other).ratio()
