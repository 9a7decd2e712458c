"""Reductions of any shape, dimensions and cut are those of one rank, with their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytestmark = pytest.mark.multigpu_static(ranks=[2, 3])

alike = settings(max_examples=200, derandomize=True, deadline=None)

SUMS = {
    "sum": torch.sum,
    "mean": torch.mean,
    "nansum": torch.nansum,
    "var": lambda x, **options: torch.var(x, correction=0, **options),
    "std_mean": lambda x, **options: torch.std_mean(x, correction=0, **options),
    "logsumexp": torch.logsumexp,
    "norm": torch.linalg.vector_norm,
    "norm_1": lambda x, **options: torch.linalg.vector_norm(x, 1, **options),
    "norm_3": lambda x, **options: torch.linalg.vector_norm(x, 3, **options),
    "any": torch.any,
    "all": torch.all,
    "amax": torch.amax,
    "amin": torch.amin,
    "norm_inf": lambda x, **options: torch.linalg.vector_norm(x, float("inf"), **options),
}
ALONG_ONE = {
    "max": torch.max,
    "min": torch.min,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "aminmax": torch.aminmax,
    "prod": torch.prod,
}
WITHOUT_KEEPDIM = {"max", "min", "prod"}  # of all elements


@dataclass(frozen=True)
class Problem:
    """What is reduced, and how the input is cut for any number of ranks."""

    shape: tuple[int, ...]
    name: str
    options: tuple[tuple[str, Any], ...]
    cut: int
    borders: tuple[int, ...]  # of pieces, along the dimension that is cut
    tied: bool = False

    def values(self) -> Tensor:
        generator = torch.Generator().manual_seed(len(self.shape))
        if self.tied:
            return torch.randint(-1, 2, self.shape, generator=generator).double()
        return torch.randn(self.shape, generator=generator, dtype=torch.float64)

    def sizes(self, ranks: int) -> list[int]:
        borders = [0, *sorted(self.borders[: ranks - 1]), self.shape[self.cut]]
        return [after - before for before, after in pairwise(borders)]


@st.composite
def problems(draw: st.DrawFn, names: list[str], dims: st.SearchStrategy[Any]) -> Problem:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    name = draw(st.sampled_from(names))
    dim = draw(dims)
    if isinstance(dim, int):
        dim %= len(shape)
        dim = draw(st.sampled_from([dim, dim - len(shape)]))
    elif dim is not None:
        dim = tuple(sorted({each % len(shape) for each in dim}))
    options = {} if dim is None else {"dim": dim}
    if dim is not None or name not in WITHOUT_KEEPDIM:
        options["keepdim"] = draw(st.booleans())
    cut = draw(st.integers(0, len(shape) - 1))
    borders = draw(st.tuples(*[st.integers(0, shape[cut])] * 3))
    return Problem(shape, name, tuple(options.items()), cut, borders, draw(st.booleans()))


def several() -> st.SearchStrategy[Any]:
    return st.one_of(st.integers(0, 2), st.sets(st.integers(0, 2), min_size=1))


def one() -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.integers(0, 2))


@alike
@example(Problem((4,), "amax", (("dim", 0),), 0, (0, 2, 2), tied=True))  # first piece is empty
@given(problems(list(SUMS), several()))
def test_joined(world, distributed_mesh, serial_twin, problem):
    check(SUMS[problem.name], problem, world, distributed_mesh, serial_twin)


@alike
@given(problems(list(ALONG_ONE), one()))
def test_along_one_or_all(world, distributed_mesh, serial_twin, problem):
    check(ALONG_ONE[problem.name], problem, world, distributed_mesh, serial_twin)


def check(function, problem, world, mesh, serial_twin):
    full = problem.values().to(world.device)
    cut, sizes = {"domain": problem.cut}, [problem.sizes(world.size)]
    serial_twin.assert_alike(partial(function, **dict(problem.options)), full, mesh, cut, sizes)
