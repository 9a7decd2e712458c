"""Interpolation, shuffles and blocks of any shape and cut are those of one rank."""

from __future__ import annotations

from math import floor
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static(ranks=[2, 3])

MODES = {
    1: ("nearest", "nearest-exact", "area", "linear"),
    2: ("nearest", "nearest-exact", "area", "bilinear", "bicubic"),
    3: ("nearest", "nearest-exact", "area", "trilinear"),
}
SCALES = [0.3, 0.5, 0.7, 1.0, 1.05, 1.5, 1.9, 2, 2.0, 2.1, 3.0]  # some that rounding matters to

alike = settings(max_examples=200, derandomize=True, deadline=None)
a_few = settings(alike, max_examples=50)  # 4 ranks take their time
spatial = st.sampled_from([1, 1, 2, 2, 3])
batches = st.sampled_from([[1, 1], [2, 1], [1, 3], [2, 2]])


@st.composite
def interpolations(draw: st.DrawFn) -> tuple[list[int], dict[str, Any]]:
    """The input's shape, and options."""
    dims = draw(spatial)
    most = {1: 20, 2: 9, 3: 4}[dims]
    sizes = [draw(st.integers(1, most)) for _ in range(dims)]
    options: dict[str, Any] = {"mode": draw(st.sampled_from(MODES[dims]))}
    kernel = options["mode"].endswith(("linear", "cubic"))
    if kernel:
        options["align_corners"] = draw(st.sampled_from([None, False, True]))
    if kernel and dims == 2:
        options["antialias"] = draw(st.booleans())
    if options.get("antialias"):  # to one column torch's own result is wrong: its gradient differs
        sizes = [max(size, 4) for size in sizes]
    least = 2 if options.get("antialias") else 1
    if draw(st.booleans()):
        options["size"] = [draw(st.integers(least, 2 * most)) for _ in range(dims)]
        return draw(batches) + sizes, options
    factors = [draw(st.sampled_from([f for f in SCALES if floor(n * f) >= least])) for n in sizes]
    same = draw(st.booleans()) and all(floor(size * factors[0]) >= least for size in sizes)
    options["scale_factor"] = factors[0] if same else factors
    options["recompute_scale_factor"] = draw(st.sampled_from([None, False, True]))
    return draw(batches) + sizes, options


@alike
@given(data=st.data())
def test_interpolate(distributed_mesh, serial_twin, data):
    shape, options = data.draw(interpolations(), label="options")
    check(distributed_mesh, serial_twin, data, lambda x: F.interpolate(x, **options), shape)


@alike
@given(data=st.data())
def test_interpolate_in_float32(distributed_mesh, serial_twin, data):
    shape, options = data.draw(interpolations(), label="options")
    layer = lambda x: F.interpolate(x, **options)  # noqa: E731 - as short as it gets
    check(distributed_mesh, serial_twin, data, layer, shape, dtype=torch.float32)


@pytest.mark.multigpu_static(ranks=[4])
@a_few
@given(data=st.data())
def test_two_axes(distributed_mesh_2d, serial_twin, data):
    shape, options = data.draw(interpolations(), label="options")
    check(distributed_mesh_2d, serial_twin, data, lambda x: F.interpolate(x, **options), shape)


