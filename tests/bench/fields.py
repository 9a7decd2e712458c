"""Smooth fields with a little noise, rounded as packed real data are.

What compresses too well or not at all would time the wrong thing: rounding and noise are set so
that zstd makes real float32 fields of about this size 1.5 to 3 times smaller.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_WAVES = 6


def make_fields(
    steps: int, grid: tuple[int, int], features: int, seed: int
) -> Iterator[NDArray[np.float32]]:
    """One step after the other, `(y, x, features)`: waves that travel, and noise, on an offset."""
    generator = np.random.default_rng(seed % 2**32)
    y, x = (np.linspace(0.0, 2 * np.pi, size)[:, None] for size in grid)
    shape = (*grid, features)
    waves = np.zeros((2, *shape), np.float32)
    for wave in range(_WAVES):
        amplitude = generator.normal(0.0, 1.0 / (1 + wave), (2, features))
        along_y, along_x = generator.integers(1, 4 + 2 * wave, 2)
        phase = (along_y * y + along_x * x.T)[..., None]
        waves[0] += amplitude[0] * np.cos(phase)
        waves[1] += amplitude[1] * np.sin(phase)
    offset = generator.choice([0.0, 280.0, 5000.0, 1e5], features).astype(np.float32)
    quantum = 2.0 ** np.floor(np.log2(np.maximum(offset, 32.0) / 2**14)).astype(np.float32)
    for step in range(steps):
        now = np.float32(np.cos(step / 9)) * waves[0] + np.float32(np.sin(step / 9)) * waves[1]
        now *= 512 * quantum  # a std of about a thousand quanta, which is ten bits
        now += 3 * quantum * generator.standard_normal(shape, np.float32)
        yield np.rint(now / quantum) * quantum + offset
