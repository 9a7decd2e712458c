"""In-place functions: what plain torch gives, with its gradients, or a refusal on every rank."""

import operator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from neural_prep.sharding import Layout, ShardTensor

pytestmark = pytest.mark.multigpu_static

SHAPE = (5, 4)
CUTS = [{"domain": 0}, {"domain": 1}, {}]


def whole(seed=0, shape=SHAPE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def set_item(*index):
    def change(x, value):
        x[index if len(index) > 1 else index[0]] = value
        return x

    return change


UNARY = {
    "relu_": torch.Tensor.relu_,
    "torch-relu_": torch.relu_,
    "clamp_": lambda x: x.clamp_(-0.5, 0.5),
    "sigmoid_": torch.Tensor.sigmoid_,
    "mul_-number": lambda x: x.mul_(3.0),
    "add_-alpha": lambda x: x.add_(2.0, alpha=0.5),
    "pow_": lambda x: x.pow_(3),
    "zero_": torch.Tensor.zero_,
    "fill_": lambda x: x.fill_(2.5),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, 0.5),
    "mask-set": lambda x: operator.setitem(x, x > 0, -1.0),
    "relu-inplace": lambda x: F.relu(x, inplace=True),
    "leaky_relu-inplace": lambda x: F.leaky_relu(x, 0.1, inplace=True),
    "relu-module": lambda x: torch.nn.ReLU(inplace=True)(x),
    "dropout-off": lambda x: F.dropout(x, 0.5, training=False, inplace=True),
    "twice": lambda x: x.mul_(2.0).add_(1.0),
    "set-number": lambda x: operator.setitem(x, (slice(1, 4, 2), 2), 7.0),
    "set-all": lambda x: operator.setitem(x, ..., 1.0),
}
BINARY = {
    "+=": (operator.iadd, SHAPE),
    "-=": (operator.isub, (4,)),
    "*=": (operator.imul, (5, 1)),
    "/=": (operator.itruediv, SHAPE),
    "copy_": (torch.Tensor.copy_, (4,)),
    "lerp_": (lambda x, y: x.lerp_(y, 0.3), SHAPE),
    "set-row": (set_item(2), (4,)),
    "set-last-column": (set_item(slice(None), -1), (5,)),
    "set-block": (set_item(slice(1, None), slice(0, 3, 2)), (4, 2)),
    "set-broadcast": (set_item(slice(1, 4)), (1, 4)),
    "set-element": (set_item(4, 1), ()),
    "set-none": (set_item(slice(2, 2)), (4,)),
    "set-ellipsis": (set_item(..., slice(1, 2)), (5, 1)),
}


def scattered(full, mesh, cut):
    """A tensor that is no leaf, with an uneven cut that leaves a rank without anything."""
    sizes = None
    if cut:
        total = full.shape[cut["domain"]]
        parts = [0, *[1] * (mesh.size() - 2), total - max(mesh.size() - 2, 0)]
        sizes = [parts if mesh.size() > 1 else [total]]
    return ShardTensor.scatter(full, mesh, cut, sizes)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(distributed_mesh, name, cut):
    found, expected = whole().requires_grad_(), whole().requires_grad_()
    x, y = expected * 1.0, scattered(found, distributed_mesh, cut)
    layout = y.sharding
    before = y * y  # has saved the old value
    UNARY[name](x)
    UNARY[name](y)
    assert y.sharding == layout
    check(y, x, [(found, expected)], before, expected * expected)


