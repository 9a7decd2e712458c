"""Interpolation along one dimension as tables: which rows each output reads, with which weights.

Both are those of the whole dimension, in the precision that torch has. A nearest neighbour depends
on how torch's kernel rounds, so that the kernel itself is asked. Where torch's gradient is not
exactly that of its result, each has a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

_DIGIT = 4096  # row numbers are asked for in two digits, which float32 has exactly
_REACHES = {"linear": 1, "cubic": 2, "lanczos": 3}  # of kernels, in rows


@dataclass(frozen=True, slots=True)
class Resampling:
    """How one dimension is interpolated.

    Attributes:
        size: The dimension's global size.
        count: The output's.
        mode: `nearest`, `nearest-exact`, `linear`, `cubic` or `lanczos`.
        scale: The scale that was given; None: the ratio of sizes.
        dtype: In which torch calculates weights.
        beside: Size of the output's other dimension where there are two, as torch has another
            kernel for small outputs.
        aligned: Whether the first and last elements stay where they are.
        antialias: Whether kernels are as wide as the outputs' distance.
        copies: Whether no dimension changes its size.
    """

    size: int
    count: int
    mode: str
    scale: float | None
    dtype: torch.dtype
    beside: int | None = None
    aligned: bool = False
    antialias: bool = False
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Taps:
    """The rows that each output reads.

    Attributes:
        rows: `(count, width)`, int64.
        weights: `(count, width)`; None: each output is the one row that it reads.
        mask: `(count, width)`, False for what is not read; None: all is.
    """

    rows: Tensor
    weights: Tensor | None = None
    mask: Tensor | None = None

    @property
    def middles(self) -> Tensor:
        """For each output a row in the middle of those that it reads."""
        return self.rows[:, (self.rows.shape[1] - 1) // 2]

    def part(self, first: int, count: int) -> Taps:
        """Consecutive outputs."""
        chosen = slice(first, first + count)
        return Taps(
            self.rows[chosen].clone(),
            None if self.weights is None else self.weights[chosen].clone(),
            None if self.mask is None else self.mask[chosen].clone(),
        )

    def counted_from(self, low: int) -> Taps:
        """The same of rows that are counted from another one."""
        return replace(self, rows=self.rows - low)

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """All outputs: weighted sums of rows."""
        dtype = tensor.dtype
        tensor = self._as_weights(tensor)
        total: Tensor | None = None
        for place, rows in enumerate(self.rows.to(tensor.device).unbind(1)):
            term = self._weigh(tensor.index_select(dim, rows), place, dim)
            total = term if total is None else total.add_(term)
        assert total is not None
        return total.to(dtype)

    def spread(self, tensor: Tensor, dim: int, size: int) -> Tensor:
        """The adjoint of `gather`: adds outputs to the rows, `size` of them, that they read."""
        dtype = tensor.dtype
        outputs = self._as_weights(tensor).movedim(dim, 0).contiguous()
        total = outputs.new_zeros(size, *outputs.shape[1:])
        for place, rows in enumerate(self.rows.to(tensor.device).unbind(1)):
            total.index_add_(0, rows, self._weigh(outputs, place, 0))
        return total.movedim(0, dim).to(dtype)

    def _as_weights(self, tensor: Tensor) -> Tensor:
        return tensor if self.weights is None else tensor.to(self.weights.dtype)

    def _weigh(self, values: Tensor, place: int, dim: int) -> Tensor:
        """One row of each output along `dim`, times its weight; what is not read may be NaN."""
        if self.weights is None:
            return values
        ones = (1,) * (values.ndim - 1 - dim)
        values = values * self.weights[:, place].to(values.device).reshape(-1, *ones)
        if self.mask is None:
            return values
        return torch.where(self.mask[:, place].to(values.device).reshape(-1, *ones), values, 0)


def taps_of(resampling: Resampling) -> tuple[Taps, Taps]:
    """What torch's result reads, and what its gradient goes to."""
    if resampling.mode.startswith("nearest"):
        return _nearest(resampling)
    copy = Taps(torch.arange(resampling.count)[:, None])
    if resampling.antialias:
        found = _antialiased(resampling)
        return copy if resampling.size == resampling.count else found, found
    if resampling.mode == "linear":
        return (_linear(resampling),) * 2
    found = _cubic(resampling)
    return found, copy if resampling.copies else found


