"""A ShardTensor as a tensor: metadata, copies, files, and all that autograd does with it."""

import copy
import io
import operator
import pickle

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.checkpoint import checkpoint

from neural_prep.sharding import Layout, ShardTensor

pytestmark = pytest.mark.multigpu_static

SHAPE = (2, 5, 4)
CUT = {"domain": 1}


def whole(seed=0, shape=SHAPE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def scattered(mesh, full=None, cut=CUT):
    return ShardTensor.scatter(whole() if full is None else full, mesh, cut)


def near(found, expected):
    found = found.full() if isinstance(found, ShardTensor) else found
    return torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_metadata(distributed_mesh):
    x = scattered(distributed_mesh)
    assert (x.shape, x.size(1), x.ndim, x.dim(), x.numel(), len(x)) == (SHAPE, 5, 3, 3, 40, 2)
    assert (x.dtype, x.device.type, x.is_floating_point()) == (torch.float64, "cpu", True)
    assert (x.requires_grad, x.is_leaf, x.grad, x.grad_fn) == (False, True, None, None)
    assert torch.result_type(x, torch.ones((), dtype=torch.int64)) == torch.float64
    assert isinstance(x, torch.Tensor)
    assert torch.is_tensor(x)
    assert x in {x}


def test_printing(distributed_mesh):
    x = scattered(distributed_mesh)
    assert "shape=[2, 5, 4], cut dim 1 along domain" in repr(x)
    assert f"{x}" == str(x) == repr(x)
    loss = ShardTensor.scatter(torch.tensor(1.25), distributed_mesh)
    assert f"{loss:.1f}" == "1.2"
    assert (loss.item(), float(loss), bool(loss)) == (1.25, 1.25, True)
    with pytest.raises(NotImplementedError, match="item of a tensor that is cut"):
        ShardTensor.scatter(torch.ones(1), distributed_mesh, {"domain": 0}).item()


@pytest.mark.parametrize("cut", [{"domain": 0}, CUT, {}], ids=str)
def test_iteration(distributed_mesh, cut):
    rows = list(scattered(distributed_mesh, cut=cut))
    assert len(rows) == 2
    assert all(near(row, expected) for row, expected in zip(rows, whole(), strict=True))


OPERATORS = {
    "arithmetic": lambda x, y: (x + y) * y - x / (y + 3) + x // 2 - y % 3 + (2 - x) * (3 + y),
    "reflected": lambda x, y: 1 / (x.abs() + 1) - 2 ** y.abs() + 7 // (x.abs() + 1) + 5 % y.exp(),
    "powers": lambda x, y: (x.abs() + 1) ** y + x**2 - abs(y) ** 0.5 + (-x) + (+y),
    "compared": lambda x, y: (x < y) | (x >= 0.5) & (y != 0) ^ (x > 1) | ~(x == y) & (x <= y),
    "chained": lambda x, y: torch.where(x > y, x, y).clamp(-1, 1).tanh().to(torch.float32),
    "shifted": lambda x, y: ((x * 9).int() << 2) | ((y * 9).int() >> 1) ^ (1 << y.abs().int()),
    "numpy": lambda x, y: x * whole(3, (5, 1)).numpy()[0, 0] + y,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(distributed_mesh, name):
    x, y = whole(), whole(1, (5, 1))
    expected = OPERATORS[name](x, y)
    shards = scattered(distributed_mesh), ShardTensor.scatter(y, distributed_mesh, {"domain": 0})
    for first, second in (shards, (shards[0], y), (x, shards[1])):
        found = OPERATORS[name](first, second)
        assert found.dtype == expected.dtype
        assert torch.equal(found.full(), expected)


def test_compared_with_nothing(distributed_mesh):
    assert (scattered(distributed_mesh) == None) is False  # noqa: E711 - what `==` gives is the test


@pytest.mark.parametrize("name", ["svd", "inverse", "pinverse"])
def test_no_version(distributed_mesh, name):
    x = ShardTensor.scatter(whole(), distributed_mesh, {"domain": 2})
    with pytest.raises(NotImplementedError, match="dim 2 along domain"):
        getattr(torch, name)(x)


def test_casts_to_itself_are_the_tensor(distributed_mesh):
    x = scattered(distributed_mesh)
    for cast in (
        x.to(torch.float64),
        x.double(),
        x.to("cpu"),
        x.to(x),
        x.cpu(),
        x.contiguous(),
        x.type_as(x),
    ):
        assert cast is x
    assert x.to(torch.float64, copy=True) is not x
    assert x.float().dtype == torch.float32
    assert x.type(torch.float16).dtype == torch.float16
    assert x.type() == "torch.DoubleTensor"
    with pytest.raises(NotImplementedError, match="would leave the mesh's cpu"):
        x.to("meta")


def test_new_tensors(distributed_mesh):
    x = scattered(distributed_mesh)
    assert torch.zeros_like(x, requires_grad=True).requires_grad
    assert torch.zeros_like(x, requires_grad=True).is_leaf
    assert torch.ones_like(x, dtype=torch.int64).sharding == x.sharding
    made = x.new_full((3,), 2.0)
    assert made.sharding.is_replicated
    assert torch.equal(made.full(), torch.full((3,), 2.0, dtype=torch.float64))


def test_deepcopy(distributed_mesh):
    x = scattered(distributed_mesh).requires_grad_()
    (x * x).backward(scattered(distributed_mesh, whole(1)))
    twin, again = copy.deepcopy([x, x])
    assert twin is again
    assert (twin.requires_grad, twin.is_leaf, twin.sharding) == (True, True, x.sharding)
    with torch.no_grad():
        x.zero_()
    x.grad = None
    assert near(twin, whole())
    assert near(twin.grad, 2 * whole() * whole(1))
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(twin * 2)


def test_copy(distributed_mesh):
    x = scattered(distributed_mesh).requires_grad_()
    twin = copy.copy(x)
    assert twin.requires_grad
    assert near(twin, whole())


def written(x, how):
    if how == "pickle":
        return pickle.loads(pickle.dumps(x))
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    return torch.load(file)["x"]


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_files(distributed_mesh, how):
    x = scattered(distributed_mesh).requires_grad_()
    found = written(x, how)
    assert (found.requires_grad, found.sharding) == (True, x.sharding)
    assert near(found, whole())
    assert near(found * x, whole() * whole())


def test_files_of_another_rank(world, distributed_mesh):
    x = scattered(distributed_mesh)
    load, saved = x.__reduce_ex__(2)
    local, cuts, mesh, rank, size, requires_grad = saved
    with pytest.raises(RuntimeError, match=rf"rank {rank + 1} of {size} ranks, but is loaded by"):
        load(local, cuts, mesh, rank + 1, size, requires_grad)


def test_files_make_the_mesh_again(world, distributed_mesh):
    from neural_prep.sharding import saving

    data = pickle.dumps(scattered(distributed_mesh))
    saving._meshes.clear()
    found = pickle.loads(data)
    assert near(found, whole())
    assert near(found + scattered(distributed_mesh), 2 * whole())


def test_data(distributed_mesh):
    x = scattered(distributed_mesh).requires_grad_()
    assert not x.data.requires_grad
    assert near(x.data, whole())
    x.data = ShardTensor.scatter(whole(1), distributed_mesh, {"domain": 0})
    assert near(x, whole(1))
    assert x.sharding.cuts[0].dim == 1
    with pytest.raises(NotImplementedError, match="takes a ShardTensor of the same shape"):
        x.data = whole()


def test_gradient_attribute(distributed_mesh):
    x = scattered(distributed_mesh).requires_grad_()
    x.grad = scattered(distributed_mesh, whole(1))
    (x * 3).backward(scattered(distributed_mesh, whole(2)))
    assert near(x.grad, whole(1) + 3 * whole(2))
    x.grad.zero_()
    assert not x.grad.full().any()
    del x.grad
    assert x.grad is None


@pytest.mark.parametrize("cut", [CUT, {}], ids=str)
def test_gradients_don_t_share_memory(distributed_mesh, cut):
    """A sum hands one gradient to both: what one accumulates must not show in the other."""
    plain = [whole().requires_grad_(), whole(1).requires_grad_()]
    shards = [scattered(distributed_mesh, each.detach(), cut).requires_grad_() for each in plain]
    for leaves in (plain, shards):
        for count in (1, 2, 3):
            total = sum(scattered(distributed_mesh, each, cut) for each in plain)
            total = shards[0] + shards[1] if leaves is shards else total
            total.backward(scattered(distributed_mesh, whole(2), cut))
            assert all(near(each.grad, count * whole(2)) for each in leaves)
    plain[0].grad.zero_()
    assert near(plain[1].grad, 3 * whole(2))


def test_gradient_given_whole(distributed_mesh):
    leaf = whole().requires_grad_()
    (scattered(distributed_mesh, leaf) * 2).backward(whole(1))
    assert near(leaf.grad, 2 * whole(1))


def test_hooks_of_tensors(distributed_mesh):
    leaf, seen = whole().requires_grad_(), []
    x = scattered(distributed_mesh, leaf) * 2
    x.register_hook(lambda gradient: gradient * 5)
    x.retain_grad()
    y = x * 3
    y.register_hook(lambda gradient: seen.append(gradient))
    y.backward(scattered(distributed_mesh, whole(1)))
    assert near(seen[0], whole(1))
    assert near(x.grad, 15 * whole(1))
    assert near(leaf.grad, 30 * whole(1))


class Scale(nn.Module):
    """A parameter along a dimension that may be cut."""

    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(whole(5, (size, 1)))

    def forward(self, x):
        return F.gelu(x * self.scale)


def test_hooks_of_modules(distributed_mesh):
    found, expected = [], []
    for seen, x in ((expected, whole()), (found, scattered(distributed_mesh))):
        module = Scale(5)
        module.register_full_backward_pre_hook(lambda m, out, seen=seen: seen.extend(out))
        module.register_full_backward_hook(lambda m, into, out, seen=seen: seen.extend(into + out))
        module.register_forward_hook(lambda m, args, out: out * 2)
        result = module(x.requires_grad_() * 1.0)
        upstream = scattered(distributed_mesh, whole(1)) if seen is found else whole(1)
        result.backward(upstream)
        seen.append(module.scale.grad)
    assert all(near(one, other) for one, other in zip(found, expected, strict=True))


class Cube(torch.autograd.Function):
    """Written with ordinary functions of torch."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x**3 * scale

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return 3 * x**2 * scale * gradient, (x**3 * gradient).expand_as(x) * torch.ones_like(scale)


@pytest.mark.parametrize("cut", [CUT, {"domain": 2}, {}], ids=str)
def test_function_of_the_user(distributed_mesh, cut):
    leaves = [whole().requires_grad_(), whole(1).requires_grad_()]
    expected = torch.autograd.grad(Cube.apply(*leaves), leaves, whole(2))
    shards = [scattered(distributed_mesh, leaves[0], cut), scattered(distributed_mesh, leaves[1])]
    found = torch.autograd.grad(Cube.apply(*shards).full(), leaves, whole(2))
    assert all(near(one, other) for one, other in zip(found, expected, strict=True))


def test_function_of_the_user_that_returns_its_input(distributed_mesh):
    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    leaf = whole().requires_grad_()
    x = scattered(distributed_mesh, leaf)
    y = Identity.apply(x)
    (gradient,) = torch.autograd.grad(y.full(), leaf, whole(1))
    assert near(gradient, 2 * whole(1))
    with pytest.raises((NotImplementedError, RuntimeError), match="view"):
        y.add_(1.0)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(distributed_mesh, use_reentrant):
    module = Scale(5)

    def block(x):
        return F.dropout(module(module(x)), 0.3)

    results = []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=use_reentrant)):
        torch.manual_seed(2)
        leaf = whole().requires_grad_()
        module.zero_grad()
        run(scattered(distributed_mesh, leaf)).backward(scattered(distributed_mesh, whole(1)))
        results.append((leaf.grad, module.scale.grad))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_second_derivative(distributed_mesh):
    found = []
    for shard in (False, True):
        leaf, scale = whole().requires_grad_(), whole(5, (5, 1)).requires_grad_()
        x = scattered(distributed_mesh, leaf) if shard else leaf
        upstream = scattered(distributed_mesh, whole(1)) if shard else whole(1)
        y = torch.tanh(x * scale) + x**3
        (first,) = torch.autograd.grad(y, x, upstream, create_graph=True)
        second = torch.autograd.grad(first, (leaf, scale), upstream)
        found.append((first, *second))
    assert all(near(one, other) for one, other in zip(found[1], found[0], strict=True))


class Net(nn.Module):
    """Cut layers, then a head on the mean over the cut dimension."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Scale(5), nn.PReLU(5), Scale(5), nn.GELU())
        self.head = nn.Linear(4, 3, dtype=torch.float64)
        self.double()

    def forward(self, x):
        features = self.layers(x)
        if isinstance(features, ShardTensor):
            features = ShardTensor.scatter(features.full().mean(1), x.sharding.mesh)
        else:
            features = features.mean(1)
        return self.head(features).square().mean()


def nets():
    torch.manual_seed(4)
    net = Net()
    return net, copy.deepcopy(net)


def test_head_on_the_mean_over_the_cut_dimension(distributed_mesh):
    """Every gradient has ratio 1 to serial: input, cut layers and the head, which is not summed."""
    serial, sharded = nets()
    expected, found = whole().requires_grad_(), whole().requires_grad_()
    serial(expected).backward()
    loss = sharded(scattered(distributed_mesh, found))
    assert isinstance(loss, ShardTensor)
    loss.backward()
    assert near(found.grad, expected.grad)
    for (name, one), two in zip(sharded.named_parameters(), serial.parameters(), strict=True):
        assert near(one.grad, two.grad), name


def test_training_stays_in_step(distributed_mesh):
    serial, sharded = nets()
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.1) for net in (serial, sharded)]
    for step in range(3):
        losses = serial(whole(step)), sharded(scattered(distributed_mesh, whole(step)))
        assert near(losses[1], losses[0])
        for net, loss, optimizer in zip((serial, sharded), losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
    pairs = zip(sharded.parameters(), serial.parameters(), strict=True)
    assert all(torch.allclose(one, two, rtol=1e-9) for one, two in pairs)


def test_optimised_input(distributed_mesh):
    """A leaf that is cut, in torch's own optimizer."""
    expected = whole().requires_grad_()
    found = scattered(distributed_mesh).requires_grad_()
    for leaf, target in ((expected, whole(1)), (found, scattered(distributed_mesh, whole(1)))):
        optimizer = torch.optim.SGD([leaf], lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            (leaf * target).backward(target)
            optimizer.step()
    assert near(found, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(distributed_mesh, mode):
    serial, sharded = nets()
    with mode():
        x = scattered(distributed_mesh)
        loss = sharded(x)
        x.add_(1.0)
        shifted = x.full()
    assert not loss.requires_grad
    assert near(loss, serial(whole()))
    assert near(shifted, whole() + 1.0)


def test_other_layouts_meet_in_backward(distributed_mesh):
    class Elsewhere(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            layout = Layout.of(distributed_mesh, gradient.shape, {"domain": 0})
            return gradient.redistribute(layout)

    x = scattered(distributed_mesh).requires_grad_()
    (Elsewhere.apply(x) + x * 2).backward(scattered(distributed_mesh, whole(1)))
    assert near(x.grad, 3 * whole(1))


def test_operator_module(distributed_mesh):
    x = scattered(distributed_mesh)
    assert near(operator.truediv(1.0, x), 1.0 / whole())
