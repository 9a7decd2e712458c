"""Interpolation's older names, and derivatives of its derivatives."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static

OLDER = {
    "upsample": lambda x: F.upsample(x, scale_factor=2, mode="bicubic"),
    "upsample_nearest": lambda x: F.upsample_nearest(x, size=(9, 3)),
    "upsample_bilinear": lambda x: F.upsample_bilinear(x, scale_factor=(2, 3)),
}
SECOND = {
    "nearest": lambda x: F.interpolate(x, scale_factor=1.7),
    "area": lambda x: F.interpolate(x, size=(3, 2), mode="area"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(4, 9), mode="bicubic", align_corners=True),
    "antialias": lambda x: F.interpolate(x, size=(3, 2), mode="bilinear", antialias=True),
    "unfold": lambda x: F.unfold(x, 3, padding=1),
    "fold": lambda x: F.fold(x.flatten(2), (7, 10), (1, 2), padding=(0, 1), stride=(1, 2)),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(F.pad(x, (0, 0, 0, 1)), 2),
    "reflect": lambda x: F.pad(x, (1, 2, 3, 1), "reflect"),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_names(distributed_mesh, name):
    full = torch.randn(1, 2, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shard = ShardTensor.scatter(full, distributed_mesh, {"domain": 2})
    with pytest.warns(UserWarning, match=f"{name}.* is deprecated"):
        found = OLDER[name](shard)
    with pytest.warns(UserWarning, match=f"{name}.* is deprecated"):
        torch.testing.assert_close(found.full(), OLDER[name](full), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(distributed_mesh, name):
    full = torch.randn(1, 2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer, whole, cut = SECOND[name], full.clone().requires_grad_(), full.clone().requires_grad_()
    found = second(layer(ShardTensor.scatter(cut, distributed_mesh, {"domain": 2})), cut)
    expected = second(layer(whole), whole)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-11)


def second(result, input):
    """The derivative of a nonlinear function of the derivative."""
    (first,) = torch.autograd.grad(result.pow(3).sum(), input, create_graph=True)
    return torch.autograd.grad(first.pow(2).sum(), input)[0]