def _nearest(resampling: Resampling) -> tuple[Taps, Taps]:
    """Interpolates row numbers; the gradient of the sum counts each row's outputs."""
    beside = () if resampling.beside is None else (resampling.beside,)
    given = None if resampling.scale is None else (resampling.scale, *map(float, beside))
    sizes = (resampling.count, *beside) if given is None else None
    rows = torch.arange(resampling.size)
    with torch.inference_mode(False), torch.enable_grad():
        digits = torch.stack([rows // _DIGIT, rows % _DIGIT]).to(resampling.dtype).requires_grad_()
        shaped = digits.reshape(2, 1, -1, *(1 for _ in beside))
        found = F.interpolate(shaped, sizes, given, resampling.mode)  # (2, 1, count, beside)
        (counts,) = torch.autograd.grad(found.sum(), digits)
    high, low = found.detach().reshape(2, resampling.count, -1)[..., 0].to(torch.int64)
    outputs = counts[0].to(torch.int64) // (resampling.beside or 1)
    there, back = high * _DIGIT + low, rows.repeat_interleave(outputs)
    return Taps(there[:, None]), Taps(back[:, None])


def _linear(resampling: Resampling) -> Taps:
    size = resampling.size
    if size == resampling.count:
        rows = torch.arange(size)
        first, second, share = rows, rows, torch.zeros(size, dtype=resampling.dtype)
    else:
        positions = _positions(resampling).clamp(min=0)
        first = _floor(positions, size)
        second = (first + 1).clamp(max=size - 1)
        share = (positions - first).clamp(0, 1)
    return Taps(torch.stack([first, second], 1), torch.stack([1 - share, share], 1))


def _cubic(resampling: Resampling) -> Taps:
    size = resampling.size
    positions = _positions(resampling)
    first = _floor(positions, size)
    share = (positions - first).clamp(0, 1)
    rows = (first[:, None] + torch.arange(-1, 3)).clamp(0, size - 1)
    distances = torch.stack([share + 1, share, 1 - share, 2 - share], 1)
    return Taps(rows, _keys(distances, -0.75))


def _antialiased(resampling: Resampling) -> Taps:
    """Kernels that are stretched where there are fewer outputs than rows, and add up to 1."""
    kernel: Callable[[Tensor], Tensor] = _KERNELS[resampling.mode]
    step = _step(resampling)
    stretch = step.clamp(min=1)
    reach = _REACHES[resampling.mode] * stretch
    centers = step * (torch.arange(resampling.count, dtype=resampling.dtype) + 0.5)
    low = (centers - reach + 0.5).to(torch.int64).clamp(min=0)
    high = (centers + reach + 0.5).to(torch.int64).clamp(max=resampling.size)
    lengths = (high - low).clamp(0, 2 * ceil(float(reach)) + 1)
    places = torch.arange(int(lengths.max()))
    rows = low[:, None] + places
    mask = places < lengths[:, None]
    weights = kernel(((rows - centers[:, None] + 0.5) / stretch).abs())
    weights = torch.where(mask, weights, 0)
    totals = weights.sum(1, keepdim=True)
    weights = weights / torch.where(totals == 0, 1, totals)
    whole = bool(mask.all())
    return Taps(rows.clamp(max=resampling.size - 1), weights, None if whole else mask)


def _positions(resampling: Resampling) -> Tensor:
    """Where each output lies among the rows."""
    outputs = torch.arange(resampling.count, dtype=resampling.dtype)
    step = _step(resampling)
    return step * outputs if resampling.aligned else step * (outputs + 0.5) - 0.5


def _step(resampling: Resampling) -> Tensor:
    """The distance of outputs, in rows."""
    size, count = resampling.size, resampling.count
    if resampling.aligned:
        size, count = (size - 1, count - 1) if count > 1 else (0, 1)
    elif resampling.scale is not None:
        return torch.tensor(1 / resampling.scale, dtype=resampling.dtype)
    return torch.tensor(size, dtype=resampling.dtype) / count


def _floor(positions: Tensor, size: int) -> Tensor:
    """The row at or before each position; torch rounds to float32 here, whatever the dtype."""
    return positions.to(torch.float32).floor().to(torch.int64).clamp(max=size - 1)


def _keys(distances: Tensor, a: float) -> Tensor:
    """The cubic convolution kernel of Keys (1981)."""
    x = distances
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _lanczos(distances: Tensor) -> Tensor:
    return torch.where(distances < 3, torch.sinc(distances) * torch.sinc(distances / 3), 0)


_KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda distances: (1 - distances).clamp(min=0),
    "cubic": lambda distances: _keys(distances, -0.5),
    "lanczos": _lanczos,
}
