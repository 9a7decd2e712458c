"""Sampling at points: any rank's points may lie anywhere, so that what they lie in stays whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.layout import Cut, Layout
from neural_prep.sharding.operands import layout_of, operand
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local


@sharded("grid_sample")
def _grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> ShardTensor:
    """`(N, C, ...)` at `(N, ..., dims)`, cut along samples, channels or points."""
    options = (mode, padding_mode, align_corners)
    shape, _ = rehearse(F.grid_sample, input, grid, *options)
    one = torch.zeros((1,) * input.ndim, dtype=input.dtype)
    point = torch.zeros((*(1,) * (grid.ndim - 1), grid.shape[-1]), dtype=grid.dtype)
    # Raises without a kernel; autocast may have another dtype.
    sample = F.grid_sample(one, point, mode, padding_mode, bool(align_corners))
    like = next(shards_in((input, grid))).sharding
    layout = layout_of(input, like)
    if any(cut.dim > 1 for _, cut in layout.cut_axes()):
        raise refusal("grid_sample", layout, "would need all of it, wherever points are")
    layout = _with_points(layout, layout_of(grid, like), grid.ndim - 1)
    local = operand(input, layout.with_dims({0: 0, 1: 1}), layout)
    places = {dim + 1: dim for dim in range(1, grid.ndim - 1)}
    points = operand(grid, layout.with_dims({0: 0, **places}), layout)
    piece = layout.local_shape(shape)
    if 0 in piece:
        return from_local(connected(piece, sample, local, points, curved=True), layout)
    return from_local(F.grid_sample(local, points, *options), layout)


def _with_points(layout: Layout, points: Layout, last: int) -> Layout:
    """The layout of values at points: axes that don't cut the input cut it as the points are."""
    for axis, cut in points.cut_axes():
        if layout.cuts[axis] is not None or cut.dim == last:
            continue
        dim = cut.dim + (cut.dim > 0)
        if layout.axis_of(dim) is None:
            layout = layout.with_cut(axis, Cut(dim, cut.sizes))
    return layout


@sharded("affine_grid")
def _affine_grid(
    theta: ShardTensor, size: Sequence[int], align_corners: bool | None = None
) -> ShardTensor:
    """`(N, dims, dims + 1)` to `(N, ..., dims)`, cut along samples."""
    shape, _ = rehearse(F.affine_grid, theta, size, align_corners)
    layout = theta.sharding
    if any(cut.dim > 0 for _, cut in layout.cut_axes()):
        raise refusal("affine_grid", layout, "would have parts of matrices")
    local = to_local(theta)
    piece = layout.local_shape(shape)
    if 0 in piece:
        return from_local(connected(piece, local, local), layout)
    return from_local(F.affine_grid(local, [len(local), *size[1:]], align_corners), layout)
