"""Random functions: the same bits for any number of ranks and any cut, and random all the same."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static

SHAPE = (6, 5, 4)
CUTS = [{}, {"domain": 0}, {"domain": 1}, {"domain": 2}]
WORD = (1 << 64) - 1


def split_mix(seed, count):
    """The output of Vigna's splitmix64.c after `count` steps, in Python's own integers."""
    z = (seed + count * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def expected_uniform(shape, stream=0, draws_before=0):
    """What elements get after `torch.manual_seed(7)`, by their global index."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(draws_before + 1):
        seed = torch.randint(-(2**63), 2**63 - 1, (), generator=generator)
    start = split_mix(int(seed) & WORD, stream + 1)
    found = [(split_mix(start, i + 1) >> 11) * 2.0**-53 for i in range(math.prod(shape))]
    return torch.tensor(found, dtype=torch.float64).reshape(shape)


def seed_only_the_first(world):
    """Other ranks' generators are elsewhere, and must not matter."""
    torch.manual_seed(7 if world.rank == 0 else 100 + world.rank)


def test_oracle():
    """The first outputs of splitmix64.c for the seed 1234567."""
    assert [split_mix(1234567, count) for count in (1, 2, 3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def scattered(mesh, cut, full=None):
    full = torch.ones(SHAPE, dtype=torch.float64) if full is None else full
    sizes = None
    if cut:
        total, ranks = full.shape[next(iter(cut.values()))], mesh.size()
        sizes = [[total - (ranks - 1) // 2, *(r % 2 for r in range(ranks - 1))]]
    return ShardTensor.scatter(full, mesh, cut, sizes)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_same_bits(world, distributed_mesh, cut):
    x = scattered(distributed_mesh, cut)
    seed_only_the_first(world)
    found = [F.dropout(x, 0.3), torch.rand_like(x), torch.bernoulli(x * 0.25), torch.randn_like(x)]
    values = [each.full() for each in found]
    assert all(each.sharding == x.sharding for each in found)
    drawn = [expected_uniform(SHAPE, draws_before=count) for count in range(4)]
    assert torch.allclose(values[0], (drawn[0] >= 0.3).double() / 0.7, rtol=1e-15)
    assert torch.equal(values[1], drawn[1])
    assert torch.equal(values[2], (drawn[2] < 0.25).double())
    angle = 2 * math.pi * expected_uniform(SHAPE, stream=1, draws_before=3)
    normal = torch.sqrt(-2 * torch.log1p(-drawn[3])) * torch.cos(angle)
    assert torch.allclose(values[3], normal, rtol=1e-14, atol=1e-14)


def test_same_bits_along_two_axes(world, distributed_mesh_2d):
    x = ShardTensor.scatter(torch.ones(SHAPE), distributed_mesh_2d, {"axis1": 2, "axis2": 0})
    seed_only_the_first(world)
    assert torch.equal(F.dropout(x, 0.5).full(), 2.0 * (expected_uniform(SHAPE) >= 0.5))


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.Dropout1d, (6, 5, 4)), (nn.Dropout2d, (2, 3, 4, 2)), (nn.Dropout3d, (2, 3, 4, 2, 2))],
)
def test_channels(world, distributed_mesh, module, shape, cut):
    x = scattered(distributed_mesh, cut, torch.ones(shape, dtype=torch.float64))
    seed_only_the_first(world)
    kept = expected_uniform(shape[:2]) >= 0.4
    kept = kept.reshape(*shape[:2], *(1,) * (len(shape) - 2)).expand(shape)
    assert torch.allclose(module(0.4)(x).full(), kept.double() / 0.6)


def test_channels_without_a_batch(world, distributed_mesh):
    x = ShardTensor.scatter(torch.ones(6, 4), distributed_mesh, {"domain": 1})
    seed_only_the_first(world)
    kept = expected_uniform((6,)) >= 0.5
    assert torch.equal(F.dropout1d(x).full(), 2.0 * kept[:, None].expand(6, 4))


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_gradient_has_the_same_mask(distributed_mesh, cut):
    leaf = torch.full(SHAPE, 2.0, dtype=torch.float64, requires_grad=True)
    found = F.dropout(scattered(distributed_mesh, cut, leaf), 0.4).full()
    (gradient,) = torch.autograd.grad(found, leaf, torch.ones_like(found))
    assert torch.equal(gradient, found / 2.0)


@pytest.mark.parametrize("p", [0.0, 1.0])
@pytest.mark.parametrize("name", ["dropout", "dropout2d", "alpha_dropout", "feature_alpha_dropout"])
def test_limits(distributed_mesh, name, p):
    full = torch.randn(2, 3, 4, 2)
    x = ShardTensor.scatter(full, distributed_mesh, {"domain": 2})
    assert torch.equal(getattr(F, name)(x, p, False).full(), full)
    assert torch.equal(getattr(F, name)(x, p, True).full(), getattr(F, name)(full, p, True))


def test_wrong_probability(distributed_mesh):
    x = ShardTensor.scatter(torch.ones(4), distributed_mesh, {"domain": 0})
    with pytest.raises(ValueError, match=r"between 0 and 1, but got 1\.5"):
        F.dropout(x, 1.5)


def test_in_place(world, distributed_mesh):
    x = ShardTensor.scatter(torch.ones(SHAPE), distributed_mesh, {"domain": 1})
    seed_only_the_first(world)
    assert nn.Dropout(0.5, inplace=True)(x) is x
    assert torch.equal(x.full(), 2.0 * (expected_uniform(SHAPE) >= 0.5))
    x.uniform_(1.0, 3.0)
    assert torch.allclose(x.full().double(), 1 + 2 * expected_uniform(SHAPE, draws_before=1))
    x.bernoulli_(0.5)
    assert torch.equal(x.full().double(), (expected_uniform(SHAPE, draws_before=2) < 0.5).double())


def test_own_generator(distributed_mesh):
    x = ShardTensor.scatter(torch.ones(SHAPE), distributed_mesh, {"domain": 1})
    state = torch.get_rng_state()
    found = torch.bernoulli(x, 0.5, generator=torch.Generator().manual_seed(7))
    assert torch.equal(found.full().double(), (expected_uniform(SHAPE) < 0.5).double())
    assert torch.equal(torch.get_rng_state(), state)


def test_lower_precision_stays_below_one(distributed_mesh):
    x = ShardTensor.scatter(torch.ones(200, 500, dtype=torch.bfloat16), distributed_mesh)
    drawn = torch.rand_like(x).full()
    assert drawn.dtype == torch.bfloat16
    assert drawn.max() < 1
    whole = torch.randint_like(x, 2, 5, dtype=torch.int64).full()
    assert whole.unique().tolist() == [2, 3, 4]


@pytest.mark.parametrize("cut", [{}, {"domain": 0}], ids=str)
def test_refused(distributed_mesh, cut):
    x = ShardTensor.scatter(torch.ones(4, 3), distributed_mesh, cut)
    for draw in (
        torch.poisson,
        lambda t: torch.multinomial(t, 2),
        lambda t: F.rrelu(t, training=True),
        lambda t: t.clone().exponential_(),
    ):
        with pytest.raises(NotImplementedError):
            draw(x)


def moments(kept):
    """Rate, and correlations with the neighbour along each dimension, in standard errors."""
    rate = kept.mean()
    errors = [(rate - 0.7) / math.sqrt(0.21 / kept.numel())]
    for dim in range(kept.ndim):
        for lag in (1, 2, 7):
            size = kept.shape[dim] - lag
            a, b = kept.narrow(dim, 0, size) - rate, kept.narrow(dim, lag, size) - rate
            errors.append((a * b).mean() / 0.21 * math.sqrt(a.numel()))
    return torch.stack([torch.as_tensor(each) for each in errors])


def test_as_random_as_dropout(distributed_mesh):
    """Everything within 4.5 standard errors, for ours and for torch's: chance is 1 in 10,000."""
    full = torch.ones(64, 50, 40, dtype=torch.float64)
    x = ShardTensor.scatter(full, distributed_mesh, {"domain": 1})
    torch.manual_seed(3)
    module = nn.Dropout(0.3)
    ours, again, theirs = module(x).full(), module(x).full(), module(full)
    for each in (ours, again, theirs):
        assert torch.equal(each.unique(), torch.tensor([0.0, 1.0 / 0.7], dtype=torch.float64))
        assert moments((each > 0).double()).abs().max() < 4.5
    both = ((ours > 0) & (again > 0)).double().mean()
    assert abs(both - 0.49) < 4.5 * math.sqrt(0.49 * 0.51 / full.numel())


def test_normal_moments(distributed_mesh):
    x = ShardTensor.scatter(torch.ones(400, 500), distributed_mesh, {"domain": 1})
    drawn = torch.randn_like(x).full().double()
    assert abs(drawn.mean()) < 4.5 / math.sqrt(drawn.numel())
    assert abs(drawn.var() - 1) < 4.5 * math.sqrt(2 / drawn.numel())
    assert abs((drawn**4).mean() - 3) < 4.5 * math.sqrt(96 / drawn.numel())


def test_alpha_dropout_keeps_moments(distributed_mesh):
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(400, 500, dtype=torch.float64, generator=generator)
    x = ShardTensor.scatter(full, distributed_mesh, {"domain": 1})
    found = F.alpha_dropout(x, 0.2, training=True).full()
    torch.manual_seed(0)
    twin = F.alpha_dropout(full, 0.2, training=True)
    most = [each.flatten().mode().values for each in (found, twin)]  # what replaces the dropped
    assert torch.allclose(*most)
    assert abs(found.mean()) < 0.01
    assert abs(found.var() - 1) < 0.02
