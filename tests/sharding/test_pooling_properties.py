"""Pooling of any shape and cut is that of one rank: maxima with ties, averages with padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

pytestmark = pytest.mark.multigpu_static(ranks=[2, 3])

MAXIMA = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGES = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
ADAPTIVE_MAXIMA = {1: nn.AdaptiveMaxPool1d, 2: nn.AdaptiveMaxPool2d, 3: nn.AdaptiveMaxPool3d}
ADAPTIVE_AVERAGES = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}

alike = settings(max_examples=200, derandomize=True, deadline=None)
a_few = settings(alike, max_examples=50)  # 4 ranks take their time
spatial = st.sampled_from([1, 1, 2, 2, 3])


@st.composite
def windows(draw: st.DrawFn, dims: int, *, dilated: bool) -> tuple[list[int], dict[str, Any]]:
    """The input's shape, and the options that all pooling has."""
    shape = draw(st.sampled_from([[2], [1, 3], [2, 2]])).copy()
    options: dict[str, Any] = {"ceil_mode": draw(st.booleans())}
    names = ("kernel_size", "stride", "padding", "dilation")
    values: dict[str, list[int]] = {name: [] for name in names}
    for _ in range(dims):
        kernel, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 3)) if dilated else 1
        padding = draw(st.integers(0, kernel // 2))
        least = (kernel - 1) * dilation + 1  # avg_pool3d refuses less, whatever the padding
        if dims < 3:
            least = max(dilation, least - 2 * padding)  # no window without an element
        shape.append(least + draw(st.integers(0, 8 if dims < 3 else 3)))
        each = (kernel, draw(st.integers(1, 4)), padding, dilation)
        for name, value in zip(names, each, strict=True):
            values[name].append(value)
    if not dilated:
        del values["dilation"]
    options |= {name: each if dims > 1 else each[0] for name, each in values.items()}
    return shape, options


@alike
@given(data=st.data())
def test_max_pool(distributed_mesh, serial_twin, data):
    dims = data.draw(spatial)
    shape, options = data.draw(windows(dims, dilated=True))
    indices = data.draw(st.booleans(), label="indices")
    layer = MAXIMA[dims](**options, return_indices=indices)
    check(distributed_mesh, serial_twin, data, layer, shape, ties=True)


@alike
@given(data=st.data())
def test_avg_pool(distributed_mesh, serial_twin, data):
    dims = data.draw(spatial)
    shape, options = data.draw(windows(dims, dilated=False))
    options["count_include_pad"] = data.draw(st.booleans(), label="include")
    if dims > 1:
        options["divisor_override"] = data.draw(st.sampled_from([None, None, 3]), label="divisor")
    check(distributed_mesh, serial_twin, data, AVERAGES[dims](**options), shape)


@alike
@given(data=st.data())
def test_adaptive_max_pool(distributed_mesh, serial_twin, data):
    shape, outputs = data.draw(adaptive())
    layer = ADAPTIVE_MAXIMA[len(outputs)](outputs, return_indices=data.draw(st.booleans()))
    check(distributed_mesh, serial_twin, data, layer, shape, ties=True)


@alike
@given(data=st.data())
def test_adaptive_avg_pool(distributed_mesh, serial_twin, data):
    shape, outputs = data.draw(adaptive())
    check(distributed_mesh, serial_twin, data, ADAPTIVE_AVERAGES[len(outputs)](outputs), shape)


@pytest.mark.multigpu_static(ranks=[4])
@a_few
@given(data=st.data())
def test_two_axes(distributed_mesh_2d, serial_twin, data):
    shape, outputs = data.draw(adaptive())
    dims = len(outputs)
    layer = ADAPTIVE_MAXIMA[dims](outputs, return_indices=True)
    kind = data.draw(st.sampled_from(["max", "avg", "adaptive max", "adaptive avg"]))
    if kind == "adaptive avg":
        layer = ADAPTIVE_AVERAGES[dims](outputs)
    elif kind == "max":
        shape, options = data.draw(windows(dims, dilated=True))
        layer = MAXIMA[dims](**options, return_indices=True)
    elif kind == "avg":
        shape, options = data.draw(windows(dims, dilated=False))
        layer = AVERAGES[dims](**options)
    check(distributed_mesh_2d, serial_twin, data, layer, shape, ties="max" in kind)


@st.composite
def adaptive(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """The shapes of input and output."""
    dims = draw(spatial)
    most = 12 if dims < 3 else 5
    shape = draw(st.sampled_from([[2], [1, 3], [2, 2]]))
    sizes = draw(st.lists(st.integers(1, most), min_size=dims, max_size=dims))
    outputs = draw(st.lists(st.integers(1, most // 2), min_size=dims, max_size=dims))
    return shape + sizes, outputs


def check(mesh, serial_twin, data, layer, shape, *, ties=False):
    cut, sizes = data.draw(serial_twin.cuts(shape, mesh), label="cut")
    torch.manual_seed(1)
    full = torch.randn(shape, dtype=torch.float64)
    if ties:
        full = full.round()
    serial_twin.assert_alike(layer, full, mesh, cut, sizes)
