"""Second derivatives where some ranks have nothing: as serially, and none hangs or raises alone."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.autograd import grad

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static

KERNEL = torch.linspace(-1, 1, 3, dtype=torch.float64).reshape(1, 1, 3)


def fill_two_rows(x):
    y = x * 1
    y[0:2] = 3
    return y


CALLS = {
    "abs": torch.abs,
    "convolution": lambda x: F.conv1d(x[:, None], KERNEL, padding=1),
    "cube": lambda x: x**3,
    "cumprod": lambda x: torch.cumprod(x, 0),
    "fill": fill_two_rows,
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "max pooling": lambda x: F.max_pool1d(x[:, None], 2),
    "reflect": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "softmax": lambda x: torch.softmax(x, 0),
}


def on_one_rank(mesh, *, first):
    """A leaf, and a tensor of which one rank has all."""
    whole = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    sizes = [0] * mesh.size()
    sizes[0 if first else -1] = 6
    leaf = whole.requires_grad_()
    return leaf, ShardTensor.scatter(leaf, mesh, {"domain": 0}, [sizes])


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("name", CALLS)
def test_all_of_it_on_one_rank(distributed_mesh, name, first):
    leaf, x = on_one_rank(distributed_mesh, first=first)
    one = leaf.detach().clone().requires_grad_()
    expected = derivatives(CALLS[name], one, one)
    found = derivatives(CALLS[name], x, leaf)
    for ours, serial in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, serial, rtol=1e-11, atol=1e-11)


def derivatives(call, x, leaf):
    """The first, and the second where there is one, along a direction that is not the first's."""
    y = call(x)
    (first,) = grad((y * y.detach().cos()).sum(), leaf, create_graph=True)
    if not first.requires_grad:
        return [first]
    (second,) = grad(first.square().sum(), leaf, allow_unused=True)
    return [first, torch.zeros_like(leaf) if second is None else second]


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_torch_has_none_of_distances(distributed_mesh, first):
    leaf, x = on_one_rank(distributed_mesh, first=first)
    with pytest.raises(NotImplementedError, match="_cdist_backward"):
        derivatives(lambda x: torch.cdist(x, x.detach() + 1), x, leaf)


def test_a_second_derivative_of_zeros_is_a_tensor_like_any(distributed_mesh):
    leaf, x = on_one_rank(distributed_mesh, first=True)
    (gradient,) = grad(x.abs().sum(), x, create_graph=True)
    (second,) = grad(gradient.sum(), x)
    assert torch.equal(second.full(), torch.zeros_like(leaf))
