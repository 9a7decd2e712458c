"""Indexing and scattering of any shape, index and cut are those of one rank, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytestmark = pytest.mark.multigpu_static(ranks=[2, 3])

alike = settings(max_examples=200, derandomize=True, deadline=None)
a_few = settings(alike, max_examples=50)  # 4 ranks take their time

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3)
reductions = st.sampled_from(["sum", "prod", "mean", "amax", "amin"])


@alike
@given(data=st.data())
def test_rows(distributed_mesh, serial_twin, data):
    check_rows(distributed_mesh, serial_twin, data)


@alike
@given(data=st.data())
def test_elements(distributed_mesh, serial_twin, data):
    check_elements(distributed_mesh, serial_twin, data)


@alike
@given(data=st.data())
def test_put_rows(distributed_mesh, serial_twin, data):
    check_put_rows(distributed_mesh, serial_twin, data)


@alike
@given(data=st.data())
def test_put_elements(distributed_mesh, serial_twin, data):
    check_put_elements(distributed_mesh, serial_twin, data)


@pytest.mark.multigpu_static(ranks=[4])
@a_few
@given(data=st.data())
def test_two_axes(distributed_mesh_2d, serial_twin, data):
    check = data.draw(
        st.sampled_from([check_rows, check_elements, check_put_rows, check_put_elements])
    )
    check(distributed_mesh_2d, serial_twin, data)


def check_rows(mesh, serial_twin, data):
    """`index_select`, and `x[index]` with an index of any shape or with two of them."""
    shape, dim = data.draw(dimension())
    kind = data.draw(st.sampled_from(["select", "index", "pair"]))
    sizes = [data.draw(st.integers(0, 6))]
    if kind != "select":
        sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=2))
    low = 0 if kind == "select" else -shape[dim]
    index = integers(data, low, shape[dim], sizes)
    before = (slice(None),) * dim
    functions: dict[str, Any] = {
        "select": lambda x, index: torch.index_select(x, dim, index),
        "index": lambda x, index: x[(*before, index)],
        "pair": lambda x, index, other: x[(*before, index, *later, other)],
    }
    arguments = [numbers(shape), index]
    if kind == "pair":
        last = data.draw(st.integers(dim + 1, len(shape))) if dim + 1 < len(shape) else len(shape)
        if last == len(shape):
            kind = "index"
        else:
            later = (slice(None),) * (last - dim - 1)
            arguments.append(integers(data, 0, shape[last], data.draw(broadcast(sizes))))
    compare(mesh, serial_twin, data, functions[kind], arguments)


def check_elements(mesh, serial_twin, data):
    """`gather` and `take_along_dim`."""
    shape, dim = data.draw(dimension())
    along = data.draw(st.booleans())
    sizes = [data.draw(st.integers(1, size)) for size in shape]
    if along:
        sizes = data.draw(broadcast(shape))
    sizes[dim] = data.draw(st.integers(0, 6))
    index = integers(data, 0, shape[dim], sizes)

    def elements(x: Tensor, index: Tensor) -> Tensor:
        if along:
            return torch.take_along_dim(x, index, dim)
        return torch.gather(x, dim, index)

    compare(mesh, serial_twin, data, elements, [numbers(shape), index])


def check_put_rows(mesh, serial_twin, data):
    """`index_add`, `index_copy` and `index_put`."""
    shape, dim = data.draw(dimension())
    kind = data.draw(st.sampled_from(["index_add", "index_copy", "index_put", "index_fill"]))
    count = data.draw(st.integers(0, 6))
    if kind == "index_copy":  # which of several values remains is not defined
        order = data.draw(st.permutations(range(shape[dim])))
        index = torch.tensor(order[: data.draw(st.integers(0, len(order)))], dtype=torch.int64)
        count = len(index)
    else:
        index = integers(data, 0, shape[dim], [count])
    values = [*shape[:dim], count, *shape[dim + 1 :]]
    functions: dict[str, Any] = {
        "index_add": lambda x, index, y: torch.index_add(x, dim, index, y, alpha=2),
        "index_copy": lambda x, index, y: torch.index_copy(x, dim, index, y),
        "index_put": lambda x, index, y: x.movedim(dim, 0).index_put(
            (index,), y.movedim(dim, 0), accumulate=True
        ),
        "index_fill": lambda x, index, y: torch.index_fill(x, dim, index, y.sum()),
    }
    compare(mesh, serial_twin, data, functions[kind], [numbers(shape), index, numbers(values, 1)])


def check_put_elements(mesh, serial_twin, data):
    """`scatter_add` and `scatter_reduce`, with ties and zeros."""
    shape, dim = data.draw(dimension())
    sizes = [data.draw(st.integers(1, size)) for size in shape]
    sizes[dim] = data.draw(st.integers(0, 6))
    index = integers(data, 0, shape[dim], sizes)
    given, values = numbers(shape), numbers(sizes, 1)  # torch has no gradient of longer values
    if data.draw(st.booleans()):
        given, values = given.round(), values.round()
    reduce, include_self = data.draw(reductions), data.draw(st.booleans())
    adds = data.draw(st.integers(0, 3)) == 0

    def put(x: Tensor, index: Tensor, y: Tensor) -> Tensor:
        if adds:
            return torch.scatter_add(x, dim, index, y)
        return torch.scatter_reduce(x, dim, index, y, reduce, include_self=include_self)

    compare(mesh, serial_twin, data, put, [given, index, values])


@st.composite
def dimension(draw: st.DrawFn) -> tuple[list[int], int]:
    """A shape and one of its dimensions."""
    shape = draw(shapes)
    return shape, draw(st.integers(0, len(shape) - 1))


@st.composite
def broadcast(draw: st.DrawFn, shape: list[int]) -> list[int]:
    """A shape that broadcasts to this one."""
    return [draw(st.sampled_from([1, size])) for size in shape]


def integers(data: Any, low: int, high: int, sizes: list[int]) -> Tensor:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    return torch.randint(low, high, sizes, generator=generator)


def numbers(shape: list[int], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def compare(mesh, serial_twin, data, function, tensors):
    """Each argument is cut somehow, or ordinary; one is sharded."""
    ways = [data.draw(serial_twin.ways(each.shape, mesh), label="way") for each in tensors]
    if ways[0] is None:  # what is indexed has to say what to do
        ways[0] = data.draw(serial_twin.ways(tensors[0].shape, mesh)) or ({}, [])
    serial_twin.assert_call_alike(function, list(zip(tensors, ways, strict=True)), mesh)
