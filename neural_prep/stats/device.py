"""The kernel's definition in torch, for devices that numba's loop does not run on.

It is the text at the top of `kernel.py` over many steps at once, with the same lanes and tiles,
added in the same order. Elementwise operations do it, one rounding in each: so a record does not
depend on what is summed beside it, and on torch's CPU device has the kernel's bits. A cumulative
sum would take fewer calls, but promises no order on a GPU. Zeros are written as +0, because a
minimum of 0 and -0 is either.

What is summed are pairs of steps, x - p: for a step's own values p is a step of zeros, which
changes no bit. A value takes about 60 bytes of memory meanwhile.

Legend: P pairs, O outer and I inner variables, N grid points, J tiles of G groups of W lanes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from neural_prep.stats.kernel import FAR, SAMPLE, STEADY, TILE, lanes_of

_MEAN, _M2 = 0, 2  # rows of moments `(4, P, O, I)`: mean, its error, M2, its error


@dataclass(frozen=True, slots=True)
class _Rows:
    """Values, or differences, in float64.

    Attributes:
        values: `(P, O, N, I)`.
        finite: Which of them count.
        count: `(P, O, I)`, how many do.
    """

    values: Tensor
    finite: Tensor
    count: Tensor

    def take(self, pairs: Tensor) -> _Rows:
        """Some of the pairs."""
        return _Rows(self.values[pairs], self.finite[pairs], self.count[pairs])


def pair_records(x: Tensor, p: Tensor, inner: int) -> Tensor:
    """The records `(P, 8, O * I)` of differences of steps.

    Args:
        x: `(P, O, N * I)` float32 or float64, NaN where missing; N is not 0.
        p: What is subtracted, likewise; zeros for the record of `x` itself.
        inner: I.

    >>> x = torch.tensor([[[1.0, 3.0, float("nan")]]])
    >>> pair_records(x, torch.zeros_like(x), 1)[0, :, 0].tolist()
    [2.0, 1.0, 2.0, 0.0, 2.0, 0.0, 1.0, 3.0]
    """
    x, p = (each.reshape(*each.shape[:2], -1, inner) for each in (x, p))  # (P, O, N, I)
    values = x.double() - p.double()
    finite = torch.isfinite(values)
    rows = _Rows(values, finite, finite.sum(2).double())
    least = torch.where(finite, values, math.inf).amin(2)
    most = torch.where(finite, values, -math.inf).amax(2)
    shift = _guess_shift(rows)
    moments, off = _close(_deviations(rows, shift), shift, rows.count)
    same = least == most
    moments = torch.where(same, _alone(least), moments)
    variance = moments[_M2] / rows.count.clamp(min=1.0)
    far = ~same & (off * off > FAR * FAR * variance)
    steady = moments[_MEAN] * moments[_MEAN] > STEADY * STEADY * variance
    doubtful = (far | steady).flatten(1).any(1).nonzero()[:, 0]
    if doubtful.numel():
        moments[:, doubtful] = _sum_again(
            *(rows.take(doubtful), _rounding(x[doubtful].double(), p[doubtful].double())),
            *(far[doubtful], steady[doubtful], shift[doubtful], moments[:, doubtful]),
        )
    missing = x.shape[2] - rows.count
    record = torch.stack([rows.count, missing, *moments, least, most], 1)  # (P, 8, O, I)
    return record.flatten(2) + 0.0


def _sum_again(
    rows: _Rows, rounding: Tensor, far: Tensor, steady: Tensor, shift: Tensor, moments: Tensor
) -> Tensor:
    """The moments, about the mean where the first shift was far or rounding could show."""
    far = far | (steady & ((rounding != 0.0) & rows.finite).any(2))
    shift = torch.where(far, moments[_MEAN], shift)
    again, _ = _close(_deviations(rows, shift, rounding), shift, rows.count)
    return torch.where(far, again, moments)


def _guess_shift(rows: _Rows) -> Tensor:
    """Each variable's mean `(P, O, I)` over up to `SAMPLE` evenly spaced points."""
    points = rows.values.shape[2]
    taken = min(points, SAMPLE)
    sample = torch.tensor([k * points // taken for k in range(taken)], device=rows.values.device)
    finite = rows.finite[:, :, sample]
    total = _add_up(torch.where(finite, rows.values[:, :, sample], 0.0), 2)
    present = finite.sum(2).double()
    return torch.where(present > 0.0, total / present, 0.0)


def _deviations(rows: _Rows, shift: Tensor, rounding: Tensor | None = None) -> Tensor:
    """What is summed `(P, O, N, I)`: 0 for what does not count."""
    deviations = rows.values - shift.unsqueeze(2)
    if rounding is not None:
        deviations = deviations + rounding
    return torch.where(rows.finite, deviations, 0.0)


def _close(deviations: Tensor, shift: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The moments `(4, P, O, I)` from the deviations, and how far the shift was off."""
    (total, squares), (error, squares_error) = _sum_row(deviations)
    total = total + error
    off = total / count
    mean, mean_low = _two_sum(shift, off)
    m2, low = _two_sum(squares, -(total * off))
    m2, m2_low = _two_sum(m2, low + squares_error)
    positive = ~(m2 <= 0.0)  # NaN too, which has overflowed
    m2, m2_low = torch.where(positive, m2, 0.0), torch.where(positive, m2_low, 0.0)
    moments = torch.stack([*_settle(mean, mean_low, math.nan), *_settle(m2, m2_low, math.inf)])
    some = count > 0.0
    return torch.where(some, moments, 0.0), torch.where(some, off, 0.0)


def _settle(high: Tensor, low: Tensor, mark: float) -> tuple[Tensor, Tensor]:
    """Marks what overflowed, as `moments.settle` does."""
    sound = torch.isfinite(high + low)
    return torch.where(sound, high, mark), torch.where(sound, low, 0.0)


def _alone(value: Tensor) -> Tensor:
    """The moments `(4, P, O, I)` of values that are all equal."""
    zero = torch.zeros_like(value)
    return torch.stack([value, zero, zero, zero])


def _sum_row(deviations: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the deviations and of their squares `(2, P, O, I)`, and the errors of both."""
    deviations = _cut(deviations)  # (P, O, J, G, W, I)
    lanes = _add_up(torch.stack((deviations, deviations * deviations)), 4)  # (2, P, O, J, W, I)
    while (half := lanes.shape[4] // 2) > 0:
        lanes = lanes[:, :, :, :, :half] + lanes[:, :, :, :, half:]
    tiles = lanes.squeeze(4).movedim(3, 0).contiguous()  # (J, 2, P, O, I)
    totals = [torch.zeros_like(tiles[0])]
    for tile in tiles:
        totals.append(totals[-1] + tile)
    _, errors = _two_sum(torch.stack(totals[:-1]), tiles)
    return totals[-1], _add_up(errors, 0)


def _cut(values: Tensor) -> Tensor:
    """Cuts rows `(P, O, N, I)` into tiles, groups and lanes `(P, O, J, G, W, I)`, with 0 behind."""
    *outside, points, inner = values.shape
    lanes = lanes_of(inner)
    groups = -(-points // lanes)
    tiles, groups = -(-groups // TILE), min(groups, TILE)
    padded = pad(values, (0, 0, 0, tiles * groups * lanes - points))
    return padded.view(*outside, tiles, groups, lanes, inner)


def _add_up(values: Tensor, dim: int) -> Tensor:
    """The sum along a dimension, in its order."""
    total, *others = values.unbind(dim)
    for value in others:
        total = total + value
    return total


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`a + b` as rounded sum and exact rounding error."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _rounding(x: Tensor, p: Tensor) -> Tensor:
    """What `x - p` rounds away."""
    return _two_sum(x, -p)[1]
