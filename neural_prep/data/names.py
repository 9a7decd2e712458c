"""Names and units of features that a store does not name itself: from its YAML file or the user."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from neural_prep.data.source import StoreOptions, Variable
from neural_prep.errors import InputError

_OURS = "data_config.yaml"
_THEIRS = ".datastore.yaml"  # any name that ends so
_DROP = "remove_state_features_with_index"


@dataclass(frozen=True, slots=True)
class FeatureNames:
    """What is known of a store's features before their number is.

    Attributes:
        names: One for each feature, or for each that is kept; None: `feature_<index>`.
        units: As many as names.
        drop: Indices of the features that are left out.
        names_origin: Where the names were given, for messages.
        drop_origin: Where the indices were given, for messages.
    """

    names: tuple[str, ...] | None = None
    units: tuple[str | None, ...] | None = None
    drop: tuple[int, ...] = ()
    names_origin: str = "data.variables"
    drop_origin: str = "data.drop"

    def columns(self, features: int) -> tuple[tuple[Variable, ...], tuple[int, ...]]:
        """The variables that are kept, and for each stored feature its position among them or -1.

        Raises:
            InputError: if the names or indices don't fit the number of features.

        >>> FeatureNames(names=("t", "u"), drop=(1,)).columns(3)[1]
        (0, -1, 1)
        """
        wrong = [index for index in self.drop if not 0 <= index < features]
        if wrong:
            raise InputError(
                f"{self.drop_origin}: feature {wrong[0]} is to be dropped, but the samples have "
                f"{features} features (0 to {features - 1}); correct the index"
            )
        kept = [index for index in range(features) if index not in self.drop]
        if not kept:
            raise InputError(f"{self.drop_origin}: all {features} features are dropped; keep one")
        position = {index: i for i, index in enumerate(kept)}
        return self._variables(kept, features), tuple(position.get(i, -1) for i in range(features))

    def _variables(self, kept: list[int], features: int) -> tuple[Variable, ...]:
        if self.names is None:
            return tuple(Variable(f"feature_{index}") for index in kept)
        names, units = self.names, self.units or (None,) * len(self.names)
        if len(names) == features:
            names, units = tuple(names[i] for i in kept), tuple(units[i] for i in kept)
        if len(names) != len(kept):
            dropped = f" of which {features - len(kept)} dropped" if len(kept) < features else ""
            raise InputError(
                f"{self.names_origin} gives {len(names)} names, but the samples have {features} "
                f"features{dropped}; give {len(kept)} names"
            )
        for name in names:
            if not name.strip() or names.count(name) > 1:
                what = f"names {name!r} more than once" if name.strip() else "has an empty name"
                raise InputError(f"{self.names_origin} {what}; give each variable its own name")
        return tuple(map(Variable, names, units))


def find_names(root: Path, options: StoreOptions) -> FeatureNames:
    """What the user says of the features, else what the YAML file at the store's root says.

    Raises:
        InputError: if the file cannot be understood.
    """
    found = _read_file(root)
    if options.variables is not None:
        names = tuple(options.variables)
        found = replace(found, names=names, units=None, names_origin="data.variables")
    if options.drop is not None:
        found = replace(found, drop=tuple(options.drop), drop_origin="data.drop")
    return found


def _read_file(root: Path) -> FeatureNames:
    path = _find_file(root)
    if path is None:
        return FeatureNames()
    dataset = _read_dataset(path)
    names = _list(path, dataset, "var_names", (str,), "of texts such as [t_2, z_500]")
    units = _list(path, dataset, "var_units", (str, type(None)), "of texts such as [K, m**2/s**2]")
    drop = _list(path, dataset, _DROP, (int,), "of indices such as [15]")
    if names is not None and units is not None and len(names) != len(units):
        raise InputError(
            f"{path}: dataset.var_units has {len(units)} entries, dataset.var_names {len(names)}; "
            "give one unit for each name"
        )
    return FeatureNames(
        names=names,
        units=None if names is None else units,
        drop=drop or (),
        names_origin=f"{path}: dataset.var_names",
        drop_origin=f"{path}: dataset.{_DROP}",
    )


def _find_file(root: Path) -> Path | None:
    # Listed, not asked for by name: a link that leads nowhere is there, and is a mistake.
    names = sorted(path.name for path in root.iterdir())
    if _OURS in names:
        return root / _OURS
    found = [name for name in names if name.endswith(_THEIRS) and not name.startswith(".")]
    if len(found) > 1:
        raise InputError(
            f"{root} has several descriptions ({', '.join(found)}); keep one, or add {_OURS}"
        )
    return root / found[0] if found else None


def _read_dataset(path: Path) -> Mapping[str, object]:
    """The file's `dataset` section; empty where it has none."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    # ValueError: text that is no UTF-8, a date that does not exist.
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as YAML ({reason}); correct it") from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise InputError(f"{path} holds {_kind(content)}; expected keys, such as dataset")
    dataset = content.get("dataset")
    if dataset is None:
        return {}
    if not isinstance(dataset, Mapping):
        raise InputError(
            f"{path}: dataset is {_kind(dataset)}; expected keys below it, such as var_names"
        )
    return dataset


def _list(
    path: Path, dataset: Mapping[str, object], key: str, kinds: tuple[type, ...], what: str
) -> tuple[Any, ...] | None:
    """A list whose entries are of these very types (True is no int); None where there is none."""
    listed = dataset.get(key)
    if listed is None:
        return None
    if not isinstance(listed, list):
        raise InputError(f"{path}: dataset.{key} is {_kind(listed)}; expected a list {what}")
    for entry in listed:
        if type(entry) not in kinds:
            quote = "; put it in quotes" if str in kinds else ""
            raise InputError(
                f"{path}: dataset.{key} has the entry {_kind(entry)}; expected a list {what}{quote}"
            )
    return tuple(listed)


def _kind(value: object) -> str:
    """A value and its type for messages: `'t_2' (str)`."""
    return f"{textwrap.shorten(repr(value), 80)} ({type(value).__name__})"
