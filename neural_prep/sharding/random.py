"""Random numbers that depend on one drawn seed and the global index of an element alone.

Every rank makes those of its own piece, at local cost, and they are the same bits for any number of
ranks and any cut. Element i gets the i-th output of SplitMix64 with that seed: the state is
advanced by a constant for each element, so that any output is found without the ones before. See
Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants as
in Vigna's https://prng.di.unimi.it/splitmix64.c. Arithmetic is modulo 2**64 in int64, the same on
every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from neural_prep.sharding.layout import Layout

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def draw_seed(
    layout: Layout, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """A seed that all ranks agree on: the first rank of the mesh draws it.

    Args:
        layout: Of the tensor that it is for.
        device: Where that tensor is.
        generator: On the CPU; None: torch's own. Every rank draws, so that its state moves on alike
            on all of them.
    """
    seed = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, generator=generator)
    seed = seed.to(device)
    for axis in range(layout.mesh.ndim):
        group = layout.group(axis)
        if dist.get_world_size(group) > 1:
            dist.broadcast(seed, dist.get_global_rank(group, 0), group)
    return seed


def uniform(seed: Tensor, layout: Layout, shape: Sequence[int], stream: int = 0) -> Tensor:
    """Numbers in [0, 1), float64 with 53 random bits, for this rank's piece.

    Args:
        seed: From `draw_seed`.
        layout: Of the global tensor.
        shape: The global shape.
        stream: Another one gives numbers that have nothing to do with these.
    """
    bits = _split_mix(_split_mix(seed, stream + 1), _indices(layout, shape, seed.device) + 1)
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


def normal(seed: Tensor, layout: Layout, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers in float64, by Box and Muller's transform."""
    radius = torch.sqrt(-2 * torch.log1p(-uniform(seed, layout, shape, 0)))
    return radius * torch.cos(2 * math.pi * uniform(seed, layout, shape, 1))


def _indices(layout: Layout, shape: Sequence[int], device: torch.device) -> Tensor:
    """The place of each element of this rank's piece in the global tensor, row by row."""
    starts = {cut.dim: cut.start(layout.rank(axis)) for axis, cut in layout.cut_axes()}
    places = torch.zeros((), dtype=torch.int64, device=device)
    for dim, size in enumerate(layout.local_shape(shape)):
        start = starts.get(dim, 0)
        along = torch.arange(start, start + size, device=device)
        places = places[..., None] * shape[dim] + along
    return places


def _split_mix(seed: Tensor, count: Tensor | int) -> Tensor:
    """The output after `count` steps."""
    step = _signed(count * _GAMMA % 2**64) if isinstance(count, int) else count * _signed(_GAMMA)
    z = seed + step
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """As if without a sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
