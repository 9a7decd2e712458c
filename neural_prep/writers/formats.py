"""What a format offers: each module of this package with `check` and `render` is one.

A new format is a new file here and nothing else; it goes by the file's name. Only the module asked
for is imported, because some bring heavy packages along; all of them are when a name is unknown,
to list those there are.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from neural_prep import writers
from neural_prep.errors import InputError
from neural_prep.stats.statistics import Statistics
from neural_prep.writers.atomic import replacing

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What a user may say about the files, whatever the formats.

    Attributes:
        parameter_weights: A variable's weight in the loss by its level; None writes no weights.
    """

    parameter_weights: Mapping[int, float] | None = None


class Format(Protocol):
    """A module that renders results in one format.

    Attributes:
        FILES: Names of all files that it may write.
    """

    FILES: tuple[str, ...]

    def check(
        self, groups: Mapping[str, Sequence[str]], lags: Sequence[int], options: FormatOptions
    ) -> None:
        """Says before the work what would keep `render` from succeeding after it.

        Args:
            groups: Each group's variable names.
            lags: The lags in the user's order.
            options: What the user said about the files.

        Raises:
            InputError: if the format cannot be written.
        """
        ...

    def render(self, statistics: Statistics, options: FormatOptions) -> dict[str, bytes]:
        """The files' contents by their names, which are among `FILES`."""
        ...


def write_formats(
    names: Sequence[str], statistics: Statistics, directory: Path, options: FormatOptions
) -> tuple[Path, ...]:
    """Replaces the files of several formats, all of them or none, and returns their paths.

    Files that an earlier run left and this one does not write stay, with a warning.

    Raises:
        OSError: if a file cannot be written; the old ones are then still whole.
    """
    formats = [find_format(name) for name in names]
    contents: dict[str, bytes] = {}
    for each in formats:
        contents.update(each.render(statistics, options))
    paths = tuple(directory / name for name in contents)
    with replacing(*paths) as files:
        for file, content in zip(files, contents.values(), strict=True):
            file.write(content)
    known = {name for each in filter(None, map(_load, _module_names())) for name in each.FILES}
    for stale in sorted(known - set(contents)):
        if (directory / stale).exists():
            logger.warning(
                "warning: %s is an earlier run's: this run has nothing to write there",
                directory / stale,
            )
    return paths


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
        getattr(module, "render", None)
    )
    return cast(Format, module) if is_format else None


def _distance(name: str, other: str) -> float:
    return 1.0 - difflib.SequenceMatcher(None, name, other).ratio()
