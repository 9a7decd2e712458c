"""Interpolation one dimension after the other: ranks fetch the rows that their outputs read.

An output belongs to the rank that has the row in the middle of those, so that the cut is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.adjoint import apply, connected
from neural_prep.sharding.halo import Fetch, fetch, plan_fetch
from neural_prep.sharding.layout import Cut
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.taps import Resampling, Taps, taps_of
from neural_prep.sharding.windows import shares

_KERNELS = {"bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
_BEYOND = 129  # torch chooses kernels by the sum of two dimensions, which is small up to 128


@sharded("interpolate")
def _interpolate(
    input: ShardTensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """`(N, C, ...)`, cut along any dimensions."""
    options: dict[str, Any] = {
        "size": size,
        "scale_factor": scale_factor,
        "mode": mode,
        "align_corners": align_corners,
        "recompute_scale_factor": recompute_scale_factor,
        "antialias": antialias,
    }
    shape, dtype = _check(input, options)
    if mode == "area":
        pool = getattr(F, f"adaptive_avg_pool{input.ndim - 2}d")
        return pool(input, shape[2:])  # type: ignore[no-any-return]
    if all(cut.dim < 2 for _, cut in input.sharding.cut_axes()):
        return _interpolate_pieces(input, shape, options)
    if not input.is_floating_point() and not mode.startswith("nearest"):
        raise refusal("interpolate", input.sharding, f"and {input.dtype}, {mode}, is not supported")
    given = None if recompute_scale_factor else scale_factor
    scales = [None if scale is None else float(scale) for scale in _each(given, input.ndim - 2)]
    local, layout = to_local(input), input.sharding
    for dim in sorted(range(2, input.ndim), key=lambda dim: shape[dim] / input.shape[dim]):
        axis = input.sharding.axis_of(dim)
        cut = None if axis is None else input.sharding.cuts[axis]
        plan = _plan(
            (input.shape[dim],) if cut is None else cut.sizes,
            Resampling(
                size=input.shape[dim],
                count=shape[dim],
                mode=_KERNELS.get(mode, mode),
                scale=scales[dim - 2],
                dtype=torch.float64 if input.dtype == torch.float64 else torch.float32,
                beside=min(shape[5 - dim], _BEYOND) if input.ndim == 4 else None,
                aligned=bool(align_corners),
                antialias=antialias,
                copies=shape == tuple(input.shape),
            ),
            0 if axis is None else layout.rank(axis),
        )
        local = fetch(local, plan.fetch, dim, None if axis is None else layout.group(axis))
        local = apply(_Resample, local, plan.there, plan.back, dim)
        if axis is not None:
            layout = layout.with_cut(axis, Cut(dim, plan.sizes))
    return from_local(local.to(dtype), layout)


def _check(input: Tensor, options: dict[str, Any]) -> tuple[tuple[int, ...], torch.dtype]:
    """The output's global shape and dtype; raises what torch raises, on all ranks alike.

    Of an empty batch torch checks all shapes; whether it has a kernel shows in a single element.
    """
    empty = torch.empty((0, *input.shape[1:]), dtype=input.dtype, device=input.device)
    shape = (input.shape[0], *F.interpolate(empty, **options).shape[1:])
    one = torch.zeros((1,) * input.ndim, dtype=input.dtype, device=input.device)
    kept = {name: options[name] for name in ("mode", "align_corners", "antialias")}
    return shape, F.interpolate(one, size=(2,) * (input.ndim - 2), **kept).dtype


def _interpolate_pieces(
    input: ShardTensor, shape: tuple[int, ...], options: dict[str, Any]
) -> Tensor:
    """Where no dimension that is interpolated is cut."""
    local, layout = to_local(input), input.sharding
    piece = layout.local_shape(shape)
    found = connected(piece, local, local) if 0 in piece else F.interpolate(local, **options)
    return from_local(found, layout)


def _each(value: Any, count: int) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,) * count


@dataclass(frozen=True, slots=True)
class _Plan:
    """One rank's part.

    Attributes:
        sizes: How many outputs each rank computes.
        there: What this rank's read of the rows that it fetches.
        back: Where their gradient goes.
        fetch: How it gets them.
    """

    sizes: tuple[int, ...]
    there: Taps
    back: Taps
    fetch: Fetch


@lru_cache(maxsize=256)
def _plan(sizes: tuple[int, ...], resampling: Resampling, rank: int) -> _Plan:
    there, back = taps_of(resampling)
    share = shares(sizes, there.middles)
    firsts = list(accumulate(share, initial=0))
    wanted = [
        _span(there.part(first, own), back.part(first, own))
        for first, own in zip(firsts, share, strict=False)
    ]
    low = int(wanted[rank][0]) if len(wanted[rank]) else 0
    own = firsts[rank], share[rank]
    return _Plan(
        sizes=share,
        there=there.part(*own).counted_from(low),
        back=back.part(*own).counted_from(low),
        fetch=plan_fetch(sizes, wanted, rank),
    )


def _span(*parts: Taps) -> Tensor:
    """All rows from the first to the last one that outputs read."""
    if 0 in parts[0].rows.shape:
        return torch.empty(0, dtype=torch.int64)
    low = min(int(part.rows.min()) for part in parts)
    high = max(int(part.rows.max()) for part in parts)
    return torch.arange(low, high + 1)


class _Resample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, there: Taps, back: Taps, dim: int) -> Tensor:
        ctx.call = (there, back, dim, tensor.shape[dim])
        return there.gather(tensor, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return apply(_Spread, grad, *ctx.call), None, None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor, there: Taps, back: Taps, dim: int, size: int) -> Tensor:
        ctx.call = (there, back, dim)
        return back.spread(grad, dim, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return apply(_Resample, grad, *ctx.call), None, None, None, None
