"""Weights of the variables in a loss, by the level that each name ends in."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from neural_prep.errors import InputError

_LEVEL = re.compile(r"_(\d+)[A-Za-z]?$")
"""What follows the last `_`, with or without one letter after it: `z_500`, `pres_0g`."""


def parameter_weights(names: Sequence[str], table: Mapping[int, float]) -> NDArray[np.float64]:
    """Each variable's weight, `(V,)`.

    Args:
        names: The variables' names, which end in `_<level>` or `_<level><letter>`.
        table: From level to weight.

    Raises:
        InputError: if a variable has no weight, or a weight is negative or not finite.

    >>> parameter_weights(["t_2", "pres_0g", "z_500"], {2: 1.0, 0: 0.1, 500: 0.03})
    array([1.  , 0.1 , 0.03])
    """
    for level, weight in table.items():
        if not (math.isfinite(weight) and weight >= 0):
            raise InputError(
                f"parameter_weights: the weight of level {level} is {weight}; "
                "give a finite number that is not negative"
            )
    levels = [_level(name) for name in names]
    lacking = [
        f"{name} ({'no level' if level is None else f'level {level}'})"
        for name, level in zip(names, levels, strict=True)
        if level not in table
    ]
    if lacking:
        raise InputError(
            f"parameter_weights: no weight for {', '.join(lacking)}; the table has levels "
            f"{', '.join(map(str, table)) or 'none'}; add what is lacking or leave the table out"
        )
    return np.array([table[level] for level in levels if level is not None], dtype=np.float64)


def _level(name: str) -> int | None:
    match = _LEVEL.search(name)
    return int(match[1]) if match else None
