"""A mistake raises on all ranks, also on one whose piece is empty: otherwise the others wait."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.distributed.device_mesh import init_device_mesh

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static

SHAPE = (4, 2, 6)


def all_on_the_first(mesh, dtype=torch.float64, shape=SHAPE):
    """A tensor of which the first rank has everything."""
    sizes = [[shape[0]] + [0] * (mesh.size() - 1)]
    return ShardTensor.scatter(torch.ones(shape, dtype=dtype), mesh, {"domain": 0}, sizes)


def raised(call):
    """What each rank raises."""
    try:
        call()
    except (RuntimeError, ValueError, ZeroDivisionError) as error:
        found = type(error).__name__
    else:
        found = None
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, found)
    return everywhere


WRONG_DTYPES = {
    "linear": lambda x: F.linear(x, torch.ones(3, 6)),
    "matmul": lambda x: torch.matmul(x, torch.ones(6, 3)),
    "einsum": lambda x: torch.einsum("abc,cd->abd", x, torch.ones(6, 3)),
    "einsum of complex": lambda x: torch.einsum(
        "abc,cd->abd", x, torch.ones(6, 3, dtype=torch.complex128)
    ),
    "bmm": lambda x: torch.bmm(x, torch.ones(4, 6, 3)),
    "conv1d": lambda x: F.conv1d(x, torch.ones(3, 2, 3)),
    "layer_norm": lambda x: F.layer_norm(x, (6,), torch.ones(6)),
    "group_norm": lambda x: F.group_norm(x, 2, torch.ones(2), torch.ones(2)),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(2), torch.ones(2)),
    "instance_norm": lambda x: F.instance_norm(x, weight=torch.ones(2)),
    "max_pool1d of integers": lambda x: F.max_pool1d(x.long(), 2),
}


@pytest.mark.parametrize("name", WRONG_DTYPES)
def test_dtypes_that_do_not_go_together(distributed_mesh, name):
    kinds = set(raised(lambda: WRONG_DTYPES[name](all_on_the_first(distributed_mesh))))
    assert len(kinds) == 1
    assert kinds <= {"RuntimeError", "NotImplementedError"}


def with_items_set(x):
    """All elements of the first rank are set."""
    y = x * 1
    y[:4, :1] = 2.0
    y[:4, 1] = 3.0
    return y


GRADIENTS = {
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, 3),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x, 3),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 3),
    "batch_norm": lambda x: F.batch_norm(x, x.new_zeros(2), x.new_ones(2)),
    "cdist": lambda x: torch.cdist(x, torch.zeros(1, 3, 6, dtype=torch.float64), p=3.0),
    "conv1d": lambda x: F.conv1d(x, torch.ones(3, 2, 3, dtype=torch.float64)),
    "cummax": lambda x: x.cummax(2)[0],
    "cumprod": lambda x: x.cumprod(2),
    "diff": lambda x: x.diff(dim=0),
    "fft": lambda x: torch.fft.fft(x).real,
    "fold": lambda x: F.fold(x[:, :, :2], (3, 1), (2, 1)),
    "interpolate": lambda x: F.interpolate(x, 9, mode="linear"),
    "logcumsumexp": lambda x: x.logcumsumexp(2),
    "max_pool1d": lambda x: F.max_pool1d(x, 3),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x[:, 0], torch.tensor([0, 1, 2, 3])),
    "pad": lambda x: F.pad(x, (1, 1), mode="constant"),
    "pad by reflection": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "quantile": lambda x: x.quantile(0.3, 2),
    "set items": lambda x: with_items_set(torch.cat([x, x])).sin().cumsum(0),
    "unfold": lambda x: x.unfold(0, 2, 1),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_second_derivatives_exist_on_all_ranks_or_on_none(distributed_mesh, name):
    x = all_on_the_first(distributed_mesh).requires_grad_()
    (grad,) = torch.autograd.grad(GRADIENTS[name](x).sum(), x, create_graph=True)
    (kind,) = set(raised(lambda: torch.autograd.grad(grad.sum(), x, allow_unused=True)))
    missing = {"cdist": "NotImplementedError", "multi_margin_loss": "RuntimeError"}
    assert name not in missing or kind == missing[name]


def test_second_derivatives_of_zero(distributed_mesh):
    x = all_on_the_first(distributed_mesh).requires_grad_()
    (grad,) = torch.autograd.grad(x.abs().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert torch.equal(second.full(), torch.zeros(SHAPE, dtype=torch.float64))


WIDENED = {
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x[None], 1),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x[None], 1),
    "avg_pool3d": lambda x: F.avg_pool3d(x[None], 1),
    "max_pool3d": lambda x: F.max_pool3d(x[None], 1),
    "pad by reflection": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "pad the cut by replication": lambda x: F.pad(x[None], (0, 0, 0, 0, 1, 1), mode="replicate"),
}


@pytest.mark.parametrize("name", WIDENED)
def test_what_autocast_widens(distributed_mesh, name):
    x = all_on_the_first(distributed_mesh, torch.bfloat16)
    with torch.autocast(x.device.type, torch.bfloat16):
        found, expected = WIDENED[name](x), WIDENED[name](torch.ones(SHAPE, dtype=torch.bfloat16))
    kinds = [None] * dist.get_world_size()
    dist.all_gather_object(kinds, str(found.local.dtype))
    assert set(kinds) == {str(expected.dtype)}
    assert torch.equal(found.full(), expected)


@pytest.mark.parametrize(
    "divide",
    [
        lambda x, y: x // y,
        lambda x, y: x % y,
        torch.fmod,
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.remainder(x, other=y),
    ],
    ids=["//", "%", "fmod", "div", "remainder"],
)
@pytest.mark.parametrize("divisor", [0, torch.tensor([3, 2, 0, 1, 1, 1])], ids=["0", "a zero"])
def test_integers_divided_by_zero(distributed_mesh, divide, divisor):
    x = all_on_the_first(distributed_mesh, torch.int64)
    (kind,) = set(raised(lambda: divide(x, divisor)))
    assert kind in ("RuntimeError", "ZeroDivisionError")
    good = torch.tensor([3, 2, 1, 1, 1, 1])
    assert torch.equal(divide(x, good).full(), divide(torch.ones(SHAPE, dtype=torch.int64), good))


def test_bytes_divided_by_what_is_zero_in_eight_bits(distributed_mesh):
    x = all_on_the_first(distributed_mesh, torch.uint8)
    for divisor in (256, torch.tensor(512)):
        (kind,) = set(raised(lambda divisor=divisor: x // divisor))
        assert kind in ("RuntimeError", "ZeroDivisionError")


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(
    "fill", [torch.full_like, lambda x, value: (x * 1).fill_(value)], ids=["full_like", "fill_"]
)
def test_numbers_that_do_not_fit(distributed_mesh, fill, last):
    whole = torch.ones(4, dtype=torch.float16)
    sizes = [4 - last, *[0] * (distributed_mesh.size() - 1)]
    sizes[-1] += last
    x = ShardTensor.scatter(whole, distributed_mesh, {"domain": 0}, [sizes])
    assert set(raised(lambda: fill(x, 1e6))) == {"RuntimeError"}


def test_other_meshes(distributed_mesh, world):
    other = init_device_mesh(world.device.type, (1, world.size), mesh_dim_names=("one", "two"))
    x = all_on_the_first(distributed_mesh)
    y = ShardTensor.scatter(torch.ones(SHAPE, dtype=torch.float64), other)
    for left, right in ((x, y), (y, x)):
        with pytest.raises(ValueError, match="add: its tensors are of different meshes"):
            torch.add(left, right)


def test_attention_has_one_derivative(distributed_mesh):
    x = torch.rand(1, 1, 6, 4, dtype=torch.float64)
    y = ShardTensor.scatter(x, distributed_mesh, {"domain": 2}).requires_grad_()
    # The gradient that comes in needs none itself, as that of any sum.
    loss = F.scaled_dot_product_attention(y, y, y).sum() + (y**3).sum()
    if distributed_mesh.size() == 1:  # torch's own kernel says so, too
        return
    with pytest.raises(NotImplementedError, match="has one derivative"):
        torch.autograd.grad(loss, [y], create_graph=True)


@pytest.mark.parametrize("value", [300, 1j], ids=str)
def test_a_masked_value_that_does_not_fit(distributed_mesh, value):
    dtype = torch.int8 if value == 300 else torch.float32
    x = all_on_the_first(distributed_mesh, dtype) * 1

    def fill():
        x[x > -1] = value

    assert set(raised(fill)) == {"RuntimeError"}


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: F.scaled_dot_product_attention(x, x, x),
        lambda x, y: torch.baddbmm(y, x, x.mT),
        lambda x, y: torch.matmul(x, x.mT) + 0 * y,
    ],
    ids=["attention", "baddbmm", "matmul"],
)
def test_dtypes_under_autocast(distributed_mesh, call):
    x, y = torch.rand(2, 6, 4), torch.rand(2, 6, 6)
    cut = {"domain": 1}
    with torch.autocast("cpu", torch.bfloat16):
        expected = call(x, y)
        found = call(
            ShardTensor.scatter(x, distributed_mesh, cut),
            ShardTensor.scatter(y, distributed_mesh, cut),
        )
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.full(), expected, rtol=0.05, atol=0.05)