@pytest.mark.parametrize("other", ["plain", "replicated", "cut"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(distributed_mesh, name, cut, other):
    change, shape = BINARY[name]
    leaves = [whole().requires_grad_(), whole(1, shape).requires_grad_()]
    twins = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    x, y = twins[0] * 1.0, scattered(leaves[0], distributed_mesh, cut)
    value = leaves[1]
    if other != "plain":
        where = {"domain": 0} if other == "cut" and shape else {}
        value = ShardTensor.scatter(value, distributed_mesh, where)
    before = y * y
    change(x, twins[1])
    assert change(y, value) is y
    check(y, x, list(zip(leaves, twins, strict=True)), before, twins[0] * twins[0])


def check(y, x, pairs, before, before_twin):
    """The value now, and gradients of it and of what used the value before."""
    assert torch.allclose(y.full(), x, rtol=1e-14, atol=1e-14)
    assert y.requires_grad == x.requires_grad
    upstream = whole(2)
    now = [each.grad for each in gradients([x], [upstream], pairs, 1)]
    for found, expected in zip(gradients([y.full()], [upstream], pairs, 0), now, strict=True):
        assert torch.allclose(found.grad, expected, rtol=1e-12, atol=1e-12)
    gradients([before_twin], [upstream], pairs, 1)
    gradients([before.full()], [upstream], pairs, 0)
    for found, expected in pairs:
        assert torch.allclose(found.grad, expected.grad, rtol=1e-12, atol=1e-12)


def gradients(results, upstream, pairs, side):
    """The leaves, ours or torch's own, once gradients have come to them."""
    torch.autograd.backward(results, upstream, retain_graph=True)
    return [pair[side] for pair in pairs]


def test_replicated_by_any_index(distributed_mesh):
    x, y = whole(), ShardTensor.scatter(whole(), distributed_mesh)
    value = whole(1)[:2]
    x[torch.tensor([3, 1])] = value
    y[torch.tensor([3, 1])] = ShardTensor.scatter(value, distributed_mesh, {"domain": 0})
    assert torch.equal(y.full(), x)


def test_of_ordinary_tensors(distributed_mesh):
    plain, shard = whole(), ShardTensor.scatter(whole(1), distributed_mesh)
    assert type(plain.mul_(0.9).add_(shard)) is torch.Tensor
    assert torch.equal(plain, whole() * 0.9 + whole(1))
    cut = ShardTensor.scatter(whole(1), distributed_mesh, {"domain": 0})
    with pytest.raises(NotImplementedError, match=r"add_ .* can't change ordinary tensors"):
        plain.add_(cut)


VIEWS = {
    "view": lambda x: x.view(5, 2, 2),
    "transpose": lambda x: x.t(),
    "property": lambda x: x.T,
    "detach": torch.Tensor.detach,
    "data": lambda x: x.data,
    "reshape": lambda x: x.reshape(5, 4, 1),
    "expand": lambda x: x.expand(2, 5, 4),
    "unbind": lambda x: x.unbind(1)[0],
    "iterate": lambda x: next(iter(x)),
}


@pytest.mark.parametrize("cut", [{"domain": 0}, {}], ids=str)
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_refused(distributed_mesh, name, cut):
    x = ShardTensor.scatter(whole(), distributed_mesh, cut)
    view = VIEWS[name](x)
    for tensor in (x, view):
        value = tensor.full().clone()
        for change in (lambda t: t.add_(1), torch.Tensor.relu_, lambda t: set_item(0)(t, 1.0)):
            with pytest.raises(NotImplementedError, match="has had a view"):
                change(tensor)
        assert torch.equal(tensor.full(), value)
    del view
    with pytest.raises(NotImplementedError, match="has had a view"):
        x.add_(1)
    x.clone().add_(1)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.squeeze_(),
        lambda x: x.t_(),
        lambda x: x.resize_(3),
        lambda x: x.exponential_(),
        lambda x: torch.add(x, 1, out=x.clone()),
    ],
)
def test_refused(distributed_mesh, change):
    x = ShardTensor.scatter(whole(), distributed_mesh, {"domain": 0})
    with pytest.raises(NotImplementedError):
        change(x)
    assert torch.equal(x.full(), whole())


def test_mistakes_raise_what_torch_raises(distributed_mesh):
    leaf = ShardTensor.scatter(whole(), distributed_mesh, {"domain": 0}).requires_grad_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        leaf.add_(1)
    row = ShardTensor.scatter(whole(shape=(1, 4)), distributed_mesh, {"domain": 1})
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        row += whole()
    integers = ShardTensor.scatter(torch.arange(5), distributed_mesh, {"domain": 0})
    with pytest.raises(RuntimeError, match="can't be cast"):
        integers += 0.5
    with pytest.raises(RuntimeError, match="expand"):
        row[0] = torch.ones(3)
    with pytest.raises(IndexError, match="out of bounds"):
        row[1] = 0.0


def test_dtype_stays(distributed_mesh):
    x = ShardTensor.scatter(whole().float(), distributed_mesh, {"domain": 0})
    x += whole(1)
    assert x.dtype == torch.float32
    assert torch.equal(x.full(), (whole().float() + whole(1)).float())
    x[1:3] = 0
    assert not x.full()[1:3].any()


def test_leaf_without_a_graph(distributed_mesh):
    leaf = ShardTensor.scatter(whole(), distributed_mesh, {"domain": 0}).requires_grad_()
    version = leaf._version
    with torch.no_grad():
        leaf.add_(1.0)
    assert leaf._version > version
    assert leaf.requires_grad
    assert leaf.is_leaf
    assert torch.equal(leaf.full(), whole() + 1.0)


def test_what_a_function_of_the_user_saved(distributed_mesh):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    leaf = whole().requires_grad_()
    x = ShardTensor.scatter(leaf, distributed_mesh, {"domain": 0})
    result = Square.apply(x)
    x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.full().sum().backward()


def test_memory_of_others_is_never_written_to(distributed_mesh):
    full = whole()
    x = ShardTensor.scatter(full, distributed_mesh)
    x.add_(1.0)
    assert torch.equal(full, whole())
    y = ShardTensor.scatter(full, distributed_mesh, {"domain": 0})
    full.zero_()
    assert torch.equal(y.full(), whole())
    whole_again = x.full()
    whole_again.zero_()
    assert torch.equal(x.full(), whole() + 1.0)
    copy = ShardTensor.scatter(whole(), distributed_mesh, {"domain": 1})
    copy.copy_(x)
    copy.add_(1.0)
    assert torch.equal(x.full(), whole() + 1.0)


def test_one_rank_sees_what_all_see(distributed_mesh):
    """Whether something is refused does not depend on a piece, such as an empty one."""
    x = scattered(whole(), distributed_mesh, {"domain": 0})
    x.redistribute(Layout.of(distributed_mesh, SHAPE, {"domain": 1}))
    x.add_(1.0)
    assert torch.equal(x.full(), whole() + 1.0)


@pytest.mark.parametrize("name", ["set-row", "set-block", "set-element", "+=", "copy_"])
def test_along_two_axes(distributed_mesh_2d, name):
    change, shape = BINARY[name]
    leaves = [whole().requires_grad_(), whole(1, shape).requires_grad_()]
    twins = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    x = twins[0] * 1.0
    y = ShardTensor.scatter(leaves[0], distributed_mesh_2d, {"axis1": 1, "axis2": 0})
    before = y * y
    change(x, twins[1])
    change(y, leaves[1])
    check(y, x, list(zip(leaves, twins, strict=True)), before, twins[0] * twins[0])
