"""Compares a function of sharded tensors with the same function of whole ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from neural_prep.sharding import ShardTensor
from neural_prep.sharding.shard_tensor import from_local


@st.composite
def pieces(draw: st.DrawFn, total: int, ranks: int) -> tuple[int, ...]:
    """Sizes that add up, uneven and empty ones too."""
    ends = sorted(draw(st.integers(0, total)) for _ in range(ranks - 1))
    return tuple(end - start for start, end in zip([0, *ends], [*ends, total], strict=True))


@st.composite
def cuts(
    draw: st.DrawFn, shape: Sequence[int], mesh: DeviceMesh
) -> tuple[dict[str, int], list[tuple[int, ...]]]:
    """A dimension for each axis of the mesh, and sizes."""
    names = mesh.mesh_dim_names or ()
    dims = draw(st.permutations(range(len(shape))))[: len(names)]
    sizes = [draw(pieces(shape[dim], mesh.size(axis))) for axis, dim in enumerate(dims)]
    return dict(zip(names, dims, strict=True)), sizes


def assert_alike(
    module: nn.Module | Callable[..., Any],
    full: Tensor,
    mesh: DeviceMesh,
    cut: Mapping[str, int],
    sizes: Sequence[Sequence[int]],
    *,
    tolerance: float = 1e-12,
) -> None:
    """Compares outputs and the gradients of the input and of all parameters.

    Args:
        module: What is called; it is left with no gradients.
        full: Its input, the same on every rank.
        mesh: The ranks.
        cut: By axis of the mesh, the dimension that is cut along it.
        sizes: For each of them every rank's part.
        tolerance: Of each tensor's greatest value: sums are formed in another order.
    """
    whole, scattered = full.clone().requires_grad_(), full.clone().requires_grad_()
    expected = _tensors(module(whole))
    found = _tensors(module(ShardTensor.scatter(scattered, mesh, cut, sizes)))
    assert len(found) == len(expected)
    parameters = list(module.parameters()) if isinstance(module, nn.Module) else []
    upstream = [
        torch.linspace(-1, 2, each.numel(), dtype=full.dtype).reshape(each.shape).cos()
        for each in expected
    ]
    for each, serial in zip(found, expected, strict=True):
        assert each.shape == serial.shape
        _compare("output", each.full(), serial, tolerance)
    gradients = torch.autograd.grad(expected[0], [whole, *parameters], upstream[0])
    piece = upstream[0]
    layout = found[0].sharding
    for number, part in layout.cut_axes():
        rank = layout.rank(number)
        piece = piece.narrow(part.dim, part.start(rank), part.sizes[rank])
    ours = torch.autograd.grad(
        found[0], [scattered, *parameters], from_local(piece.contiguous(), layout)
    )
    for number, (own, serial) in enumerate(zip(ours, gradients, strict=True)):
        _compare(f"gradient {number}", own, serial, tolerance)


def _tensors(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _compare(what: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape, what
    if not expected.is_floating_point():
        assert torch.equal(found, expected), what
    elif expected.numel():
        error = (found - expected).abs().max()
        assert error <= tolerance * (1 + expected.abs().max()), f"{what} differs by {error}"
