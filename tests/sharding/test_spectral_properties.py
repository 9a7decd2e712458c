"""Fourier transforms of any dimensions, sizes and cuts are those of one rank, with gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from neural_prep.checks import Case, check_case
from neural_prep.checks.cases import Input
from neural_prep.sharding import ShardTensor

alike = settings(max_examples=200, derandomize=True, deadline=None)
a_few = settings(alike, max_examples=50)  # 4 ranks take their time
ranks_2_and_3 = pytest.mark.multigpu_static(ranks=[2, 3])
ranks_4 = pytest.mark.multigpu_static(ranks=[4])

FROM_REAL = ("rfft", "ihfft")
NAMES = ("fft", "ifft", "irfft", "hfft", *FROM_REAL)
NORMS = (None, "ortho", "forward", "backward")


@st.composite
def transforms(draw: st.DrawFn, mesh, serial_twin) -> Case:
    name, kind = draw(st.sampled_from(NAMES)), draw(st.sampled_from(["", "2", "n"]))
    axes = mesh.ndim
    ndim = draw(st.integers(max(2 if kind == "2" else 1, axes), 3))
    shape = draw(st.lists(st.integers(2, 6), min_size=ndim, max_size=ndim))
    order = draw(st.permutations(range(ndim)))
    count = {"": 1, "2": 2}.get(kind) or draw(st.integers(1, ndim))
    dims = [draw(st.sampled_from([dim, dim - ndim])) for dim in order[:count]]
    options = {"norm": draw(st.sampled_from(NORMS)), "dim": dims if kind else dims[0]}
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, 8)) for _ in dims]
        if kind and draw(st.booleans()):
            sizes[draw(st.integers(0, count - 1))] = -1
        options |= {"s": sizes} if kind else {"n": sizes[0]}
    if kind == "n" and "s" not in options and draw(st.booleans()):
        del options["dim"]
    real = name in FROM_REAL or draw(st.booleans())
    for dim in range(ndim):  # what is not transformed may be small; torch takes no empty batch
        if dim not in order[:count] and "dim" in options:
            shape[dim] = draw(st.integers(1, 4))
    return case(draw, mesh, serial_twin, f"{name}{kind}", options, shape, real=real)


@st.composite
def shifts(draw: st.DrawFn, mesh, serial_twin) -> Case:
    shape = draw(st.lists(st.integers(0, 7), min_size=max(mesh.ndim, 1), max_size=3))
    name = draw(st.sampled_from(["fftshift", "ifftshift"]))
    dim = draw(st.sampled_from([None, 0, -1, [-1, 0], [0, 0]]))
    return case(draw, mesh, serial_twin, name, {"dim": dim}, shape, real=draw(st.booleans()))


def case(draw, mesh, serial_twin, name, options, shape, *, real) -> Case:
    cut, sizes = draw(serial_twin.cuts(shape, mesh))
    axes = {axis: mesh.size(number) for number, axis in enumerate(mesh.mesh_dim_names)}
    return Case(
        name=f"{name} {options} {shape} {cut} {sizes}",
        function=f"torch.fft.{name}",
        kwargs=options,
        mesh=axes,
        ranks=(mesh.size(),),
        inputs=(
            Input(
                shape=tuple(shape),
                cut=cut,
                sizes={mesh.size(): tuple(sizes)},
                dtype="float64" if real else "complex128",
                contiguous=draw(st.booleans()),
            ),
        ),
    )


@ranks_2_and_3
@alike
@given(data=st.data())
def test_transforms(world, distributed_mesh, serial_twin, data):
    check_case(data.draw(transforms(distributed_mesh, serial_twin)), world)


@ranks_2_and_3
@alike
@given(data=st.data())
def test_shifts(world, distributed_mesh, serial_twin, data):
    check_case(data.draw(shifts(distributed_mesh, serial_twin)), world)


@ranks_4
@a_few
@given(data=st.data())
def test_two_axes(world, distributed_mesh_2d, serial_twin, data):
    kind = data.draw(st.sampled_from([transforms, transforms, shifts]))
    check_case(data.draw(kind(distributed_mesh_2d, serial_twin)), world)


class FourierLayer(nn.Module):
    """Low frequencies, times a complex weight for each pair of channels."""

    def __init__(self, channels: int, rows: int, columns: int) -> None:
        super().__init__()
        shape = (channels, channels, rows, columns // 2 + 1)
        self.weight = nn.Parameter(torch.randn(shape, dtype=torch.complex128) / channels)
        low = torch.zeros(rows, columns // 2 + 1)
        low[:2, :2] = low[-2:, :2] = 1
        self.register_buffer("low", low)

    def forward(self, x):
        modes = torch.fft.rfft2(x, norm="ortho") * self.low
        mixed = torch.einsum("bihw,iohw->bohw", modes, self.weight)
        power = mixed.abs().square().mean() + torch.view_as_real(mixed).sum() + mixed.real.mean()
        y = torch.fft.irfft2(mixed, s=x.shape[-2:], norm="ortho")
        return torch.relu(y) + power + mixed.imag.sum() + torch.angle(mixed + 3).mean()


class Derivative(nn.Module):
    """A derivative along the last dimension, by frequencies."""

    def forward(self, x):
        frequencies = torch.fft.fftfreq(x.shape[-1], dtype=torch.float64)
        modes = torch.fft.fftshift(torch.fft.fft(x) * (2j * torch.pi * frequencies), dim=-1)
        return torch.fft.ifft(torch.fft.ifftshift(modes, dim=-1)).real


@pytest.mark.multigpu_static(ranks=[1, 2, 3])
@pytest.mark.parametrize("dim", range(4), ids=["batch", "channels", "rows", "columns"])
@pytest.mark.parametrize("make", [lambda: FourierLayer(3, 7, 6), Derivative], ids=["layer", "ik"])
def test_of_layers(world, distributed_mesh, serial_twin, make, dim):
    torch.manual_seed(0)
    shape = (2, 3, 7, 6)
    full, layer = torch.randn(shape, dtype=torch.float64), make()
    sizes = [[shape[dim] - 1, 1, 0][: world.size]] if world.size > 1 else None
    serial_twin.assert_alike(layer, full, distributed_mesh, {"domain": dim}, sizes)


@pytest.mark.multigpu_static(ranks=[2, 3])
def test_second_derivatives(distributed_mesh):
    full = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def second(x):
        y = torch.fft.rfft(x, dim=0).abs().square().square().sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    expected = second(full.clone().requires_grad_())
    x = ShardTensor.scatter(full, distributed_mesh, {"domain": 0}).requires_grad_()
    torch.testing.assert_close(second(x).full(), expected, rtol=1e-12, atol=1e-9)


@pytest.mark.multigpu_static(ranks=[2, 3])
def test_a_cut_stays_where_it_is(distributed_mesh):
    x = ShardTensor.scatter(torch.ones(4, 8), distributed_mesh, {"domain": 1})
    assert torch.fft.fft(x).sharding == x.sharding
    halved = torch.fft.rfft(x).sharding.cuts[0]
    assert (halved.dim, halved.total) == (1, 5)
    assert max(halved.sizes) - min(halved.sizes) <= 1
