"""Losses of any shapes, options and cuts are those of one rank, with all inputs' gradients."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_prep.checks import Case, check_case
from neural_prep.checks.cases import Input
from neural_prep.sharding import ShardTensor

alike = settings(max_examples=200, derandomize=True, deadline=None)
a_few = settings(alike, max_examples=50)  # 4 ranks take their time
ranks_2_and_3 = pytest.mark.multigpu_static(ranks=[2, 3])
ranks_4 = pytest.mark.multigpu_static(ranks=[4])

NORMAL, POSITIVE = "normal", {"mean": 2.0, "std": 0.2}
SHARE = {"mean": 0.5, "std": 0.04}
REDUCTIONS = ("none", "mean", "sum")

# The values of each input, and options to choose from.
POINTWISE: dict[str, tuple[list[Any], dict[str, list[Any]]]] = {
    "mse_loss": ([NORMAL, NORMAL], {}),
    "l1_loss": ([NORMAL, NORMAL], {}),
    "smooth_l1_loss": ([NORMAL, NORMAL], {"beta": [0.0, 0.5, 1.0]}),
    "huber_loss": ([NORMAL, NORMAL], {"delta": [0.5, 1.0]}),
    "soft_margin_loss": ([NORMAL, "signs"], {}),
    "binary_cross_entropy": ([SHARE, SHARE], {}),
    "binary_cross_entropy_with_logits": ([NORMAL, SHARE], {}),
    "kl_div": ([NORMAL, POSITIVE], {"log_target": [False, True]}),
    "poisson_nll_loss": ([POSITIVE, POSITIVE], {"log_input": [False, True]}),
    "gaussian_nll_loss": ([NORMAL, NORMAL, POSITIVE], {"full": [False, True]}),
    "hinge_embedding_loss": ([NORMAL, "signs"], {"margin": [0.5, 1.0]}),
    "margin_ranking_loss": ([NORMAL, NORMAL, "signs"], {"margin": [0.0, 0.5]}),
}
WEIGHTED = ("mse_loss", "l1_loss", "huber_loss", "binary_cross_entropy_with_logits")


@st.composite
def pointwise(draw: st.DrawFn, mesh, serial_twin) -> Case:
    name = draw(st.sampled_from(list(POINTWISE)))
    values, choices = POINTWISE[name]
    shape = draw(st.lists(st.integers(0, 5), min_size=mesh.ndim, max_size=3))
    inputs = [tensor(draw, mesh, serial_twin, shape, each) for each in values]
    if name in WEIGHTED and draw(st.booleans()):
        grad = name in ("mse_loss", "l1_loss", "huber_loss")
        inputs.append(tensor(draw, mesh, serial_twin, shape, POSITIVE, name="weight", grad=grad))
    options = {key: draw(st.sampled_from(each)) for key, each in choices.items()}
    reductions = ["none", "batchmean", "sum"] if name == "kl_div" else REDUCTIONS
    if name == "kl_div" and shape[0] == 0:
        reductions = ["none", "sum"]
    options["reduction"] = draw(st.sampled_from(reductions))
    return case(mesh, name, options, inputs)


@st.composite
def of_classes(draw: st.DrawFn, mesh, serial_twin) -> Case:
    classes = draw(st.integers(1, 5))
    batch = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    shape = [batch[0], classes, *batch[1:]]
    if mesh.ndim == 1 and draw(st.integers(0, 9)) == 0:
        shape, batch = [classes], []
    name = draw(st.sampled_from(["cross_entropy", "cross_entropy", "nll_loss"]))
    options: dict[str, Any] = {"reduction": draw(st.sampled_from(REDUCTIONS))}
    likely = name == "cross_entropy" and draw(st.booleans())
    if name == "cross_entropy":
        options["label_smoothing"] = draw(st.sampled_from([0.0, 0.0, 0.2]))
    if not likely:
        options["ignore_index"] = draw(st.sampled_from([-100, 0, 1]))
    inputs = [
        tensor(draw, mesh, serial_twin, shape, NORMAL),
        tensor(draw, mesh, serial_twin, shape, NORMAL)
        if likely
        else tensor(draw, mesh, serial_twin, batch, {"integers": [0, classes]}),
    ]
    if draw(st.booleans()):
        weight = tensor(draw, mesh, serial_twin, [classes], POSITIVE, name="weight", grad=likely)
        inputs.append(weight)
    return case(mesh, name, options, inputs)


@st.composite
def of_rows(draw: st.DrawFn, mesh, serial_twin) -> Case:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    reduction = draw(st.sampled_from(REDUCTIONS))
    name = draw(st.sampled_from(["triplet", "cosine", "margins", "labels", "soft"]))

    def given(shape, values, **options):
        return tensor(draw, mesh, serial_twin, shape, values, **options)

    both = [rows, columns]
    kwargs: dict[str, Any] = {"reduction": reduction}
    if name == "triplet":
        kwargs |= {"swap": draw(st.booleans()), "p": draw(st.sampled_from([1.0, 2.0, 3.0]))}
        return case(mesh, "triplet_margin_loss", kwargs, [given(both, NORMAL) for _ in range(3)])
    if name == "cosine":
        kwargs |= {"margin": draw(st.sampled_from([0.0, 0.3]))}
        inputs = [given(both, NORMAL), given(both, NORMAL), given([rows], "signs")]
        # The slope of a cosine near 1 is what cancels.
        return case(mesh, "cosine_embedding_loss", kwargs, inputs, tolerance=1e-9)
    if name == "margins":
        kwargs |= {"p": draw(st.sampled_from([1, 2])), "margin": draw(st.sampled_from([0.5, 1.0]))}
        inputs = [given(both, NORMAL), given([rows], {"integers": [0, columns]})]
        return case(mesh, "multi_margin_loss", kwargs, inputs)
    if name == "labels":
        inputs = [given(both, NORMAL), given(both, {"integers": [-1, columns]})]
        return case(mesh, "multilabel_margin_loss", kwargs, inputs)
    inputs = [given(both, NORMAL), given(both, SHARE), given([columns], POSITIVE, name="weight")]
    return case(mesh, "multilabel_soft_margin_loss", kwargs, inputs)


def tensor(draw, mesh, serial_twin, shape, values, *, name=None, grad=True) -> Input:
    """An input, cut along all axes, whole on all ranks, or ordinary."""
    kind = draw(st.sampled_from(["cut", "cut", "cut", "whole", "plain"]))
    options: dict[str, Any] = {}
    if kind == "cut" and len(shape) >= mesh.ndim:
        cut, sizes = draw(serial_twin.cuts(shape, mesh))
        options = {"cut": cut, "sizes": {mesh.size(): tuple(sizes)}}
    if values == "signs":
        numbers = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1))
        values = {"tensor": (numbers * 2.0 - 1).tolist()} if numbers.numel() else NORMAL
        grad = False
    return Input(
        shape=tuple(shape), values=values, name=name, grad=grad, plain=kind == "plain", **options
    )


def case(mesh, name, options, inputs, *, tolerance=1e-12) -> Case:
    axes = {axis: mesh.size(number) for number, axis in enumerate(mesh.mesh_dim_names)}
    return Case(
        name=f"{name} {options} {inputs}",
        function=f"torch.nn.functional.{name}",
        kwargs=options,
        mesh=axes,
        ranks=(mesh.size(),),
        inputs=tuple(inputs),
        rtol=tolerance,
        atol=tolerance,
    )


@ranks_2_and_3
@alike
@given(data=st.data())
def test_pointwise(world, distributed_mesh, serial_twin, data):
    check_case(data.draw(pointwise(distributed_mesh, serial_twin)), world)


@ranks_2_and_3
@alike
@given(data=st.data())
def test_of_classes(world, distributed_mesh, serial_twin, data):
    check_case(data.draw(of_classes(distributed_mesh, serial_twin)), world)


@ranks_2_and_3
@alike
@given(data=st.data())
def test_of_rows(world, distributed_mesh, serial_twin, data):
    check_case(data.draw(of_rows(distributed_mesh, serial_twin)), world)


@ranks_4
@a_few
@given(data=st.data())
def test_two_axes(world, distributed_mesh_2d, serial_twin, data):
    kind = data.draw(st.sampled_from([pointwise, of_classes, of_rows]))
    check_case(data.draw(kind(distributed_mesh_2d, serial_twin)), world)


@ranks_2_and_3
@pytest.mark.parametrize(
    "loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss], ids=lambda f: f.__name__
)
def test_warns_of_other_sizes(distributed_mesh, loss):
    full, target = torch.rand(5, 3), torch.rand(3)
    x = ShardTensor.scatter(full, distributed_mesh, {"domain": 0})
    with pytest.warns(
        UserWarning, match=r"a target size \(torch.Size\(\[3\]\)\) that is diff"
    ) as w:
        found = loss(x, target)
    assert "input size (torch.Size([5, 3]))" in str(w[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(found.full(), loss(full, target))


@ranks_2_and_3
@pytest.mark.parametrize(
    ("options", "reduction"),
    [({"size_average": False}, "sum"), ({"reduce": False}, "none"), ({"reduce": True}, "mean")],
    ids=["sum", "none", "mean"],
)
@pytest.mark.parametrize("loss", [F.mse_loss, F.soft_margin_loss, F.hinge_embedding_loss])
def test_old_options(distributed_mesh, loss, options, reduction):
    full, target = torch.rand(5, 3), torch.ones(5, 3)
    x = ShardTensor.scatter(full, distributed_mesh, {"domain": 0})
    with pytest.warns(UserWarning, match=f"reduction='{reduction}' instead"):
        found = loss(x, target, **options)
    torch.testing.assert_close(found.full(), loss(full, target, reduction=reduction))


@ranks_2_and_3
def test_kl_div_warns_of_its_mean(distributed_mesh):
    full, target = torch.rand(5, 3), torch.rand(5, 3)
    x = ShardTensor.scatter(full, distributed_mesh, {"domain": 0})
    with pytest.warns(UserWarning, match="'batchmean' divides only by the batch size"):
        found = F.kl_div(x, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(found.full(), F.kl_div(full, target))


def good(count):
    return torch.zeros(count, dtype=torch.int64)


WRONG = {
    "class": (F.cross_entropy, (4, 3), [0, 1, 2, 7]),
    "negative class": (F.nll_loss, (4, 3), [0, -5, 2, 1]),
    "margins": (F.multi_margin_loss, (4, 3), [0, 1, 2, 7]),
    "labels": (F.multilabel_margin_loss, (2, 3), [[0, 1, 2], [7, 1, -1]]),
    "negative label": (F.multilabel_margin_loss, (2, 3), [[0, 1, 2], [0, -2, -1]]),
    "probability": (F.binary_cross_entropy, (3,), [0.0, 0.5, 1.5]),
    "no size": (F.cross_entropy, (4, 3), [0, 1]),
}


@ranks_2_and_3
@pytest.mark.parametrize("name", WRONG)
def test_raises_as_torch_on_every_rank(distributed_mesh, name):
    loss, shape, values = WRONG[name]
    full, target = torch.rand(shape), torch.tensor(values)
    with pytest.raises((RuntimeError, IndexError, ValueError)) as expected:
        loss(full, target)
    x = ShardTensor.scatter(full, distributed_mesh, {"domain": 0})
    y = target
    if len(target) == len(full):
        y = ShardTensor.scatter(target, distributed_mesh, {"domain": 0})
    with pytest.raises(type(expected.value)) as found:
        loss(x, y)
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


@ranks_2_and_3
@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_bytes_as_classes(distributed_mesh, loss):
    full, target = torch.rand(4, 3), torch.tensor([0, 1, 2, 1], dtype=torch.uint8)
    x = ShardTensor.scatter(full, distributed_mesh, {"domain": 1})
    torch.testing.assert_close(loss(x, target).full(), loss(full, target))


@ranks_2_and_3
@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: F.mse_loss(x, y),
        lambda x, y: F.cross_entropy(x, y.softmax(1)),
        lambda x, y: F.cross_entropy(x, good(len(x))),
        lambda x, y: F.binary_cross_entropy_with_logits(x, y),
        lambda x, y: F.triplet_margin_loss(x, y, y.flip(0)),
    ],
    ids=["mse", "probabilities", "classes", "logits", "triplet"],
)
def test_second_derivatives(distributed_mesh, loss):
    generator = torch.Generator().manual_seed(0)
    full, target = torch.rand(2, 5, 4, dtype=torch.float64, generator=generator)

    def second(x):
        (slope,) = torch.autograd.grad(loss(x, target), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    expected = second(full.clone().requires_grad_())
    for dim in (0, 1):
        x = ShardTensor.scatter(full, distributed_mesh, {"domain": dim}).requires_grad_()
        torch.testing.assert_close(second(x).full(), expected, rtol=1e-12, atol=1e-12)


@ranks_2_and_3
def test_in_half_precision(distributed_mesh):
    full, target = torch.randn(64, 8), torch.arange(64) % 8
    half = full.bfloat16()
    x = ShardTensor.scatter(half, distributed_mesh, {"domain": 1})
    for loss, other in ((F.cross_entropy, target), (F.mse_loss, full.flip(0).bfloat16())):
        found = loss(x, other)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.full(), loss(half, other), rtol=0.02, atol=0)


@ranks_2_and_3
@pytest.mark.parametrize(
    "loss",
    [
        lambda x: F.cross_entropy(x, torch.arange(6)),
        lambda x: F.cross_entropy(x, torch.ones(6, 8).bfloat16()),
        lambda x: F.nll_loss(x, torch.arange(6)),
        lambda x: F.multi_margin_loss(x, torch.arange(6)),
        lambda x: F.cosine_embedding_loss(x, torch.ones(6, 8), torch.ones(6)),
        lambda x: F.triplet_margin_loss(x, x + 1, x - 1),
        lambda x: F.mse_loss(x, torch.ones(6, 8).bfloat16()),
    ],
    ids=["classes", "shares", "nll", "margins", "cosine", "triplet", "mse"],
)
def test_under_autocast(distributed_mesh, loss):
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(6, 8, generator=generator).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        expected = loss(full)
        for dim in (0, 1):
            found = loss(ShardTensor.scatter(full, distributed_mesh, {"domain": dim}))
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found.full(), expected)
