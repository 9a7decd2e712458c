"""From every layout to every other: the same global tensor, and gradients that are whole."""

import itertools

import pytest
import torch

from neural_prep.sharding import Layout, ShardTensor

pytestmark = pytest.mark.multigpu_static

SHAPE = (5, 4, 6)


def whole(seed=0):
    return torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layouts(mesh):
    """All cuts of three dimensions over the mesh's axes, some with all but one piece empty."""
    names = mesh.mesh_dim_names
    for dims in itertools.product((None, 0, 1, 2), repeat=mesh.ndim):
        cut = {name: dim for name, dim in zip(names, dims, strict=True) if dim is not None}
        if len(set(cut.values())) == len(cut):
            yield Layout.of(mesh, SHAPE, cut)
    lone = [[0] * (mesh.size(0) - 1) + [SHAPE[1]]]
    yield Layout.of(mesh, SHAPE, {names[0]: 1}, lone)


def check_all_pairs(mesh):
    full, upstream = whole(), whole(1)
    for before, after in itertools.product(layouts(mesh), repeat=2):
        leaf = full.clone().requires_grad_()
        shard = ShardTensor.scatter(leaf, mesh).redistribute(before).redistribute(after)
        assert shard.sharding == after
        assert shard.shape == SHAPE
        assert shard.local.shape == after.local_shape(SHAPE)
        found = shard.full()
        assert torch.equal(found, full), (before, after)
        (gradient,) = torch.autograd.grad(found, leaf, upstream, create_graph=True)
        assert torch.equal(gradient, upstream), (before, after)


def test_along_one_axis(distributed_mesh):
    check_all_pairs(distributed_mesh)


def test_along_two_axes(distributed_mesh_2d):
    check_all_pairs(distributed_mesh_2d)


def test_scatter_with_sizes(distributed_mesh):
    ranks = distributed_mesh.size()
    sizes = [0] * (ranks - 1) + [6]
    full = whole().requires_grad_()
    shard = ShardTensor.scatter(full, distributed_mesh, {"domain": -1}, [sizes])
    assert shard.local.shape[2] == sizes[distributed_mesh.get_local_rank()]
    local = shard.local
    local.backward(torch.ones_like(local))
    assert torch.equal(full.grad, torch.ones(SHAPE, dtype=torch.float64))


def test_from_local(distributed_mesh):
    rank, ranks = distributed_mesh.get_local_rank(), distributed_mesh.size()
    sizes = [list(range(1, ranks + 1))]
    total = sum(sizes[0])
    layout = Layout.of(distributed_mesh, (total, 2), {"domain": 0}, sizes)
    local = torch.full((rank + 1, 2), float(rank), requires_grad=True)
    shard = ShardTensor.from_local(local, layout)
    assert shard.shape == (total, 2)
    (shard.full() * torch.arange(float(total))[:, None]).sum().backward()
    start = sum(sizes[0][:rank])
    wanted = torch.arange(start, start + rank + 1.0)[:, None].expand(-1, 2)
    assert torch.equal(local.grad, wanted)


def test_a_piece_that_does_not_fit_is_told_on_all_ranks(distributed_mesh):
    rank, ranks = distributed_mesh.get_local_rank(), distributed_mesh.size()
    layout = Layout.of(distributed_mesh, (2 * ranks, 3), {"domain": 0})
    local = torch.zeros(2 + (rank == ranks - 1), 3)
    with pytest.raises(ValueError, match=rf"at \({ranks - 1},\) .* gives a piece of \[3, 3\]"):
        ShardTensor.from_local(local, layout)


def test_layouts_that_are_of_something_else(distributed_mesh, distributed_mesh_2d):
    shard = ShardTensor.scatter(whole(), distributed_mesh)
    with pytest.raises(ValueError, match="the layout is of another mesh"):
        shard.redistribute(Layout.replicated(distributed_mesh_2d))
    with pytest.raises(ValueError, match=r"dim 0 add up to 9, but the shape is \[5, 4, 6\]"):
        shard.redistribute(Layout.of(distributed_mesh, (9, 4, 6), {"domain": 0}))
    with pytest.raises(ValueError, match="dim 3"):
        shard.redistribute(Layout.of(distributed_mesh, (5, 4, 6, 2), {"domain": 3}))


def test_pieces_of_which_one_alone_requires_a_gradient(distributed_mesh):
    rank, ranks = distributed_mesh.get_local_rank(), distributed_mesh.size()
    local = torch.ones(2, 3, requires_grad=rank == 0)
    layout = Layout.of(distributed_mesh, (2 * ranks, 3), {"domain": 0})
    shard = ShardTensor.from_local(local, layout)
    assert shard.requires_grad
    (shard * 2.0).sum().backward()
    assert rank or torch.equal(local.grad, torch.full((2, 3), 2.0))
