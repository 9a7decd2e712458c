"""Fetches the rows that pooling windows read along cut dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.convolving import each_dim
from neural_prep.sharding.halo import fetch
from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.registry import name_of
from neural_prep.sharding.shard_tensor import ShardTensor, to_local
from neural_prep.sharding.windows import Plan, Windows, plan_windows

Sizes = int | Sequence[int]


@dataclass(frozen=True, slots=True)
class Pooling:
    """The hyper-parameters that all pooling has, for each dimension.

    Attributes:
        kernel: Positions in a window.
        stride: From one window to the next.
        padding: Positions before and after the dimension.
        dilation: From one position in a window to the next.
        ceil_mode: Whether windows may reach beyond the padding.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool

    @classmethod
    def of(
        cls,
        count: int,
        kernel: Sizes,
        stride: Sizes | None,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
    ) -> Pooling:
        """From torch's arguments, for a number of dimensions."""
        steps = kernel if stride is None or stride in ([], ()) else stride
        return cls(
            kernel=each_dim(kernel, count),
            stride=each_dim(steps, count),
            padding=each_dim(padding, count),
            dilation=each_dim(dilation, count),
            ceil_mode=ceil_mode,
        )


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a rank computes its outputs from.

    Attributes:
        local: The rows that its windows read; along cut dimensions with their padding.
        layout: The output's.
        padding: What torch still has to pad.
        plans: By dimension, how a cut one is divided.
    """

    local: Tensor
    layout: Layout
    padding: tuple[int, ...]
    plans: dict[int, Plan]


def fetch_windows(
    tensor: ShardTensor, shape: Sequence[int], pooling: Pooling, edge: str, fill: float
) -> Fetched:
    """Fetches along each cut dimension that is pooled.

    Args:
        tensor: The input.
        shape: The output's global shape.
        pooling: The windows.
        edge: What padding is, as `Windows` has it.
        fill: The value of padding that has none of the input.
    """
    layout, local = tensor.sharding, to_local(tensor)
    first = tensor.ndim - len(pooling.kernel)
    padding, plans, result = list(pooling.padding), {}, layout
    for axis, cut in layout.cut_axes():
        dim = cut.dim - first
        if dim < 0:
            continue
        windows = Windows(
            size=cut.total,
            count=shape[cut.dim],
            kernel=pooling.kernel[dim],
            stride=pooling.stride[dim],
            dilation=pooling.dilation[dim],
            before=pooling.padding[dim],
            edge=edge,
        )
        plan = plans[cut.dim] = plan_windows(cut.sizes, windows, layout.rank(axis))
        local = fetch(local, plan.fetch, cut.dim, layout.group(axis), fill=fill)
        result = result.with_cut(axis, Cut(cut.dim, plan.sizes))
        padding[dim] = 0
    return Fetched(local, result, tuple(padding), plans)


def global_indices(
    local: Tensor, piece: Sequence[int], whole: Sequence[int], rows: dict[int, Tensor]
) -> Tensor:
    """Flat indices into a piece's pooled dimensions, as flat indices into the whole's.

    Args:
        local: int64, the flat indices.
        piece: The pooled dimensions' sizes in the piece.
        whole: Their global sizes.
        rows: For cut dimensions, by their number, the global index of each row of the piece.
    """
    result, step = torch.zeros_like(local), 1
    for dim in reversed(range(len(piece))):
        place, local = local % piece[dim], local // piece[dim]
        if dim in rows:
            place = rows[dim].to(local.device)[place]
        result, step = result + place * step, step * whole[dim]
    return result


def spatial_dims(function: Callable[..., Any]) -> int:
    """The number of dimensions that a function pools."""
    name = name_of(function)
    return int(name[name.index("pool") + len("pool")])
