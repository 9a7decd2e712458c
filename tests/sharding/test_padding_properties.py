"""Padding of any shape, width and cut is that of one rank; what torch refuses, all ranks refuse."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static(ranks=[2, 3])

LAYERS = {
    "zero": (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    "constant": (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
    "reflect": (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    "replicate": (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
    "circular": (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
}

alike = settings(max_examples=200, derandomize=True, deadline=None)
a_few = settings(alike, max_examples=50)  # 4 ranks take their time


@st.composite
def paddings(draw: st.DrawFn) -> tuple[nn.Module, list[int]]:
    """A layer and the shape of its input."""
    mode = draw(st.sampled_from(list(LAYERS)))
    dims = draw(st.sampled_from([1, 1, 2, 2, 3]))
    sizes = [draw(st.integers(1, 9 if dims < 3 else 4)) for _ in range(dims)]
    pads = []
    for size in reversed(sizes):
        most = {"reflect": size - 1, "circular": size}.get(mode, size + 2)
        before = draw(st.integers(-(size // 2), most), label="before")
        after = draw(st.integers(max(-(size // 2), 1 - size - before), most), label="after")
        if mode == "circular":  # where more is wanted than is left, torch reads what nobody wrote
            before, after = min(before, size + min(after, 0)), min(after, size + min(before, 0))
        pads += [before, after]
    batch = draw(st.sampled_from([[2], [1, 3], [2, 2]]))
    value = [draw(st.sampled_from([0.0, 1.5, float("nan")]))] if mode == "constant" else []
    return LAYERS[mode][dims - 1](pads, *value), batch + sizes


@alike
@given(data=st.data())
def test_layers(distributed_mesh, serial_twin, data):
    check(distributed_mesh, serial_twin, data, *data.draw(paddings(), label="padding"))


@pytest.mark.multigpu_static(ranks=[4])
@a_few
@given(data=st.data())
def test_two_axes(distributed_mesh_2d, serial_twin, data):
    check(distributed_mesh_2d, serial_twin, data, *data.draw(paddings(), label="padding"))


@alike
@given(data=st.data())
def test_constants_in_any_dimensions(distributed_mesh, serial_twin, data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4), label="shape")
    pads = []
    for size in reversed(shape[data.draw(st.integers(0, len(shape) - 1)) :]):
        before = data.draw(st.integers(-size, 4))
        pads += [before, data.draw(st.integers(max(-size, -size - before), 4))]
    check(distributed_mesh, serial_twin, data, lambda x: F.pad(x, pads, value=0.5), shape)


def check(mesh, serial_twin, data, layer, shape):
    cut, sizes = data.draw(serial_twin.cuts(shape, mesh), label="cut")
    torch.manual_seed(1)
    full = torch.randn(shape, dtype=torch.float64)
    try:
        layer(full)
    except (RuntimeError, ValueError) as error:
        with pytest.raises(type(error)):
            layer(ShardTensor.scatter(full, mesh, cut, sizes))
    else:
        serial_twin.assert_alike(layer, full, mesh, cut, sizes)
