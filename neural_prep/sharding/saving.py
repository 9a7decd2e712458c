"""What a sharded tensor is in a file: its piece, its cuts, and how to make its mesh again."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from neural_prep.sharding.layout import Cut, Layout

# Meshes by what describes them, for a world: a new one has new process groups, made by all ranks.
_meshes: dict[tuple[Any, ...], tuple[Any, DeviceMesh]] = {}


def save(local: Tensor, layout: Layout, requires_grad: bool) -> tuple[Any, ...]:
    """Plain values from which `load` makes them again."""
    mesh = layout.mesh
    ranks, names = mesh.mesh, tuple(mesh.mesh_dim_names or ())
    described = (mesh.device_type, tuple(ranks.shape), tuple(ranks.flatten().tolist()), names)
    _meshes[described] = (dist.group.WORLD, mesh)
    cuts = tuple(None if cut is None else (cut.dim, cut.sizes) for cut in layout.cuts)
    return local, cuts, described, dist.get_rank(), dist.get_world_size(), requires_grad


def load(
    local: Tensor,
    cuts: tuple[tuple[int, tuple[int, ...]] | None, ...],
    described: tuple[Any, ...],
    rank: int,
    size: int,
    requires_grad: bool,
) -> tuple[Tensor, Layout, bool]:
    """A piece and its layout; all ranks call it where the mesh is not known yet.

    Raises:
        RuntimeError: if there is no world of the same size, or this is another rank's piece.
    """
    here = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else None
    if here != (rank, size):
        found = "no process group" if here is None else f"rank {here[0]} of {here[1]}"
        raise RuntimeError(
            f"this piece of a ShardTensor was saved by rank {rank} of {size} ranks, but is loaded "
            f"by {found}; load every rank's own file on as many ranks, or save x.full()"
        )
    layout = Layout(_mesh(described), tuple(None if cut is None else Cut(*cut) for cut in cuts))
    return local, layout, requires_grad


def _mesh(described: tuple[Any, ...]) -> DeviceMesh:
    world, mesh = _meshes.get(described, (None, None))
    if mesh is None or world is not dist.group.WORLD:
        device, shape, ranks, names = described
        mesh = DeviceMesh(device, torch.tensor(ranks).reshape(shape), mesh_dim_names=names)
        _meshes[described] = (dist.group.WORLD, mesh)
    return mesh
