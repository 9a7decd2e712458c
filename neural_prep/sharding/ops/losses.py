"""Losses of one value against another, and of distances; what torch writes in Python runs as it is.

The mean is over all elements of the global tensor. A loss that is reduced is one value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.bodies import body_of
from neural_prep.sharding.ops.elementwise import elementwise
from neural_prep.sharding.reduction import result_dtype
from neural_prep.sharding.registry import name_of, sharded, sharded_alike

NONE, MEAN, SUM = 0, 1, 2  # torch's numbers for reductions

_IN_PYTHON = (
    "mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div poisson_nll_loss gaussian_nll_loss "
    "hinge_embedding_loss margin_ranking_loss cosine_embedding_loss triplet_margin_loss "
    "triplet_margin_with_distance_loss multilabel_soft_margin_loss multilabel_margin_loss "
    "multi_margin_loss nll_loss cross_entropy linear_cross_entropy"
)
# Kernels that work element by element, and the place of their argument `reduction`.
_POINTWISE: dict[Callable[..., Any], int] = {
    torch._C._nn.mse_loss: 2,
    torch._C._nn.l1_loss: 2,
    torch._C._nn.smooth_l1_loss: 2,
    torch._C._nn.huber_loss: 2,
    torch._C._nn.soft_margin_loss: 2,
    torch._C._nn.binary_cross_entropy: 3,
    torch.binary_cross_entropy_with_logits: 4,
    torch.kl_div: 2,
    torch.poisson_nll_loss: 5,
    torch.hinge_embedding_loss: 3,
    torch.margin_ranking_loss: 4,
}
_EPSILON = 1e-12  # of torch's cosine

for _name in _IN_PYTHON.split():
    if hasattr(F, _name):
        sharded(getattr(F, _name))(body_of(getattr(F, _name)))


@sharded(F.l1_loss, always=True)
def l1_loss(*args: Any, **kwargs: Any) -> Tensor:
    """With the weight that torch 2.13 forgets to hand over: it is still in the caller's frame."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not F.l1_loss.__code__:
        frame = frame.f_back
    weight = None if frame is None else frame.f_locals.get("weight")
    if weight is not None:
        kwargs["weight"] = weight
    return _l1_loss(*args, **kwargs)  # type: ignore[no-any-return]


_l1_loss = body_of(F.l1_loss)


def pointwise(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """A loss of each element, and their sum or mean."""
    place, given = _POINTWISE[function], list(args)
    reduction = kwargs.pop("reduction", MEAN)
    if len(given) > place:
        reduction, given[place] = given[place], NONE
    else:
        kwargs["reduction"] = NONE
    result_dtype(function, given, kwargs)  # raises what torch raises
    if name_of(function) == "binary_cross_entropy":
        _check_probabilities(*given[:2])
    return reduced(elementwise(function, *given, **kwargs), reduction)


for _function in _POINTWISE:
    sharded_alike(_function)(pointwise)


def cast_as_torch(dtype: torch.dtype, *tensors: Any) -> list[Any]:
    """Arguments in the dtype of the result, in which torch's own losses work under autocast."""
    device = next(each for each in tensors if isinstance(each, Tensor)).device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    return [
        each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each
        for each in tensors
    ]


def reduced(losses: Tensor, reduction: int) -> Tensor:
    """All losses, their mean or their sum."""
    if reduction == NONE:
        return losses
    return losses.mean() if reduction == MEAN else losses.sum()


@sharded(torch.cosine_embedding_loss)
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = MEAN
) -> Tensor:
    """`(N, D)`, `(N, D)` and `(N,)`, or one row without `N`."""
    args = (input1, input2, target, margin, NONE)
    dtype = result_dtype(torch.cosine_embedding_loss, args, {})
    input1, input2 = cast_as_torch(dtype, input1, input2)
    product = (input1 * input2).sum(-1)
    squares = ((input1 * input1).sum(-1) + _EPSILON) * ((input2 * input2).sum(-1) + _EPSILON)
    cosine = product / squares.sqrt()
    alike = (1 - cosine).masked_fill(target != 1, 0.0)
    apart = (cosine - margin).clamp_min(0).masked_fill(target != -1, 0.0)
    return reduced(alike + apart, reduction)


@sharded(torch.triplet_margin_loss)
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = MEAN,
) -> Tensor:
    """`(N, D)` each, which may be broadcast."""
    args = (anchor, positive, negative, margin, p, eps, swap, NONE)
    dtype = result_dtype(torch.triplet_margin_loss, args, {})
    anchor, positive, negative = cast_as_torch(dtype, anchor, positive, negative)
    near = torch.pairwise_distance(anchor, positive, p, eps)
    far = torch.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, torch.pairwise_distance(positive, negative, p, eps))
    return reduced((margin + near - far).clamp_min(0), reduction)


def _check_probabilities(*tensors: Tensor) -> None:
    """Raises on all ranks if a number on any of them is no probability."""
    for name, each in zip(("input", "target"), tensors, strict=True):
        if not bool(((each >= 0) & (each <= 1)).all()):
            raise RuntimeError(f"all elements of {name} should be between 0 and 1")
