"""What a `.npy` file's header says where the file ends before its values do."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import Any

import numpy as np


def cut_off_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and type of a file that is shorter than its whole header says; None of any other."""
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, dtype = read(file)
        except Exception:  # the header is damaged, or of a kind that numbers do not need
            return None
        end = file.tell() + prod(shape) * dtype.itemsize
        return (shape, dtype) if file.seek(0, os.SEEK_END) < end else None
