"""Softmax and its kin: maxima and sums over ranks where the dimension is cut.

`gumbel_softmax` draws numbers that follow from global indices, as dropout does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.along import of_one_element
from neural_prep.sharding.extremes import extreme, first_extreme
from neural_prep.sharding.random import draw_seed, uniform
from neural_prep.sharding.reduction import Reduction, named_as_torch, result_dtype
from neural_prep.sharding.registry import name_of, sharded, sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, to_local
from neural_prep.sharding.transport import summed_in

_FUNCTIONAL = (F.softmax, F.log_softmax, F.softmin)
_FRAMES = 6  # of ours, between torch's function and its warning
_LEAST = 2.0**-54  # half of what is above 0: its logarithm is finite
_EPS = 1e-10  # `gumbel_softmax` warns of any other


@sharded_alike("softmax", "log_softmax", "softmin")
def _softmax(function: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    kwargs = named_as_torch(kwargs)
    if function in _FUNCTIONAL:
        dim, dtype = _functional_options(function, input, *args, **kwargs)
    else:
        dim, dtype = _options(*args, **kwargs)
    result = result_dtype(function, (input,), {"dim": dim, "dtype": dtype})
    whole = Reduction.of(input, dim)
    if not whole.axes:
        return from_local(function(whole.local, dim=dim, dtype=dtype), whole.layout)
    name = name_of(function)
    local = -whole.local if name == "softmin" else whole.local
    whole = whole.on(local.to(result).to(summed_in(result)))
    # Of the whole tensor; it has no gradient, for the result does not depend on it.
    shifted = whole.local - extreme(whole, greatest=True)
    powers = shifted.exp()
    total = whole.add(powers.sum(whole.dims, True))
    found = shifted - whole.enter(total.log()) if "log" in name else powers / whole.enter(total)
    return from_local(found.to(result), whole.layout)


def _options(
    dim: int, dtype: torch.dtype | None = None, *, out: None = None
) -> tuple[int, torch.dtype | None]:
    return dim, dtype


def _functional_options(
    function: Callable[..., Tensor],
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> tuple[int, torch.dtype | None]:
    """The dimension, which `F.softmax` still chooses, with a warning where the caller is."""
    if dim is None:
        choose: Any = F._get_softmax_dim  # type: ignore[attr-defined]
        dim = choose(name_of(function), input.ndim, _stacklevel + _FRAMES)
    return dim, dtype


@sharded("gumbel_softmax", random=True)
def gumbel_softmax(
    logits: ShardTensor, tau: float = 1, hard: bool = False, eps: float = _EPS, dim: int = -1
) -> Tensor:
    """A sample, or if `hard` the one-hot vector of its greatest, with the sample's gradient."""
    if eps != _EPS:
        warnings.warn("`eps` parameter is deprecated and has no effect.", stacklevel=_FRAMES + 1)
    if not logits.is_floating_point():
        of_one_element(F.gumbel_softmax, logits)
    layout = logits.sharding
    drawn = uniform(draw_seed(layout, logits.device), layout, logits.shape)
    noise = -(-torch.log1p(-drawn)).clamp_min(_LEAST).log()
    noisy = to_local(logits) + noise.to(logits.dtype)
    soft = torch.softmax(from_local(noisy, layout) / tau, dim)
    return _straight_through(soft, dim) if hard else soft


def _straight_through(soft: Tensor, dim: int) -> Tensor:
    """One at the first of the greatest and zeros elsewhere; gradients pass to the argument."""
    whole = Reduction.of(soft, dim)
    (along,) = whole.dims
    local = whole.local.detach()
    _, index = first_extreme(whole.on(local), greatest=True)
    start = whole.starts[along]
    places = torch.arange(start, start + local.shape[along], device=local.device)
    chosen = places.reshape([-1 if each == along else 1 for each in range(local.ndim)]) == index
    return from_local(chosen.to(local.dtype) - local + whole.local, whole.layout)
