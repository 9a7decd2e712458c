"""Message passing on a mesh's graph, whose nodes and edges are cut over ranks, as it is written."""

import copy

import pytest
import torch
from torch import nn

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static

NODES, EDGES, FEATURES, HIDDEN = 11, 29, 4, 6
SIZES = {  # of nodes, and of edges, by ranks
    1: ([11], [29]),
    2: ([7, 4], [9, 20]),
    3: ([6, 0, 5], [12, 16, 1]),
    4: ([3, 1, 0, 7], [0, 20, 5, 4]),
}


class Layer(nn.Module):
    """Edges are updated from the nodes at their ends, and nodes from the sum of their edges."""

    def __init__(self, reduce="index_add"):
        super().__init__()
        self.reduce = reduce
        self.of_source = nn.Linear(FEATURES, HIDDEN)
        self.of_target = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.of_edge = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.edge = nn.Sequential(nn.SiLU(), nn.Linear(HIDDEN, FEATURES), nn.LayerNorm(FEATURES))
        self.of_node = nn.Linear(FEATURES, HIDDEN)
        self.of_sum = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.node = nn.Sequential(nn.SiLU(), nn.Linear(HIDDEN, FEATURES), nn.LayerNorm(FEATURES))

    def forward(self, nodes, edges, source, target):
        ends = self.of_source(nodes.index_select(0, source))
        ends = ends + self.of_target(nodes.index_select(0, target))
        edges = edges + self.edge(ends + self.of_edge(edges))
        received = self.gather(nodes, edges, target)
        return nodes + self.node(self.of_node(nodes) + self.of_sum(received)), edges

    def gather(self, nodes, edges, target):
        nothing = torch.zeros_like(nodes)
        if self.reduce == "index_add":
            return nothing.index_add(0, target, edges)
        if self.reduce == "index_add_":
            nothing.index_add_(0, target, edges)
            return nothing
        index = target.unsqueeze(-1).expand(edges.shape)
        return nothing.scatter_reduce(0, index, edges, self.reduce, include_self=False)


def graph():
    generator = torch.Generator().manual_seed(3)
    nodes, edges = (
        torch.randn(count, FEATURES, dtype=torch.float64, generator=generator)
        for count in (NODES, EDGES)
    )
    source, target = (torch.randint(0, NODES, (EDGES,), generator=generator) for _ in range(2))
    return nodes, edges, source, target


def scattered(tensors, mesh, cut_index=True):
    """Nodes and edges, cut unevenly; of two axes the second cuts features."""
    axes = mesh.mesh_dim_names
    of_nodes, of_edges = SIZES[mesh.size(0)]
    found = []
    for number, tensor in enumerate(tensors):
        sizes = [of_nodes if number == 0 else of_edges]
        cut = {axes[0]: 0}
        if number < 2 and len(axes) > 1:
            cut[axes[1]] = 1
            sizes.append([FEATURES - mesh.size(1) + 1] + [1] * (mesh.size(1) - 1))
        if number >= 2 and not cut_index:
            found.append(tensor)
        else:
            found.append(ShardTensor.scatter(tensor, mesh, cut, sizes))
    return found


def check(mesh, module, layers=2, **options):
    twin = copy.deepcopy(module)
    tensors, ours = graph(), graph()
    for each in (*tensors[:2], *ours[:2]):
        each.requires_grad_()
    expected, found = tensors[:2], scattered(ours, mesh, **options)
    source, target = found[2:]
    for _ in range(layers):
        expected = twin(*expected, *tensors[2:])
        found = module(*found[:2], source, target)
    for one, other in zip(found, expected, strict=True):
        assert one.sharding.axis_of(0) == 0  # nothing has been gathered
        torch.testing.assert_close(one.full(), other, rtol=1e-12, atol=1e-12)
    loss = sum(each.square().mean() for each in found)
    sum(each.square().mean() for each in expected).backward()
    loss.backward()
    pairs = zip([*ours[:2], *module.parameters()], [*tensors[:2], *twin.parameters()], strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.multigpu_static(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("cut_index", [True, False], ids=["cut index", "ordinary index"])
@pytest.mark.parametrize("reduce", ["index_add", "index_add_", "sum", "mean", "amax"])
def test_layers(distributed_mesh, reduce, cut_index):
    torch.manual_seed(0)
    check(distributed_mesh, Layer(reduce).double(), cut_index=cut_index)


@pytest.mark.multigpu_static(ranks=[4])
def test_two_axes(distributed_mesh_2d):
    torch.manual_seed(0)
    check(distributed_mesh_2d, Layer().double())


@pytest.mark.multigpu_static(ranks=[1, 2, 3])
def test_checkpointed(distributed_mesh):
    class Checkpointed(Layer):
        def forward(self, *args):
            return torch.utils.checkpoint.checkpoint(super().forward, *args, use_reentrant=False)

    torch.manual_seed(0)
    check(distributed_mesh, Checkpointed().double())
