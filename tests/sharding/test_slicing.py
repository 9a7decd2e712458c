"""Slicing, joining and moving, beside values and gradients: layouts, mistakes, dtypes and views."""

import numpy as np
import pytest
import torch

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static

TWICE = {
    "slice": lambda x: x[1:4:2, None],
    "select": lambda x: x[-2],
    "unfold": lambda x: x.unfold(0, 3, 1),
    "diagonal": lambda x: x.diagonal(1),
    "split": lambda x: torch.stack([each.sum() for each in x.split(2)]),
    "iterate": lambda x: torch.stack([each * 2 for each in x]),
    "cat": lambda x: torch.cat([x, x * x, x[:1]]),
    "cat-vectors": lambda x: torch.cat([x[:, 0], x[0], x[:, 1] * x[:, 2]]),
    "stack": lambda x: torch.stack([x, x * x], -1),
    "flip-vector": lambda x: (x[:, 0] * x[:, 1]).flip(0),
    "flip": lambda x: x.flip(0, 1),
    "roll": lambda x: x.roll(2),
    "tril": torch.tril,
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "diag_embed": lambda x: torch.diag_embed(x.T, 1),
    "kron": lambda x: torch.kron(x, x),
    "trace": torch.trace,
}


def whole(*shape, dtype=torch.float64):
    count = torch.Size(shape).numel()
    return torch.linspace(-2, 3, count, dtype=torch.float64).reshape(shape).to(dtype)


def cut(tensor, mesh, dim=0):
    """The first rank has nothing, the last one most."""
    total, ranks = tensor.shape[dim], mesh.size()
    ones = min(max(ranks - 2, 0), total)
    sizes = [0, *[1] * ones, *[0] * (ranks - 2 - ones), total - ones] if ranks > 1 else [total]
    return ShardTensor.scatter(tensor, mesh, {"domain": dim}, [sizes])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives(distributed_mesh, name, dim):
    leaf, twin = whole(5, 4).requires_grad_(), whole(5, 4).requires_grad_()
    found, expected = (
        second(TWICE[name], x, leaf)
        for x, leaf in ((cut(leaf, distributed_mesh, dim), leaf), (twin, twin))
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def second(function, x, leaf):
    result = function(x)
    result = result.full() if isinstance(result, ShardTensor) else result
    (gradient,) = torch.autograd.grad((result**3).sum(), leaf, create_graph=True)
    return torch.autograd.grad((gradient**2).sum(), leaf)[0]


def test_a_slice_stays_where_it_is(distributed_mesh):
    x = ShardTensor.scatter(whole(6, 4), distributed_mesh, {"domain": 0})
    part = x[1:]
    first, *others = x.sharding.cuts[0].sizes
    assert part.sharding.cuts[0].sizes == (first - 1, *others)
    assert x[:, 1].sharding == x.sharding
    assert x[0].sharding.is_replicated
    assert part.local.untyped_storage().data_ptr() == x.local.untyped_storage().data_ptr()


def test_joined_along_the_cut_stays_balanced(distributed_mesh):
    x = ShardTensor.scatter(whole(6, 4), distributed_mesh, {"domain": 0})
    sizes = x.sharding.cuts[0].sizes
    twice = torch.cat([x, x])
    assert twice.sharding.cuts[0].sizes == tuple(2 * size for size in sizes)
    padded = torch.cat([x[-1:], x, x[:1]])
    assert torch.equal(padded.full(), torch.cat([whole(6, 4)[-1:], whole(6, 4), whole(6, 4)[:1]]))
    assert torch.cat([x, x], 1).sharding == x.sharding


INDICES = {
    "numpy integer": np.int64(2),
    "numpy bounds": slice(np.int64(1), np.int64(4)),
    "tensor bounds": slice(torch.tensor(1), None),
    "two ellipses": (..., 1, ...),
    "none of it": (),
    "new dimensions": (None, 1, None, ..., None),
}


@pytest.mark.parametrize("name", INDICES)
def test_indices(distributed_mesh, name):
    x = cut(whole(5, 4), distributed_mesh)
    assert torch.equal(x[INDICES[name]].full(), whole(5, 4)[INDICES[name]])


MISTAKES = {
    "index": lambda x: x[5],
    "too many": lambda x: x[0, 0, 0],
    "step": lambda x: x[::-1],
    "select": lambda x: x.select(0, -6),
    "select dim": lambda x: x.select(2, 0),
    "narrow": lambda x: x.narrow(0, 3, 3),
    "narrow by floats": lambda x: torch.narrow(x, 0, torch.tensor(1.0), 1),
    "split sizes": lambda x: x.split([2, 2]),
    "chunks": lambda x: x.chunk(0),
    "tensor_split dim": lambda x: x.tensor_split(2, 3),
    "dsplit": lambda x: torch.dsplit(x, 2),
    "unfold step": lambda x: x.unfold(0, 2, 0),
    "unfold size": lambda x: x.unfold(1, 5, 1),
    "diagonal": lambda x: x.diagonal(0, 1, 1),
    "cat dim": lambda x: torch.cat([x, x], 2),
    "cat nothing": lambda x: torch.cat([x, torch.ones(5)]),
    "stack": lambda x: torch.stack([x, x[1:]]),
    "meshgrid": lambda x: torch.meshgrid(x, x, indexing="ij"),
    "flip": lambda x: x.flip(0, 0),
    "fliplr": lambda x: torch.fliplr(x[:, 0]),
    "roll": lambda x: x.roll((1, 2), 0),
    "rot90": lambda x: x.rot90(1, (0, 0)),
    "tril": lambda x: x[:, 0].tril(),
    "repeat_interleave": lambda x: x.repeat_interleave(-1, 0),
    "repeat_interleave dim": lambda x: x.repeat_interleave(2, 2),
    "repeats": lambda x: x.repeat_interleave(torch.tensor([1, 2]), 0),
    "output size": lambda x: x.repeat_interleave(torch.ones(5).long(), 0, output_size=6),
    "trace": lambda x: torch.trace(x[0]),
    "diag": lambda x: torch.diag(x[None]),
    "diag_embed": lambda x: torch.diag_embed(x, 0, 1, 1),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_raise_what_torch_raises(distributed_mesh, name):
    with pytest.raises(Exception, match=r".") as expected:
        MISTAKES[name](whole(5, 4))
    with pytest.raises(type(expected.value)) as found:
        MISTAKES[name](cut(whole(5, 4), distributed_mesh))
    assert not isinstance(found.value, NotImplementedError)


@pytest.mark.parametrize(
    "index",
    [torch.tensor([1]), [0, 1], True, (slice(None), np.array([0])), torch.ones(5, 4).bool()],
    ids=str,
)
def test_elements_by_tensors_are_right_or_refused(distributed_mesh, index):
    x = cut(whole(5, 4), distributed_mesh)
    try:
        found = x[index]
    except NotImplementedError:
        return
    assert torch.equal(found.full(), whole(5, 4)[index])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.complex64, torch.bfloat16])
