"""What cases can't say of functions along a dimension: dtypes, warnings, random numbers, graphs."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from neural_prep.sharding import ShardTensor, adjoint
from neural_prep.sharding.random import draw_seed, uniform

pytestmark = pytest.mark.multigpu_static


def whole(seed=0, shape=(5, 7)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scattered(mesh, full=None, dim=1):
    return ShardTensor.scatter(whole() if full is None else full, mesh, {"domain": dim})


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax, F.softmin])
@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_chooses_a_dimension_with_a_warning_for_the_caller(distributed_mesh, function, dim):
    with pytest.warns(UserWarning, match="Implicit dimension choice") as theirs:
        expected = function(whole())
    with pytest.warns(UserWarning, match="Implicit dimension choice") as ours:
        found = function(scattered(distributed_mesh, dim=dim))
    torch.testing.assert_close(found.full(), expected)
    assert ours[0].filename == theirs[0].filename == __file__


@pytest.mark.parametrize(
    "function",
    [torch.softmax, torch.special.log_softmax, F.softmin, torch.cumsum, torch.cumprod],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("given", [torch.int64, torch.float64])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_dtype(distributed_mesh, function, given, wanted):
    full = (whole() * 3).to(given)
    expected = function(full, dim=1, dtype=wanted)
    found = function(scattered(distributed_mesh, full), dim=1, dtype=wanted)
    assert found.dtype == wanted
    tolerance = 1e-5 if wanted == torch.float32 else 2e-2
    torch.testing.assert_close(found.full(), expected, rtol=tolerance, atol=tolerance)


def test_numpy_names(distributed_mesh):
    x = scattered(distributed_mesh)
    assert torch.equal(torch.sort(x, axis=1)[0].full(), torch.sort(whole(), dim=1)[0])
    torch.testing.assert_close(torch.cumsum(x, axis=1).full(), whole().cumsum(1))
    torch.testing.assert_close(torch.softmax(x, axis=1).full(), whole().softmax(1))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.sort(x, dim=1),
        lambda x: torch.topk(x, 2),
        lambda x: torch.kthvalue(x, 2),
        lambda x: torch.median(x, 1),
        lambda x: torch.nanmedian(x, 1),
        lambda x: torch.mode(x, 1),
        lambda x: torch.cummax(x, 1),
        lambda x: torch.cummin(x, 1),
    ],
)
def test_named_tuples(distributed_mesh, call):
    found, expected = call(scattered(distributed_mesh)), call(whole())
    assert type(found) is type(expected)
    assert torch.equal(found.values.full(), expected.values)
    assert torch.equal(found.indices.full(), expected.indices)
    assert not found.indices.requires_grad


SECOND = {
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "cumsum": lambda x: torch.cumsum(x, 1) ** 2,
    "cumprod": lambda x: torch.cumprod(x, 1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "cummax": lambda x: torch.cummax(x, 1)[0] ** 3,
    "sort": lambda x: torch.sort(x, dim=1)[0] ** 3 * torch.arange(7),
    "topk": lambda x: torch.topk(x, 3)[0] ** 3,
    "median": lambda x: torch.median(x, 1)[0] ** 3,
    "quantile": lambda x: torch.quantile(x, 0.3, 1) ** 3,
    "diff": lambda x: torch.diff(x) ** 3,
    "gradient": lambda x: torch.gradient(x)[1] ** 3,
    "trapezoid": lambda x: torch.trapezoid(x) ** 3,
    "glu": lambda x: F.glu(torch.diff(x), 1),
    "cosine_similarity": lambda x: torch.cosine_similarity(x, whole(1)),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(distributed_mesh, name):
    expected = second_derivative(SECOND[name], whole().requires_grad_())
    found = second_derivative(SECOND[name], scattered(distributed_mesh).requires_grad_())
    torch.testing.assert_close(found.full(), expected, rtol=1e-10, atol=1e-10)


def second_derivative(function, x):
    value = function(x)
    value = value.full() if isinstance(value, ShardTensor) else value
    loss = (value * torch.linspace(0.5, 2, value.numel(), dtype=value.dtype).view_as(value)).sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    whole_first = first.full() if isinstance(first, ShardTensor) else first
    return torch.autograd.grad(whole_first.sin().sum(), x)[0]


def test_no_views_are_left(distributed_mesh):
    x = scattered(distributed_mesh)
    torch.argsort(x)
    torch.sort(x)
    torch.softmax(x, 1)
    torch.diff(x)
    torch.topk(x, 2)
    x.add_(1.0)
    torch.testing.assert_close(x.full(), whole() + 1)


def test_topk_moves_candidates_alone(distributed_mesh, world, monkeypatch):
    sent, move = [], adjoint.move

    def counted(pieces, send, receive, group):
        sent.append(pieces.numel())
        return move(pieces, send, receive, group)

    monkeypatch.setattr(adjoint, "move", counted)
    x = scattered(distributed_mesh, whole(shape=(4, 600)))
    sent.clear()
    torch.topk(x, 3)
    assert 0 < max(sent) <= 4 * 3 * world.size


def test_gradient_at_coordinates(distributed_mesh):
    points = [torch.tensor([0.0, 1.0, 1.5, 4.0, 6.0], dtype=torch.float64), whole(2)[0].cumsum(0)]
    expected = torch.gradient(whole(), spacing=points, edge_order=2)
    for cut in (0, 1):
        x = scattered(distributed_mesh, dim=cut)
        second = ShardTensor.scatter(points[1], distributed_mesh, {"domain": 0})
        for spacing in (points, [points[0], second]):
            found = torch.gradient(x, spacing=spacing, edge_order=2)
            assert type(found) is type(expected)
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one.full(), other)


def test_gradient_of_quantiles(distributed_mesh):
    expected, found = (torch.tensor([0.2, 0.7], dtype=torch.float64) for _ in range(2))
    expected.requires_grad_()
    found.requires_grad_()
    torch.quantile(whole(), expected, 1).square().sum().backward()
    for dim in (0, 1):
        found.grad = None
        x = scattered(distributed_mesh, dim=dim)
        torch.quantile(x, found, 1).full().square().sum().backward()
        torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("cut", [{}, {"domain": 0}, {"domain": 1}], ids=str)
@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax(distributed_mesh, cut, hard):
    x = ShardTensor.scatter(whole().requires_grad_(), distributed_mesh, cut)
    torch.manual_seed(5)
    replicated = ShardTensor.scatter(whole(), distributed_mesh).sharding
    drawn = uniform(draw_seed(replicated, x.device), replicated, x.shape)
    noise = -(-torch.log1p(-drawn)).log()
    expected = whole().requires_grad_()
    soft = ((expected + noise) / 0.5).softmax(1)
    upstream = whole(3)
    (gradient,) = torch.autograd.grad(soft, expected, upstream)
    torch.manual_seed(5)
    found = F.gumbel_softmax(x, tau=0.5, hard=hard, dim=1)
    value = F.one_hot(soft.argmax(1), 7).double() if hard else soft
    torch.testing.assert_close(found.full(), value)
    (own,) = torch.autograd.grad((found.full() * upstream).sum(), x)
    torch.testing.assert_close(own.full(), gradient)


def test_gumbel_softmax_is_as_likely_as_softmax(distributed_mesh):
    """Within 4.5 standard errors."""
    chances = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    count = 20_000
    x = ShardTensor.scatter(chances.log().expand(count, 3), distributed_mesh, {"domain": 1})
    torch.manual_seed(2)
    rates = F.gumbel_softmax(x, hard=True, dim=1).full().mean(0)
    errors = (rates - chances) / (chances * (1 - chances) / count).sqrt()
    assert errors.abs().max() < 4.5


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.topk(x, 9),
        lambda x: torch.kthvalue(x, 0),
        lambda x: torch.sort(x, dim=4),
        lambda x: torch.cummax(x, 2),
        lambda x: torch.median(x, 3),
        lambda x: torch.quantile(x, 1.5, 1),
        lambda x: torch.diff(x, n=-1),
        lambda x: F.glu(x, 1),
        lambda x: torch.softmax(x, 5),
        lambda x: torch.logcumsumexp(x, 3),
        lambda x: torch.cdist(x, x[..., :2] if not isinstance(x, ShardTensor) else whole()[:, :2]),
    ],
)
def test_mistakes_raise_as_in_torch(distributed_mesh, call):
    with pytest.raises(Exception) as expected:  # noqa: PT011 - which one is what is compared
        call(whole())
    x = ShardTensor.scatter(whole(), distributed_mesh, {"domain": 1}, [_lopsided(distributed_mesh)])
    with pytest.raises(expected.type):
        call(x)


def _lopsided(mesh):
    return [0] * (mesh.size() - 1) + [7]