@alike
@given(data=st.data())
def test_nearest_rows_are_the_very_same(distributed_mesh, serial_twin, data):
    dims, size = data.draw(spatial, label="dims"), data.draw(st.integers(1, 200), label="size")
    place = data.draw(st.integers(0, dims - 1), label="place")
    mode = data.draw(st.sampled_from(["nearest", "nearest-exact"]), label="mode")
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]), label="dtype")
    beside = [data.draw(st.sampled_from([1, 130])) if dims == 2 else 1] * (dims - 1)
    options: dict[str, Any] = {"size": [*beside[:place], 0, *beside[place:]]}
    options["size"][place] = data.draw(st.integers(1, 300))
    if data.draw(st.booleans()):
        factors = [float(each) for each in options["size"]]
        factors[place] = data.draw(st.floats(1.01 / size, 3))
        options = {"scale_factor": factors}
    shape = (1, 1, *(1,) * place, size, *(1,) * (dims - 1 - place))
    full = torch.arange(size, dtype=dtype).reshape(shape)
    _, sizes = data.draw(serial_twin.cuts([size], distributed_mesh), label="cut")
    shard = ShardTensor.scatter(full, distributed_mesh, {"domain": 2 + place}, sizes)
    found = F.interpolate(shard, mode=mode, **options).full()
    assert torch.equal(found, F.interpolate(full, mode=mode, **options))


@alike
@given(data=st.data())
def test_shuffles(distributed_mesh, serial_twin, data):
    layer, shape = data.draw(shuffles(), label="layer")
    check(distributed_mesh, serial_twin, data, layer, shape)


@pytest.mark.multigpu_static(ranks=[4])
@a_few
@given(data=st.data())
def test_shuffles_on_two_axes(distributed_mesh_2d, serial_twin, data):
    layer, shape = data.draw(shuffles(), label="layer")
    check(distributed_mesh_2d, serial_twin, data, layer, shape)


@st.composite
def shuffles(draw: st.DrawFn) -> tuple[nn.Module, list[int]]:
    factor = draw(st.integers(1, 3))
    kind = draw(st.sampled_from([nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle]))
    batch = draw(st.sampled_from([[1], [3]]))
    channels, rows, columns = (draw(st.integers(1, 4)) for _ in range(3))
    if kind is nn.PixelShuffle:
        return kind(factor), [*batch, channels * factor**2, rows, columns]
    if kind is nn.PixelUnshuffle:
        return kind(factor), [*batch, channels, rows * factor, columns * factor]
    return kind(factor), [*batch, channels * factor, rows, columns]


@alike
@given(data=st.data())
def test_blocks(distributed_mesh, serial_twin, data):
    layer, shape = data.draw(blocks(), label="layer")
    check(distributed_mesh, serial_twin, data, layer, shape)


@pytest.mark.multigpu_static(ranks=[4])
@a_few
@given(data=st.data())
def test_blocks_on_two_axes(distributed_mesh_2d, serial_twin, data):
    layer, shape = data.draw(blocks(), label="layer")
    check(distributed_mesh_2d, serial_twin, data, layer, shape)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[nn.Module, list[int]]:
    """`Unfold` or `Fold`, and the shape of its input."""
    options: dict[str, Any] = {"kernel_size": [], "dilation": [], "padding": [], "stride": []}
    size, counts = [], []
    for _ in range(2):
        kernel, dilation, stride = (draw(st.integers(1, 3)) for _ in range(3))
        padding, reach = draw(st.integers(0, 2)), (kernel - 1) * dilation + 1
        size.append(max(1, reach - 2 * padding) + draw(st.integers(0, 5)))
        counts.append((size[-1] + 2 * padding - reach) // stride + 1)
        for name, value in zip(options, (kernel, dilation, padding, stride), strict=True):
            options[name].append(value)
    start, channels = draw(st.sampled_from([[], [1], [3]])), draw(st.integers(1, 3))
    if draw(st.booleans()):
        return nn.Unfold(**options), [*start, channels, *size]
    taps = options["kernel_size"][0] * options["kernel_size"][1]
    return nn.Fold(size, **options), [*start, channels * taps, counts[0] * counts[1]]


def check(mesh, serial_twin, data, layer, shape, *, dtype=torch.float64):
    cut, sizes = data.draw(serial_twin.cuts(shape, mesh), label="cut")
    torch.manual_seed(1)
    full = torch.randn(shape, dtype=dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    serial_twin.assert_alike(layer, full, mesh, cut, sizes, tolerance=tolerance)
