"""Roots of sums of powers, with torch's gradient, 0, where the sum is 0."""

from __future__ import annotations

import torch
from torch import Tensor


def root(powers: Tensor, p: float) -> Tensor:
    """The p-th root.

    Args:
        powers: A sum of p-th powers.
        p: Not 0. The root of 0 is an infinity where it is negative.
    """
    if p < 0:
        return powers ** (1 / p)
    zero = powers == 0
    safe = torch.where(zero, torch.ones_like(powers), powers)
    found = safe.sqrt() if p == 2 else safe ** (1 / p)
    return torch.where(zero, torch.zeros_like(powers), found)
