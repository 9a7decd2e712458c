"""`x[...]` by tensors, lists and masks; and what torch raises, on every rank alike."""

import operator

import pytest
import torch
import torch.distributed as dist

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static

SHAPE = (5, 4, 3)
CUTS = [{"domain": 0}, {"domain": 1}, {"domain": 2}, {}]


def whole(seed=0, shape=SHAPE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def scattered(full, mesh, cut):
    """Uneven pieces, of which the first is empty if there are three."""
    sizes = None
    if cut and mesh.size() > 1:
        total = full.shape[cut["domain"]]
        sizes = [[0] * (mesh.size() - 2) + [total - 1, 1]]
    return ShardTensor.scatter(full, mesh, cut, sizes)


ALL = slice(None)
MASK = torch.tensor([True, False, True, True, False])
MASK_2D = torch.arange(20).reshape(5, 4) % 3 == 0
INDICES = {
    "list": ([3, 0, -1],),
    "list of one": ([2],),
    "no elements": ([],),
    "array": (torch.tensor([3, 0, 3]).numpy(),),
    "integers": (torch.tensor([3, 0, -1, 3]),),
    "int32": (torch.tensor([3, 0], dtype=torch.int32),),
    "number": (torch.tensor(3),),
    "number and tensor": (torch.tensor(3), torch.tensor([1, 0])),
    "second": (ALL, torch.tensor([3, 0, 3])),
    "last": (..., torch.tensor([2, 0, 0])),
    "table": (ALL, torch.tensor([[3, 0, 3], [1, 1, 2]])),
    "pair": (torch.tensor([3, 0, 4]), torch.tensor([1, 1, -1])),
    "pair that broadcasts": (torch.tensor([[3], [0]]), torch.tensor([1, 1, 3])),
    "pair behind": (ALL, torch.tensor([3, 0, 3]), torch.tensor([1, 1, -1])),
    "pair apart": (torch.tensor([3, 0, 4]), ALL, torch.tensor([1, 1, -1])),
    "triple": ([3, 0], [1, 2], [0, -1]),
    "mask": (MASK,),
    "mask as a list": (MASK.tolist(),),
    "mask of two": (MASK_2D,),
    "mask and tensor": (MASK, torch.tensor([1, 0, 3])),
    "mask of all": (whole() > 0,),
    "true": (True,),
    "false": (False,),
}
MIXED = {
    "slice before": (slice(1, 4), torch.tensor([3, 0, 3])),
    "slice behind": (torch.tensor([3, 0, 3]), slice(0, 3, 2)),
    "integer before": (2, torch.tensor([3, 0, 3])),
    "integer between": (torch.tensor([3, 0]), 2, torch.tensor([1, 1])),
    "new dim": (None, torch.tensor([3, 0]), ALL, None, [0, 2]),
    "new dim between": (torch.tensor([3, 0]), None, [0, 2]),
    "dots": (torch.tensor([3, 0]), ..., torch.tensor([1, 1])),
}


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", [*INDICES, *MIXED])
def test_as_torch_has_it(distributed_mesh, name, cut):
    index = {**INDICES, **MIXED}[name]
    index = index if len(index) > 1 else index[0]
    leaf, twin = whole().requires_grad_(), whole().requires_grad_()
    expected, found = twin[index], scattered(leaf, distributed_mesh, cut)[index]
    check(found, expected, leaf, twin)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", ["table", "pair that broadcasts", "pair apart", "integers"])
def test_a_cut_index(distributed_mesh, name, cut):
    index = INDICES[name]
    sharded = tuple(
        scattered(each, distributed_mesh, {"domain": each.ndim - 1})
        if isinstance(each, torch.Tensor)
        else each
        for each in index
    )
    leaf, twin = whole().requires_grad_(), whole().requires_grad_()
    found = scattered(leaf, distributed_mesh, cut)[sharded]
    check(found, twin[index], leaf, twin)


def check(found, expected, leaf, twin):
    assert found.shape == expected.shape
    assert torch.equal(found.full(), expected)
    upstream = whole(1, expected.shape)
    found.full().backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(leaf.grad, twin.grad, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("value", ["number", "tensor", "cut"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize(
    "name", ["list", "integers once", "pair", "pair behind", "pair apart", "mask", "mask of two"]
)
def test_set(distributed_mesh, name, cut, value):
    index = {**INDICES, "integers once": (torch.tensor([3, 0, -1]),)}[name]
    index = index if len(index) > 1 else index[0]
    leaves = [whole().requires_grad_() for _ in range(2)]
    values = [whole(1, whole()[index].shape[-1:]).requires_grad_() for _ in range(2)]
    x, y = leaves[0] * 1, scattered(leaves[1], distributed_mesh, cut) * 1
    layout, given = y.sharding, values[1]
    if value == "cut":
        given = ShardTensor.scatter(given, distributed_mesh, {"domain": 0})
    x[index] = 2.5 if value == "number" else values[0]
    y[index] = 2.5 if value == "number" else given
    assert y.sharding == layout
    upstream = whole(2)
    x.backward(upstream)
    y.full().backward(upstream)
    assert torch.equal(y.full(), x)
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
    if value != "number":
        torch.testing.assert_close(values[1].grad, values[0].grad)


def test_the_cut_is_that_of_the_index(distributed_mesh):
    x = scattered(whole(), distributed_mesh, {"domain": 0})
    edges = scattered(torch.randint(0, 5, (9,)), distributed_mesh, {"domain": 0})
    (cut,) = x[edges].sharding.cuts
    assert cut == edges.sharding.cuts[0]
    (cut,) = x[torch.arange(4, -1, -1)].sharding.cuts
    assert cut == x.sharding.cuts[0]  # as many as there are rows
    (cut,) = x[torch.tensor([0, 1, 2, 3, 4, 0])].sharding.cuts
    assert cut.dim == 0
    assert max(cut.sizes) == -(-6 // distributed_mesh.size())
    zeros = torch.zeros(5, 4, 3, dtype=torch.float64)
    (cut,) = zeros.new_zeros(5, 2).index_add(0, edges, torch.ones(9, 2).double()).sharding.cuts
    assert cut.dim == 0


MISTAKES = {
    "index_select": lambda x, i: torch.index_select(x, 0, i),
    "gather": lambda x, i: torch.gather(x, 0, i.reshape(-1, 1, 1)),
    "take_along_no_dim": lambda x, i: torch.take_along_dim(x, i * 12),
    "take": lambda x, i: torch.take(x, i * 12),
    "getitem": lambda x, i: x[i],
    "getitem-second": lambda x, i: x[:, i],
    "index_add": lambda x, i: torch.index_add(x, 0, i, x[: len(i)]),
    "index_copy": lambda x, i: torch.index_copy(x, 0, i, x[: len(i)]),
    "index_fill": lambda x, i: torch.index_fill(x, 0, i, 1.0),
    "scatter": lambda x, i: torch.scatter(x, 0, i.reshape(-1, 1, 1), 1.0),
    "scatter_add": lambda x, i: torch.scatter_add(x, 0, i.reshape(-1, 1, 1), x),
    "scatter_reduce": lambda x, i: torch.scatter_reduce(x, 0, i.reshape(-1, 1, 1), x, "amax"),
    "index_put": lambda x, i: torch.index_put(x, (i,), x[0]),
    "put": lambda x, i: x.put(i * 12, i.double()),
}


@pytest.mark.parametrize("wrong", [5, -6])
@pytest.mark.parametrize("index", ["plain", "cut"])
@pytest.mark.parametrize("name", MISTAKES)
def test_an_index_out_of_range(distributed_mesh, name, index, wrong):
    call, values = MISTAKES[name], torch.tensor([0, 1, wrong])
    expected = error_of(call, whole(), values)
    assert expected is not None
    x = scattered(whole(), distributed_mesh, {"domain": 0})
    if index == "cut":
        values = scattered(values, distributed_mesh, {"domain": 0})
    found = [None] * distributed_mesh.size()
    dist.all_gather_object(found, error_of(call, x, values))
    assert found == [expected] * distributed_mesh.size(), (found, expected)


WRONG = {
    "select floats": lambda x, i: torch.index_select(x, 0, i.double()),
    "select a table": lambda x, i: torch.index_select(x, 0, i.reshape(1, -1)),
    "select no dim": lambda x, i: torch.index_select(x, 3, i),
    "gather other dims": lambda x, i: torch.gather(x, 0, i),
    "gather int32": lambda x, i: torch.gather(x, 0, i.reshape(-1, 1, 1).double()),
    "gather too large": lambda x, i: torch.gather(x, 1, i.repeat(2).reshape(-1, 1, 1)),
    "take floats": lambda x, i: torch.take(x, i.double()),
    "getitem floats": lambda x, i: x[i.double()],
    "getitem too many": lambda x, i: x[i, i, i, i],
    "getitem that don't fit": lambda x, i: x[i, i[:2].repeat(1)],
    "getitem wrong mask": lambda x, i: x[torch.tensor([True, False])],
    "add other dtype": lambda x, i: torch.index_add(x, 0, i, x[: len(i)].float()),
    "add too few": lambda x, i: torch.index_add(x, 0, i, x),
    "add other shape": lambda x, i: torch.index_add(x, 0, i, x[: len(i), :1]),
    "copy too few": lambda x, i: torch.index_copy(x, 0, i, x),
    "copy other dtype": lambda x, i: torch.index_copy(x, 0, i, x[: len(i)].float()),
    "scatter other dtype": lambda x, i: torch.scatter(x, 0, i.reshape(-1, 1, 1), x.float()),
    "reduce by nothing": lambda x, i: torch.scatter_reduce(x, 0, i.reshape(-1, 1, 1), x, "none"),
    "put other shape": lambda x, i: torch.index_put(x, (i,), x),
    "put other dtype": lambda x, i: torch.index_put(x, (i,), x[0].float()),
    "fill a vector": lambda x, i: torch.index_fill(x, 0, i, x[0, 0]),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_mistakes(distributed_mesh, name):
    call, index = WRONG[name], torch.tensor([0, 1, 2])
    expected = error_of(call, whole(), index)
    assert expected is not None
    found = [None] * distributed_mesh.size()
    sizes = [[5] + [0] * (distributed_mesh.size() - 1)]
    x = ShardTensor.scatter(whole(), distributed_mesh, {"domain": 0}, sizes)
    dist.all_gather_object(found, error_of(call, x, index))
    assert [each and each[0] for each in found] == [expected[0]] * distributed_mesh.size()


def error_of(call, *args):
    """The kind and text of what is raised."""
    try:
        call(*args)
    except (IndexError, RuntimeError, NotImplementedError, TypeError) as error:
        return type(error).__name__, str(error).partition("\n")[0]
    return None


REFUSED = {
    "a cut mask": lambda x: x[x > 0],
    "nonzero": torch.nonzero,
    "argwhere": torch.argwhere,
    "unique": torch.unique,
    "unique_consecutive": torch.unique_consecutive,
    "masked_select": lambda x: torch.masked_select(x, torch.ones(SHAPE) > 0),
    "masked_scatter": lambda x: x.masked_scatter(torch.ones(SHAPE) > 0, torch.ones(60).double()),
    "set beside a slice": lambda x: operator.setitem(x, (slice(1, 3), [0, 1]), 0.0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(distributed_mesh, name):
    x = scattered(whole(), distributed_mesh, {"domain": 0})
    with pytest.raises(NotImplementedError, match="cut dim 0 along domain"):
        REFUSED[name](x)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_second_derivatives(distributed_mesh, cut):
    rows, edges = torch.tensor([3, 0, 3, 4]), torch.tensor([[0, 3, 1, 1], [2, 2, 0, 1]])

    def penalty(x, rows, edges):
        taken = x.sin().index_select(0, rows)
        added = x.cos().index_add(0, rows, taken * taken)
        index = edges.reshape(2, 4, 1).expand(2, 4, 3)
        put = added.scatter_reduce(0, index, added.gather(0, index).exp(), "mean")
        (grad,) = torch.autograd.grad((put**3).sum(), x, create_graph=True)
        return (grad**2).sum()

    x, leaf = whole().requires_grad_(), whole().requires_grad_()
    y = scattered(leaf, distributed_mesh, cut)
    penalty(x, rows, edges).backward()
    sharded = [ShardTensor.scatter(each, distributed_mesh, {"domain": 0}) for each in (rows, edges)]
    penalty(y, *sharded).backward()
    torch.testing.assert_close(leaf.grad, x.grad, rtol=1e-11, atol=1e-11)


IN_PLACE = {
    "index_add_": lambda x, i, y: x.index_add_(0, i, y),
    "index_copy_": lambda x, i, y: x.index_copy_(0, i, y),
    "index_fill_": lambda x, i, y: x.index_fill_(0, i, 0.5),
    "scatter_": lambda x, i, y: x.scatter_(0, i.reshape(-1, 1, 1), y),
    "scatter_add_": lambda x, i, y: x.scatter_add_(0, i.reshape(-1, 1, 1), y),
    "scatter_reduce_": lambda x, i, y: x.scatter_reduce_(0, i.reshape(-1, 1, 1), y, "amin"),
    "index_put_": lambda x, i, y: x.index_put_((i,), y),
    "put_": lambda x, i, y: x.put_(i, y[:, 0, 0]),
}


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(distributed_mesh, name, cut):
    change, index = IN_PLACE[name], torch.tensor([3, 0, 1])
    x, y = whole(), scattered(whole(), distributed_mesh, cut)
    layout = y.sharding
    change(x, index, whole(1)[:3])
    changed = change(
        y,
        ShardTensor.scatter(index, distributed_mesh, {"domain": 0}),
        ShardTensor.scatter(whole(1)[:3], distributed_mesh, {"domain": 0}),
    )
    assert changed is y
    assert y.sharding == layout
    assert torch.equal(y.full(), x)


def test_along_a_dim_indices_go_round(distributed_mesh):
    index = torch.tensor([7, -1, -6, 4]).reshape(4, 1, 1)
    x = scattered(whole(), distributed_mesh, {"domain": 0})
    found = torch.take_along_dim(x, scattered(index, distributed_mesh, {"domain": 0}), 0)
    assert torch.equal(found.full(), torch.take_along_dim(whole(), index, 0))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.complex128, torch.bfloat16])
def test_dtypes(distributed_mesh, dtype):
    full, index = (whole() * 3).to(dtype), torch.tensor([3, 0, 3, 4])
    x = scattered(full, distributed_mesh, {"domain": 0})
    i = scattered(index, distributed_mesh, {"domain": 0})
    added = torch.ones(4, 4, 3, dtype=dtype)
    assert torch.equal(x[i].full(), full[index])
    assert torch.equal(x.index_add(0, i, added).full(), full.index_add(0, index, added))


@pytest.mark.filterwarnings("ignore:index_reduce")  # torch calls it beta
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_index_reduce(distributed_mesh, reduce, include_self, cut):
    index = torch.tensor([3, 0, 3, 4])
    leaves, twins = ([whole().round(), whole(1)[:4].round()] for _ in range(2))
    for each in (*leaves, *twins):
        each.requires_grad_()
    x = scattered(leaves[0], distributed_mesh, cut)
    i, y = (scattered(each, distributed_mesh, {"domain": 0}) for each in (index, leaves[1]))
    found = x.index_reduce(0, i, y, reduce, include_self=include_self)
    expected = twins[0].index_reduce(0, index, twins[1], reduce, include_self=include_self)
    torch.testing.assert_close(found.full(), expected, rtol=1e-13, atol=1e-13)
    found.full().backward(whole(2))
    expected.backward(whole(2))
    for one, other in zip(leaves, twins, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_not_numbers(distributed_mesh):
    full = torch.tensor([1.0, float("nan"), float("inf"), -0.0, 2.0])
    index = torch.tensor([1, 0, 3, 2, 2, 4])
    x, i = (ShardTensor.scatter(each, distributed_mesh, {"domain": 0}) for each in (full, index))
    values = torch.tensor([1.0, 2.0, float("nan"), -float("inf"), 3.0, -0.0])
    for reduce in ("sum", "prod", "amax", "amin", "mean"):
        found = x.scatter_reduce(0, i, values, reduce).full()
        expected = full.scatter_reduce(0, index, values, reduce)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
    assert torch.equal(x[i].full().signbit(), full[index].signbit())
