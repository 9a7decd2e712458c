"""Sums over ranks of 16-bit floats are rounded once, also where the ranks' parts cancel."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static(ranks=[2, 3])

SUMS = {
    "linear": (lambda x, w, b: F.linear(x, w, b), (4, 24), 1, (5, 24), (5,)),
    "matmul": (lambda x, w, b: torch.matmul(x, w), (4, 24), 1, (24, 5), (5,)),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), (4, 24), 1, (24, 5), (5,)),
    "einsum": (lambda x, w, b: torch.einsum("bi,io->bo", x, w), (4, 24), 1, (24, 5), (5,)),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b), (2, 12, 7), 1, (5, 12, 3), (5,)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b), (2, 12, 5, 4), 1, (5, 12, 3, 3), (5,)),
    "conv_transpose1d": (
        lambda x, w, b: F.conv_transpose1d(x, w, b),
        *((2, 12, 7), 1, (12, 5, 3), (5,)),
    ),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_sums_over_ranks(distributed_mesh, name, dtype):
    function, shape, dim, *others = SUMS[name]
    x, weight, bias = (torch.randn(each).to(dtype) for each in (shape, *others))
    half = x.shape[dim] // 2
    with torch.no_grad():  # the second half nearly takes the first one away
        x.narrow(dim, half, half).copy_(x.narrow(dim, 0, half))
        of = 0 if name in ("matmul", "addmm", "einsum", "conv_transpose1d") else 1
        weight.narrow(of, half, half).copy_(-weight.narrow(of, 0, half) * 1.02)
    exact = function(*(each.double() for each in (x, weight, bias)))
    found = function(ShardTensor.scatter(x, distributed_mesh, {"domain": dim}), weight, bias)
    assert found.dtype == dtype
    error = (found.full().double() - exact).abs()
    once = torch.finfo(dtype).eps / 2  # of a number that is rounded to the nearest
    assert (error <= 1.01 * once * exact.abs() + 1e-5).all()
