"""Distances and similarities of vectors, whose dimension may be cut."""

from __future__ import annotations

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.broadcast import broadcast_shape
from neural_prep.sharding.layout import Cut, Layout, split_sizes
from neural_prep.sharding.operands import layout_of, operand
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.rehearsal import rehearse
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in

_FEW = 25  # from more vectors on, torch takes products of matrices by default


@sharded("cosine_similarity")
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The product of unit vectors."""
    _, result = rehearse(torch.cosine_similarity, x1, x2, dim, eps)
    shape = broadcast_shape([x1, x2])
    first, second = (_unit(each.to(result).expand(shape), dim, eps) for each in (x1, x2))
    return (first * second).sum(dim)


@sharded("pairwise_distance")
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The norm of the difference along the last dimension."""
    rehearse(torch.pairwise_distance, x1, x2, p, eps, keepdim)
    return torch.norm(x1 - x2 + eps, p, -1, keepdim)  # type: ignore[no-any-return]


@sharded("dist")
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The norm of the difference as one vector."""
    rehearse(torch.dist, input, other, p)
    return torch.norm(input - other, p)  # type: ignore[no-any-return]


@sharded("cdist")
def cdist(
    x1: Tensor,
    x2: Tensor,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> ShardTensor:
    """All distances between two sets of vectors, which are whole; sets are cut."""
    shape, _ = rehearse(torch.cdist, x1, x2, p=p, compute_mode=compute_mode)
    first, second = (torch.ones(1, 1, dtype=each.dtype) for each in (x1, x2))
    sample = torch.cdist(first, second, p=p)
    layout = _divided(x1, x2, shape)
    pieces = []
    for tensor, row in ((x1, -2), (x2, -1)):
        shift, dims = len(shape) - tensor.ndim, range(tensor.ndim - 2)
        own = {dim + shift: dim for dim in dims if tensor.shape[dim] == shape[dim + shift]}
        own[len(shape) + row] = tensor.ndim - 2
        pieces.append(operand(tensor, layout.with_dims(own), layout))
    first, second = pieces
    local = layout.local_shape(shape)
    if compute_mode == "use_mm_for_euclid_dist_if_necessary":  # as the whole tensors' sizes say
        products = max(shape[-2:]) > _FEW
        compute_mode = "use_mm_for_euclid_dist" if products else "donot_use_mm_for_euclid_dist"
    if not all(local) or not first.shape[-1]:
        once = None
        if p != 2 or compute_mode != "use_mm_for_euclid_dist":
            once = NotImplementedError("the derivative for '_cdist_backward' is not implemented.")
        found = connected(local, sample, first, second, curved=True, once=once)
        return from_local(found, layout)
    return from_local(torch.cdist(first, second, p=p, compute_mode=compute_mode), layout)


def _unit(x: Tensor, dim: int, eps: float) -> Tensor:
    """Vectors of length 1; short ones are divided by `eps`, which their gradient does not see."""
    norm: Tensor = torch.linalg.vector_norm(x, 2, dim, keepdim=True)
    with torch.no_grad():
        short = (eps - norm).clamp_min(0)
    return x / (norm + short)


def _divided(x1: Tensor, x2: Tensor, shape: tuple[int, ...]) -> Layout:
    """The result's cuts: those of both sets and of their batches; rows if vectors are cut."""
    like = next(shards_in((x1, x2))).sharding
    cuts: list[Cut | None] = [None] * like.mesh.ndim
    rows = len(shape) - 2
    vectors = set()
    for tensor, row in ((x1, rows), (x2, rows + 1)):
        for axis, cut in layout_of(tensor, like).cut_axes():
            dim = row if cut.dim == tensor.ndim - 2 else cut.dim + len(shape) - tensor.ndim
            if cut.dim == tensor.ndim - 1:
                vectors.add(axis)
            elif cuts[axis] is None and cut.total == shape[dim] and not _is_cut(cuts, dim):
                cuts[axis] = Cut(dim, cut.sizes)
    for axis in vectors:
        free = [dim for dim in (rows, rows + 1) if not _is_cut(cuts, dim)]
        if cuts[axis] is None and free:
            dim = max(free, key=lambda each: shape[each])
            cuts[axis] = Cut(dim, split_sizes(shape[dim], like.mesh.size(axis)))
    return Layout(like.mesh, tuple(cuts))


def _is_cut(cuts: list[Cut | None], dim: int) -> bool:
    return any(cut is not None and cut.dim == dim for cut in cuts)