def test_dtypes(distributed_mesh, dtype):
    full = whole(5, 4, dtype=torch.float64).round().to(dtype)
    x = cut(full, distributed_mesh)
    for function in (
        lambda x: x[2],
        lambda x: x[1:, ::2],
        lambda x: x.diagonal(),
        lambda x: torch.cat([x, x[:2]]),
        lambda x: torch.flip(x, (0,)),
        lambda x: x.roll(3, 0),
        lambda x: x.triu(),
        lambda x: torch.diag_embed(x.T),
        lambda x: x.repeat_interleave(2),
    ):
        found, expected = function(x), function(full)
        assert found.dtype == expected.dtype
        assert torch.equal(found.full(), expected)


def test_promotion(distributed_mesh):
    integers = cut(torch.arange(5, dtype=torch.int32), distributed_mesh)
    halves, truth = torch.ones(3).half(), torch.ones(2).bool()
    for join in (torch.cat, torch.hstack):
        found = join([integers, halves, truth])
        expected = join([torch.arange(5, dtype=torch.int32), halves, truth])
        assert found.dtype == expected.dtype
        assert torch.equal(found.full(), expected)


def test_not_a_number_and_infinity_stay(distributed_mesh):
    full = torch.tensor([[float("nan"), 1.0], [float("inf"), 2.0], [3.0, float("nan")]])
    x = cut(full, distributed_mesh)
    for function in (torch.tril, torch.flipud, lambda x: torch.diag_embed(x.T), lambda x: x[0]):
        torch.testing.assert_close(function(x).full(), function(full), equal_nan=True)


def test_gradients_of_some_operands_alone(distributed_mesh):
    leaf = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    x = cut(whole(5, 4), distributed_mesh)
    torch.cat([x, leaf, x]).full().square().sum().backward()
    assert torch.equal(leaf.grad, torch.full_like(leaf, 2.0))
    nothing = torch.ones(0, dtype=torch.float64, requires_grad=True)
    torch.cat([x, nothing]).full().sum().backward()
    assert nothing.grad.shape == (0,)
    with torch.no_grad():
        assert not torch.cat([leaf, x]).requires_grad


@pytest.mark.parametrize("name", ["slice", "select", "split", "unfold", "diagonal"])
def test_views_are_not_changed_in_place(distributed_mesh, name):
    view = {
        "slice": lambda x: x[1:],
        "select": lambda x: x[1],
        "split": lambda x: x.split(2)[0],
        "unfold": lambda x: x.unfold(0, 2, 1),
        "diagonal": torch.diagonal,
    }[name]
    x = cut(whole(5, 4), distributed_mesh)
    with pytest.raises(NotImplementedError, match="has had a view"):
        view(x).add_(1.0)


def test_what_joins_or_moves_is_no_view(distributed_mesh):
    x = cut(whole(5, 4), distributed_mesh)
    y = cut(whole(5), distributed_mesh)
    copies = [
        *(torch.stack([x, x]), torch.column_stack([y, y]), x.roll(0, 0), x.flip(()), x.diag()),
        *(torch.kron(x, x), x.roll(5), torch.narrow_copy(x, 0, 0, 5)),
    ]
    values = [each.full() for each in copies]
    x.zero_()
    y.zero_()
    for each, value in zip(copies, values, strict=True):
        assert torch.equal(each.full(), value)
        each.add_(1.0)
