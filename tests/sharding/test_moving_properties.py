"""Tensors of any shapes and cuts, joined or with elements moved, are as on one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static(ranks=[2, 3])

alike = settings(max_examples=200, derandomize=True, deadline=None)
a_few = settings(alike, max_examples=50)  # 4 ranks take their time


class Joined(nn.Module):
    """Several tensors joined: the input, and parameters that are cut in ways of their own."""

    def __init__(self, join: Any, others: list[torch.Tensor], mesh: Any, cuts: list[Any]) -> None:
        super().__init__()
        self.join, self.mesh, self.cuts = join, mesh, cuts
        self.others = nn.ParameterList(others)

    def forward(self, x):
        others = list(self.others)
        if isinstance(x, ShardTensor):
            pairs = zip(others, self.cuts, strict=True)
            others = [self.scattered(each, cut) for each, cut in pairs]
        return self.join([*others[:1], x, *others[1:]])

    def scattered(self, tensor, cut):
        return tensor if cut is None else ShardTensor.scatter(tensor, self.mesh, *cut)


def values(shape: list[int], seed: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-2, 3 + seed, count, dtype=torch.float64).reshape(shape)


def draw_joined(data: Any, mesh: Any, cuts: Any, ndim: int) -> tuple[nn.Module, list[int]]:
    """What is joined, and the shape of the input."""
    shape = data.draw(st.lists(st.integers(0, 4), min_size=ndim, max_size=ndim), label="shape")
    dim = data.draw(st.integers(-ndim, ndim - 1), label="dim")
    stacked = data.draw(st.booleans(), label="stack")
    others, layouts = [], []
    for number in range(data.draw(st.integers(1, 2))):
        own = list(shape)
        if not stacked:
            own[dim] = data.draw(st.integers(0, 5))
        others.append(values(own, number))
        kind = data.draw(st.sampled_from(["cut", "cut", "whole", "plain"]), label="kind")
        layout: Any = data.draw(cuts(own, mesh), label="cut") if kind == "cut" else ()
        layouts.append(None if kind == "plain" else layout)
    function = torch.stack if stacked else torch.cat
    return Joined(lambda tensors: function(tensors, dim), others, mesh, layouts), shape


@alike
@given(data=st.data())
def test_joined(distributed_mesh, serial_twin, data):
    ndim = data.draw(st.integers(1, 3))
    module, shape = draw_joined(data, distributed_mesh, serial_twin.cuts, ndim)
    check(distributed_mesh, serial_twin, data, module, shape)


@alike
@given(data=st.data())
def test_moved(distributed_mesh, serial_twin, data):
    shape = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3), label="shape")
    check(distributed_mesh, serial_twin, data, data.draw(moves(len(shape))), shape)


@pytest.mark.multigpu_static(ranks=[4])
@a_few
@given(data=st.data())
def test_joined_on_two_axes(distributed_mesh_2d, serial_twin, data):
    ndim = data.draw(st.integers(2, 3))
    module, shape = draw_joined(data, distributed_mesh_2d, serial_twin.cuts, ndim)
    check(distributed_mesh_2d, serial_twin, data, module, shape)


@pytest.mark.multigpu_static(ranks=[4])
@a_few
@given(data=st.data())
def test_moved_on_two_axes(distributed_mesh_2d, serial_twin, data):
    shape = data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=3), label="shape")
    check(distributed_mesh_2d, serial_twin, data, data.draw(moves(len(shape))), shape)


@st.composite
def moves(draw: st.DrawFn, ndim: int) -> Any:
    """A function of one tensor that moves elements."""
    kinds = [flip, roll, roll_all, repeat, diag_embed]
    kind = draw(st.sampled_from([*kinds, rot90, triangle] if ndim > 1 else kinds))
    return kind(draw, ndim)


def flip(draw: Any, ndim: int) -> Any:
    dims = draw(st.lists(st.integers(0, ndim - 1), unique=True))
    return lambda x: x.flip(dims)


def roll(draw: Any, ndim: int) -> Any:
    dims = draw(st.lists(st.integers(-ndim, ndim - 1), min_size=1, max_size=3))
    shifts = [draw(st.integers(-9, 9)) for _ in dims]
    return lambda x: torch.roll(x, shifts, dims)


def roll_all(draw: Any, ndim: int) -> Any:
    shift = draw(st.integers(-9, 9))
    return lambda x: x.roll(shift)


def repeat(draw: Any, ndim: int) -> Any:
    dim = draw(st.none() | st.integers(-ndim, ndim - 1))
    count = draw(st.integers(0, 3))
    return lambda x: x.repeat_interleave(count, dim)


def diag_embed(draw: Any, ndim: int) -> Any:
    first, second = draw(st.permutations(range(ndim + 1)))[:2]
    offset = draw(st.integers(-3, 3))
    return lambda x: torch.diag_embed(x, offset, first, second)


def rot90(draw: Any, ndim: int) -> Any:
    dims = draw(st.permutations(range(ndim)))[:2]
    turns = draw(st.integers(-2, 5))
    return lambda x: torch.rot90(x, turns, dims)


def triangle(draw: Any, ndim: int) -> Any:
    offset = draw(st.integers(-5, 5))
    return draw(st.sampled_from([lambda x: x.tril(offset), lambda x: torch.triu(x, offset)]))


def check(mesh, serial_twin, data, call, shape):
    cut, sizes = data.draw(serial_twin.cuts(shape, mesh), label="cut")
    serial_twin.assert_alike(call, values(shape, 0), mesh, cut, sizes)
