"""Convolutions of any shape and cut are those of one rank, with all gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

pytestmark = pytest.mark.multigpu_static(ranks=[2, 3])

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
MODES = ("zeros", "zeros", "reflect", "replicate", "circular")

alike = settings(max_examples=200, derandomize=True, deadline=None)
a_few = settings(alike, max_examples=50)  # 4 ranks take their time


@dataclass
class Problem:
    """A layer and the shape of its input."""

    dims: int
    shape: list[int]
    options: dict[str, Any] = field(default_factory=dict)

    def layer(self, kinds: dict[int, Any]) -> nn.Module:
        torch.manual_seed(0)
        return kinds[self.dims](**self.options, dtype=torch.float64)


@st.composite
def channels(draw: st.DrawFn, dims: int) -> tuple[list[int], dict[str, Any]]:
    """The input's dimensions before the spatial ones, and options."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inputs = groups * draw(st.integers(1, 2 if groups > 1 else 4))
    batch = draw(st.sampled_from([[], [1], [3]]))
    kernel = draw(st.tuples(*[st.integers(1, 5 if dims < 3 else 3)] * dims))
    stride = draw(st.tuples(*[st.integers(1, 4)] * dims))
    dilation = draw(st.tuples(*[st.integers(1, 3)] * dims))
    return [*batch, inputs], {
        "in_channels": inputs,
        "out_channels": groups * draw(st.integers(1, 2)),
        "groups": groups,
        "kernel_size": kernel,
        "stride": stride,
        "dilation": dilation,
        "bias": draw(st.booleans()),
    }


@st.composite
def convolutions(draw: st.DrawFn) -> Problem:
    dims = draw(st.sampled_from([1, 1, 2, 2, 3]))
    shape, options = draw(channels(dims))
    mode = options["padding_mode"] = draw(st.sampled_from(MODES))
    reaches = [
        (size - 1) * step
        for size, step in zip(options["kernel_size"], options["dilation"], strict=True)
    ]
    padding = draw(st.sampled_from(["same", "valid", *[None] * 3]))
    if padding == "same":
        options["stride"] = 1
        pads = [(reach // 2, reach - reach // 2) for reach in reaches]
    elif padding == "valid":
        pads = [(0, 0)] * dims
    else:
        padding = draw(st.tuples(*[st.integers(0, 4)] * dims))
        pads = [(pad, pad) for pad in padding]
    options["padding"] = padding
    for reach, (before, after) in zip(reaches, pads, strict=True):
        least = max(1, reach + 1 - before - after)
        if mode == "reflect":
            least = max(least, after + 1)
        elif mode == "circular":
            least = max(least, after)
        shape.append(least + draw(st.integers(0, 8 if dims < 3 else 3)))
    return Problem(dims, shape, options)


@st.composite
def transposed(draw: st.DrawFn) -> Problem:
    dims = draw(st.sampled_from([1, 1, 2, 2, 3]))
    shape, options = draw(channels(dims))
    options["padding"], options["output_padding"] = [], []
    for kernel, stride, dilation in zip(
        options["kernel_size"], options["stride"], options["dilation"], strict=True
    ):
        size = draw(st.integers(1, 8 if dims < 3 else 3))
        extra = draw(st.integers(0, max(stride, dilation) - 1))
        outputs = (size - 1) * stride + dilation * (kernel - 1) + extra + 1
        options["padding"].append(draw(st.integers(0, min(4, (outputs - 1) // 2))))
        options["output_padding"].append(extra)
        shape.append(size)
    return Problem(dims, shape, options)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # of speed
@alike
@given(data=st.data())
def test_convolution(distributed_mesh, serial_twin, data):
    check(distributed_mesh, serial_twin, data, data.draw(convolutions()), CONVOLUTIONS)


@alike
@given(data=st.data())
def test_transposed(distributed_mesh, serial_twin, data):
    check(distributed_mesh, serial_twin, data, data.draw(transposed()), TRANSPOSED)


@pytest.mark.multigpu_static(ranks=[4])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@a_few
@given(data=st.data())
def test_two_axes(distributed_mesh_2d, serial_twin, data):
    kinds, problems = data.draw(
        st.sampled_from([(CONVOLUTIONS, convolutions()), (TRANSPOSED, transposed())])
    )
    check(distributed_mesh_2d, serial_twin, data, data.draw(problems), kinds)


def check(mesh, serial_twin, data, problem, kinds):
    cut, sizes = data.draw(serial_twin.cuts(problem.shape, mesh), label="cut")
    torch.manual_seed(1)
    full = torch.randn(problem.shape, dtype=torch.float64)
    serial_twin.assert_alike(problem.layer(kinds), full, mesh, cut, sizes)
