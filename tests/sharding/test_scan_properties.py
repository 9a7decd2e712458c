"""Functions along a dimension of any shape and cut are those of one rank, with their gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

ranks = pytest.mark.multigpu_static(ranks=[2, 3])

alike = settings(max_examples=200, derandomize=True, deadline=None)
a_few = settings(alike, max_examples=50)  # 4 ranks take their time

SOFTMAXES = [nn.Softmax, nn.LogSoftmax, nn.Softmin]
SCANS = [torch.cumsum, torch.cumprod, torch.logcumsumexp, torch.cummax, torch.cummin]
SORTS = [partial(torch.sort, stable=True), partial(torch.sort, stable=True, descending=True)]
ORDERS = [torch.median, torch.nanmedian, torch.mode, partial(torch.kthvalue, k=1)]
TRAPEZOIDS = [torch.trapezoid, torch.cumulative_trapezoid]


@ranks
@alike
@given(data=st.data())
def test_softmax(distributed_mesh, serial_twin, data):
    softmax(distributed_mesh, serial_twin, data)


@ranks
@alike
@given(data=st.data())
def test_scan(distributed_mesh, serial_twin, data):
    scan(distributed_mesh, serial_twin, data)


@ranks
@alike
@given(data=st.data())
def test_sort(distributed_mesh, serial_twin, data):
    sort(distributed_mesh, serial_twin, data)


@ranks
@alike
@given(data=st.data())
def test_topk(distributed_mesh, serial_twin, data):
    topk(distributed_mesh, serial_twin, data)


@ranks
@alike
@given(data=st.data())
def test_order(distributed_mesh, serial_twin, data):
    order(distributed_mesh, serial_twin, data)


@ranks
@alike
@given(data=st.data())
def test_difference(distributed_mesh, serial_twin, data):
    difference(distributed_mesh, serial_twin, data)


@pytest.mark.multigpu_static(ranks=[4])
@a_few
@given(data=st.data())
def test_two_axes(distributed_mesh_2d, serial_twin, data):
    families = [softmax, scan, sort, topk, order, difference]
    family = data.draw(st.sampled_from(families))
    family(distributed_mesh_2d, serial_twin, data)


def softmax(mesh, serial_twin, data):
    shape, dim = data.draw(shapes(mesh))
    layer = data.draw(st.sampled_from(SOFTMAXES))(dim)
    check(mesh, serial_twin, data, layer, values(shape) * data.draw(st.sampled_from([1.0, 300.0])))


def scan(mesh, serial_twin, data):
    shape, dim = data.draw(shapes(mesh))
    function = data.draw(st.sampled_from(SCANS))
    full = values(shape)
    if data.draw(st.booleans(), label="ties and zeros"):
        full = full.round()
    check(mesh, serial_twin, data, partial(function, dim=dim), full)


def sort(mesh, serial_twin, data):
    shape, dim = data.draw(shapes(mesh))
    function = data.draw(st.sampled_from(SORTS))
    full = values(shape)
    if data.draw(st.booleans(), label="ties"):
        full = full.round()
    check(mesh, serial_twin, data, partial(function, dim=dim), full)


def topk(mesh, serial_twin, data):
    shape, dim = data.draw(shapes(mesh))
    options = {"k": data.draw(st.integers(0, shape[dim])), "largest": data.draw(st.booleans())}
    check(mesh, serial_twin, data, partial(torch.topk, dim=dim, **options), values(shape))


def order(mesh, serial_twin, data):
    shape, dim = data.draw(shapes(mesh))
    if data.draw(st.booleans(), label="quantile"):
        function = partial(torch.quantile, q=data.draw(st.floats(0, 1)))
    else:
        function = data.draw(st.sampled_from(ORDERS))
    function = partial(function, dim=dim, keepdim=data.draw(st.booleans()))
    check(mesh, serial_twin, data, function, values(shape))


def difference(mesh, serial_twin, data):
    shape, dim = data.draw(shapes(mesh))
    if data.draw(st.booleans(), label="trapezoid"):
        function = partial(data.draw(st.sampled_from(TRAPEZOIDS)), dim=dim)
    elif shape[dim] > 2 and data.draw(st.booleans(), label="gradient"):
        function = partial(torch.gradient, dim=dim, edge_order=data.draw(st.integers(1, 2)))
    else:
        function = partial(torch.diff, dim=dim, n=data.draw(st.integers(0, 4)))
    check(mesh, serial_twin, data, function, values(shape))


@st.composite
def shapes(draw: st.DrawFn, mesh) -> tuple[tuple[int, ...], int]:
    """A shape of as many dimensions as the mesh has axes, or more, and one of them."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=mesh.ndim, max_size=3)))
    return shape, draw(st.integers(-len(shape), len(shape) - 1))


def values(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def check(mesh, serial_twin, data, function, full):
    cut, sizes = data.draw(serial_twin.cuts(full.shape, mesh), label="cut")
    serial_twin.assert_alike(function, full, mesh, cut, sizes)
