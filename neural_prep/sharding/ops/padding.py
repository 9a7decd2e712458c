"""Padding: rows beyond an end belong to the rank at that end, and come from whoever has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.along import cast_by_autocast
from neural_prep.sharding.halo import fetch
from neural_prep.sharding.layout import Cut
from neural_prep.sharding.registry import sharded, sharded_alike
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.windows import Windows, plan_windows


@sharded("pad")
def _pad(
    input: ShardTensor,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> ShardTensor:
    """`(...)`, with `pad` for the last dimension first; negative padding cuts off."""
    shape, _ = rehearse(F.pad, input, pad, mode, value)
    _check_dtype(input, pad, mode, value)
    if mode == "circular" and min(pad) < 0 < max(pad):  # torch wraps what is left
        cropped = _pad(input, [min(each, 0) for each in pad])
        return _pad(cropped, [max(each, 0) for each in pad], mode)
    if mode in ("reflect", "replicate"):
        input = cast_by_autocast(input, lambda one: F.pad(one, [0] * len(pad), mode))
    layout = result = input.sharding
    local, rest = to_local(input), list(pad)
    fill = 0.0 if value is None else value
    for axis, cut in layout.cut_axes():
        place = 2 * (input.ndim - 1 - cut.dim)
        if not any(rest[place : place + 2]):
            continue
        windows = Windows(cut.total, shape[cut.dim], kernel=1, before=rest[place], edge=mode)
        plan = plan_windows(cut.sizes, windows, layout.rank(axis))
        local = fetch(local, plan.fetch, cut.dim, layout.group(axis), fill=fill)
        result = result.with_cut(axis, Cut(cut.dim, plan.sizes))
        rest[place : place + 2] = [0, 0]
    if any(rest):
        local = _pad_local(local, result.local_shape(shape), rest, mode, value)
    return from_local(local, result)


def _check_dtype(input: Tensor, pad: Sequence[int], mode: str, value: float | None) -> None:
    """Raises where torch lacks a kernel, which it says only of a piece with elements."""
    if not (input.is_floating_point() or input.is_complex()):
        small = torch.zeros([min(size, 2) for size in input.shape], dtype=input.dtype)
        F.pad(small, [max(0, min(each, 1)) for each in pad], mode, value)


def _pad_local(
    local: Tensor, shape: tuple[int, ...], pad: Sequence[int], mode: str, value: float | None
) -> Tensor:
    """Pads dimensions that are not cut; torch refuses to pad an empty piece in most ways."""
    if 0 in shape:
        return connected(shape, local, local, curved=mode in ("reflect", "replicate"))
    return F.pad(local, pad, mode, value)


@sharded("constant_pad_nd")
def _constant_pad_nd(
    input: ShardTensor,
    pad: Sequence[int],
    value: float = 0,
) -> ShardTensor:
    return _pad(input, pad, "constant", value)


@sharded_alike(
    *(f"reflection_pad{count}d" for count in (1, 2, 3)),
    *(f"replication_pad{count}d" for count in (1, 2, 3)),
)
def _pad_in_mode(
    function: Callable[..., Tensor],
    input: ShardTensor,
    padding: Sequence[int],
) -> ShardTensor:
    rehearse(function, input, padding)
    mode = "reflect" if function.__name__.startswith("reflection") else "replicate"
    return _pad(input, padding, mode)
