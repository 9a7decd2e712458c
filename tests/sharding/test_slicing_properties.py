"""Any part of any shape and cut is that of one rank: slices, single elements, windows, splits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.multigpu_static(ranks=[2, 3])

alike = settings(max_examples=200, derandomize=True, deadline=None)
a_few = settings(alike, max_examples=50)  # 4 ranks take their time


@st.composite
def shapes(draw: st.DrawFn, least: int = 1) -> list[int]:
    """Shapes of few elements, some of none."""
    dims = draw(st.integers(max(least, 1), 3))
    return draw(st.lists(st.integers(0, 7), min_size=dims, max_size=dims))


@st.composite
def indices(draw: st.DrawFn, shape: list[int]) -> Any:
    """What stands between brackets: integers, slices with steps, `...` and None."""
    parts = [draw(part(size)) for size in shape[: draw(st.integers(0, len(shape)))]]
    if draw(st.booleans()):  # the last dimensions instead of the first ones
        count = draw(st.integers(0, len(parts)))
        rest = [draw(part(size)) for size in shape[len(shape) - len(parts) + count :]]
        parts = [*parts[:count], ..., *rest]
    for _ in range(draw(st.integers(0, 2))):
        parts.insert(draw(st.integers(0, len(parts))), None)
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@st.composite
def part(draw: st.DrawFn, size: int) -> Any:
    """The index of one dimension."""
    if size and draw(st.booleans()):
        return draw(st.integers(-size, size - 1))
    bound = st.none() | st.integers(-size - 2, size + 2)
    return slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 1, 2, 3])))


@st.composite
def calls(draw: st.DrawFn, shape: list[int]) -> Any:
    """A function of one tensor, called by keyword or as a method."""
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[dim]
    kind = draw(st.sampled_from([select, narrow, unfold, split, chunk, tensor_split, diagonal]))
    if kind is select and size == 0:
        kind = narrow
    if kind is diagonal and len(shape) == 1:
        kind = unfold
    return kind(draw, len(shape), dim, size)


def select(draw: Any, ndim: int, dim: int, size: int) -> Any:
    index = draw(st.integers(-size, size - 1))
    return lambda x: torch.select(x, dim, index)


def narrow(draw: Any, ndim: int, dim: int, size: int) -> Any:
    start = draw(st.integers(-size, size))
    length = draw(st.integers(0, size - start if start >= 0 else -start))
    given = torch.tensor(start) if draw(st.booleans()) else start
    return lambda x: x.narrow(dim, given, length)


def unfold(draw: Any, ndim: int, dim: int, size: int) -> Any:
    width, step = draw(st.integers(0, size)), draw(st.integers(1, 4))
    return lambda x: x.unfold(dim, width, step)


def split(draw: Any, ndim: int, dim: int, size: int) -> Any:
    if draw(st.booleans()):
        ends = sorted(draw(st.lists(st.integers(0, size), max_size=3)))
        sizes = [end - start for start, end in zip([0, *ends], [*ends, size], strict=True)]
        return lambda x: x.split_with_sizes(sizes, dim)
    length = draw(st.integers(1, size + 1))
    return lambda x: torch.split(x, length, dim)


def chunk(draw: Any, ndim: int, dim: int, size: int) -> Any:
    count = draw(st.integers(1, 5))
    return lambda x: torch.chunk(x, count, dim=dim)


def tensor_split(draw: Any, ndim: int, dim: int, size: int) -> Any:
    places = draw(st.integers(1, 5) | st.lists(st.integers(-size, size + 1), max_size=3))
    given = torch.tensor(places, dtype=torch.int64) if draw(st.booleans()) else places
    return lambda x: x.tensor_split(given, dim=dim)


def diagonal(draw: Any, ndim: int, dim: int, size: int) -> Any:
    other = draw(st.sampled_from([each for each in range(ndim) if each != dim % ndim]))
    offset = draw(st.integers(-5, 5))
    return lambda x: x.diagonal(offset, dim, other)


@alike
@given(data=st.data())
def test_get_item(distributed_mesh, serial_twin, data):
    shape = data.draw(shapes())
    index = data.draw(indices(shape), label="index")
    check(distributed_mesh, serial_twin, data, lambda x: x[index], shape)


@alike
@given(data=st.data())
def test_functions(distributed_mesh, serial_twin, data):
    shape = data.draw(shapes())
    check(distributed_mesh, serial_twin, data, data.draw(calls(shape)), shape)


@pytest.mark.multigpu_static(ranks=[4])
@a_few
@given(data=st.data())
def test_two_axes(distributed_mesh_2d, serial_twin, data):
    shape = data.draw(shapes(least=2))
    index = data.draw(indices(shape), label="index")
    call = data.draw(st.just(lambda x: x[index]) | calls(shape))
    check(distributed_mesh_2d, serial_twin, data, call, shape)


def check(mesh, serial_twin, data, call, shape):
    cut, sizes = data.draw(serial_twin.cuts(shape, mesh), label="cut")
    full = torch.linspace(-2, 3, torch.Size(shape).numel(), dtype=torch.float64)
    serial_twin.assert_alike(call, full.reshape(shape), mesh, cut, sizes)
