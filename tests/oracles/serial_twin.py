"""Compares a function of sharded tensors with the same function of whole ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from neural_prep.sharding import Layout, ShardTensor
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


@st.composite
def ways(
    draw: st.DrawFn, shape: Sequence[int], mesh: DeviceMesh
) -> tuple[dict[str, int], list[tuple[int, ...]]] | None:
    """A dimension and sizes for some axes of the mesh; None: ordinary."""
    if draw(st.integers(0, 4)) == 0:
        return None
    cut: dict[str, int] = {}
    sizes = []
    for axis, name in enumerate(mesh.mesh_dim_names or ()):
        free = [dim for dim in range(len(shape)) if dim not in cut.values()]
        if free and draw(st.integers(0, 3)) > 0:
            cut[name] = draw(st.sampled_from(free))
            sizes.append(draw(pieces(shape[cut[name]], mesh.size(axis))))
    return cut, sizes


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
    roots, upstreams, ours = [], [], []
    for each, serial in zip(found, expected, strict=True):
        assert each.shape == serial.shape
        assert each.local.shape == each.sharding.local_shape(serial.shape)
        _compare("output", each.full(), serial, tolerance)
        assert each.requires_grad == serial.requires_grad
        if serial.requires_grad:
            upstream = torch.linspace(-1, 2, serial.numel(), dtype=serial.dtype).cos()
            upstream = upstream * (1 - 2j) if serial.is_complex() else upstream
            upstream = upstream.reshape(serial.shape).to(serial.device)
            roots.append((each, serial))
            upstreams.append(upstream)
            ours.append(_piece(upstream, each.sharding))
    if not roots:
        return
    parameters = list(module.parameters()) if isinstance(module, nn.Module) else []
    shards, wholes = zip(*roots, strict=True)
    gradients = torch.autograd.grad(wholes, [whole, *parameters], upstreams)
    own = torch.autograd.grad(shards, [scattered, *parameters], ours)
    for number, (one, serial) in enumerate(zip(own, gradients, strict=True)):
        _compare(f"gradient {number}", one, serial, tolerance)


def assert_call_alike(
    function: Callable[..., Any],
    arguments: Sequence[tuple[Tensor, tuple[Mapping[str, int], Sequence[Sequence[int]]] | None]],
    mesh: DeviceMesh,
    *,
    tolerance: float = 1e-12,
) -> None:
    """Compares the output of a function of several tensors, and the gradients of all of them.

    Args:
        function: What is called; it has one result.
        arguments: Tensors, the same on every rank; each cut by axes and sizes, or None: ordinary.
        mesh: The ranks.
        tolerance: Of each tensor's greatest value.
    """
    fulls = [full for full, _ in arguments]
    wholes, leaves = (
        [full.clone().requires_grad_(full.is_floating_point()) for full in fulls] for _ in range(2)
    )
    given = [
        leaf if how is None else ShardTensor.scatter(leaf, mesh, *how)
        for leaf, (_, how) in zip(leaves, arguments, strict=True)
    ]
    expected, found = function(*wholes), function(*given)
    assert found.shape == expected.shape
    assert found.local.shape == found.sharding.local_shape(expected.shape)
    _compare("output", found.full(), expected, tolerance)
    assert found.requires_grad == expected.requires_grad
    if not expected.requires_grad:
        return
    upstream = torch.linspace(-1, 2, expected.numel(), dtype=expected.dtype).cos()
    upstream = upstream.reshape(expected.shape).to(expected.device)
    sources = [[each for each in side if each.requires_grad] for side in (wholes, leaves)]
    gradients = torch.autograd.grad(expected, sources[0], upstream)
    own = torch.autograd.grad(found, sources[1], _piece(upstream, found.sharding))
    for number, (one, serial) in enumerate(zip(own, gradients, strict=True)):
        _compare(f"gradient {number}", one, serial, tolerance)


def _piece(full: Tensor, layout: Layout) -> ShardTensor:
    """This rank's part of a gradient."""
    for axis, part in layout.cut_axes():
        rank = layout.rank(axis)
        full = full.narrow(part.dim, part.start(rank), part.sizes[rank])
    return from_local(full.contiguous(), layout)


def _tensors(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _compare(what: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape, what
    if not (expected.is_floating_point() or expected.is_complex()):
        assert torch.equal(found, expected), what
    else:
        scale = 1 + max(expected[expected.isfinite()].abs().tolist(), default=0.0)
        message = f"{what} differs: {found} instead of {expected}"
        torch.testing.assert_close(
            found, expected, rtol=0, atol=tolerance * scale, equal_nan=True, msg=message
        )
