"""Whole models, unmodified, cut over ranks: outputs, gradients and training are those of one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from neural_prep.sharding import ShardTensor

on_each_number_of_ranks = pytest.mark.multigpu_static(ranks=[1, 2, 3])

GRAPH = torch.randint(0, 11, (2, 29), generator=torch.Generator().manual_seed(3))  # source, target


@dataclass(frozen=True)
class Run:
    """A model, its inputs, and the dimension along which each of them is cut."""

    model: str
    shape: tuple[int, ...]
    dim: int
    sizes: dict[int, list[int]] = field(default_factory=dict)  # by number of ranks; else even
    edges: dict[int, list[int]] = field(default_factory=dict)

    def inputs(self, seed=0):
        """Fields or nodes first, which the loss compares with the next ones."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(self.shape, dtype=torch.float64, generator=generator)
        if self.model != "MessagePassing":
            return [x]
        edges = torch.randn(GRAPH.shape[1], 1, dtype=torch.float64, generator=generator)
        return [x, edges, *GRAPH]

    def cut(self, inputs, mesh):
        """The same inputs as pieces."""
        ranks = mesh.size()
        cuts = [(self.dim, self.sizes.get(ranks))] + [(0, self.edges.get(ranks))] * 3
        return [
            ShardTensor.scatter(each, mesh, {"domain": dim}, sizes and [sizes])
            for each, (dim, sizes) in zip(inputs, cuts, strict=False)
        ]


RUNS = {
    "unet-rows": Run("UNet", (2, 3, 13, 8), 2),
    "unet-longitude": Run("UNet", (1, 3, 7, 12), 3, {2: [9, 3], 3: [5, 1, 6]}),
    "unet-empty-piece": Run("UNet", (1, 3, 12, 6), 2, {2: [0, 12], 3: [7, 0, 5]}),
    "unet-batch": Run("UNet", (3, 3, 6, 6), 0),
    "vit-rows": Run("ViTBlock", (2, 3, 12, 6), 2),
    "vit-columns-uneven": Run("ViTBlock", (1, 3, 6, 10), 3, {2: [7, 3], 3: [3, 0, 7]}),
    "fourier-rows": Run("FourierBlock", (2, 3, 9, 8), 2),
    "fourier-columns-uneven": Run("FourierBlock", (1, 3, 8, 11), 3, {2: [2, 9], 3: [4, 0, 7]}),
    "convnext-rows": Run("ConvNeXtBlock", (2, 4, 14, 5), 2),
    "convnext-columns-narrower-than-the-kernel": Run(
        "ConvNeXtBlock", (1, 4, 5, 9), 3, {2: [8, 1], 3: [1, 2, 6]}
    ),
    "graph": Run("MessagePassing", (11, 3), 0),
    "graph-uneven": Run(
        "MessagePassing", (11, 3), 0, {2: [3, 8], 3: [0, 7, 4]}, {2: [29, 0], 3: [9, 19, 1]}
    ),
}


@pytest.fixture(params=RUNS.values(), ids=RUNS)
def run(request):
    return request.param


def make(models, run):
    torch.manual_seed(7)
    return getattr(models, run.model)().double()


def close(found, expected, tolerance):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@on_each_number_of_ranks
def test_forward_and_backward(distributed_mesh, models, run):
    other = run.inputs()
    check_gradients(
        models, run, other, run.cut([other[0].requires_grad_(), *other[1:]], distributed_mesh)
    )


def check_gradients(models, run, whole, pieces):
    """Compares with the serial twin; `pieces` are of `whole`, whose first tensor has a gradient."""
    serial, sharded = make(models, run), make(models, run)
    one = run.inputs()
    one[0].requires_grad_()
    expected, found = serial(*one), sharded(*pieces)
    close(found.full(), expected, 1e-12)
    expected.square().sum().backward()
    found.square().sum().backward()
    close(whole[0].grad, one[0].grad, 1e-11)
    for (name, own), theirs in zip(sharded.named_parameters(), serial.parameters(), strict=True):
        assert own.grad is not None, name
        close(own.grad, theirs.grad, 1e-11)


def train(model, batches, target, *, clip=0.03):
    """Three steps of AdamW; clipping by the global norm, and a learning rate that changes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=4)
    norms = []
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(*batch), target).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
        scheduler.step()
    return torch.stack(norms)


@on_each_number_of_ranks
def test_three_steps_of_training(distributed_mesh, models, run):
    serial, sharded = make(models, run), make(models, run)
    batches = [run.inputs(seed) for seed in range(3)]
    target = run.inputs(9)[0]
    norms = train(serial, batches, target)
    pieces = [run.cut(batch, distributed_mesh) for batch in batches]
    found = train(sharded, pieces, run.cut([target], distributed_mesh)[0])
    assert (norms > 0.03).any()  # something is clipped
    close(found, norms, 1e-10)
    for own, theirs in zip(sharded.parameters(), serial.parameters(), strict=True):
        close(own, theirs, 1e-10)


@pytest.mark.multigpu_static(ranks=[4])
@pytest.mark.parametrize(
    "name", [name for name, run in RUNS.items() if run.model != "MessagePassing"]
)
def test_rows_and_columns_cut(distributed_mesh_2d, models, name):
    run = RUNS[name]
    whole = run.inputs()
    whole[0].requires_grad_()
    names = distributed_mesh_2d.mesh_dim_names
    pieces = [
        ShardTensor.scatter(whole[0], distributed_mesh_2d, dict(zip(names, (2, 3), strict=True)))
    ]
    check_gradients(models, run, whole, pieces)
