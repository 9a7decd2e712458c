"""Dropout and other random functions: every element's number follows from its global index.

What draws in another way is refused, also where all tensors are replicated: ranks would draw
different numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.broadcast import broadcast_piece
from neural_prep.sharding.random import draw_seed, normal, uniform
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import has_function, name_of, sharded, sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local

_REFUSED = (
    "poisson multinomial binomial normal exponential_ geometric_ cauchy_ "
    "log_normal_ random_ fractional_max_pool2d fractional_max_pool3d "
    "fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices "
    "_fractional_max_pool2d _fractional_max_pool3d"
)
_ALPHA = 1.7580993408473766  # SELU's limit for very negative values is -_ALPHA


@sharded_alike("dropout", "native_dropout", always=True)
def dropout(function: Callable[..., Any], input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Zeroes elements, and scales what is left."""
    if name_of(function) == "native_dropout":
        raise refusal("native_dropout", next(shards_in([input])).sharding)
    return _drop(input, *_options(*args, **kwargs), kept_dims=None, alpha=False)


@sharded("alpha_dropout", random=True)
def alpha_dropout(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Dropout that keeps mean and variance after SELU."""
    return _drop(input, *_options(*args, default=False, **kwargs), kept_dims=None, alpha=True)


@sharded_alike("feature_dropout", "dropout1d", "dropout2d", "dropout3d", always=True)
def feature_dropout(
    function: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Zeroes whole channels: the first two dimensions, or one without a batch, have numbers."""
    name = name_of(function)
    if input.ndim < 2 or (name == "dropout1d" and input.ndim > 3):
        raise RuntimeError(f"{name}: {input.ndim} dimensions don't have channels as it needs them")
    kept_dims = 1 if {"dropout1d": 2, "dropout3d": 4}.get(name) == input.ndim else 2
    return _drop(input, *_options(*args, **kwargs), kept_dims=kept_dims, alpha=False)


@sharded("feature_alpha_dropout", random=True)
def feature_alpha_dropout(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Alpha dropout of whole channels."""
    return _drop(input, *_options(*args, default=False, **kwargs), kept_dims=2, alpha=True)


@sharded("bernoulli", random=True)
def bernoulli(
    input: ShardTensor, p: float | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    """One with the probability that the element, or `p`, says."""
    if p is not None and not 0.0 <= p <= 1.0:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    chance = input._local if p is None else p
    drawn = _uniform(input, generator)
    return from_local((drawn < chance).to(input.dtype), input.sharding)


@sharded("rand_like", random=True)
def rand_like(input: ShardTensor, **kwargs: Any) -> Tensor:
    """Uniform numbers; in 32 bits and fewer, the float64 ones rounded down."""
    return _like(input, _uniform(input, kwargs.pop("generator", None)), kwargs, down=True)


@sharded("randn_like", random=True)
def randn_like(input: ShardTensor, **kwargs: Any) -> Tensor:
    """Standard normal numbers."""
    seed = draw_seed(input.sharding, input.device, kwargs.pop("generator", None))
    return _like(input, normal(seed, input.sharding, input.shape), kwargs)


@sharded("randint_like", random=True)
def randint_like(input: ShardTensor, *bounds: int, **kwargs: Any) -> Tensor:
    """Integers from `low`, or 0, to before `high`."""
    given = [*bounds, *(kwargs.pop(name) for name in ("low", "high") if name in kwargs)]
    low, high = (0, given[0]) if len(given) == 1 else given
    drawn = _uniform(input, kwargs.pop("generator", None))
    return _like(input, torch.floor(drawn * (high - low)) + low, kwargs)


@sharded("bernoulli_", random=True)
def bernoulli_(input: ShardTensor, p: Any = 0.5, **kwargs: Any) -> Tensor:
    """Overwrites with ones of a probability."""
    if isinstance(p, Tensor):
        p = broadcast_piece(p.detach(), input.shape, input.sharding)
    drawn = _uniform(input, kwargs.get("generator"))
    return input.overwrite(
        from_local((drawn < p).to(input.dtype), input.sharding), "bernoulli_", forgets=True
    )


@sharded("uniform_", random=True)
def uniform_(input: ShardTensor, a: float = 0.0, b: float = 1.0, **kwargs: Any) -> Tensor:
    """Overwrites with uniform numbers."""
    value = rand_like(input, generator=kwargs.get("generator")) * (b - a) + a
    return input.overwrite(value, "uniform_", forgets=True)


@sharded("normal_", random=True)
def normal_(input: ShardTensor, mean: float = 0.0, std: float = 1.0, **kwargs: Any) -> Tensor:
    """Overwrites with normal numbers."""
    value = randn_like(input, generator=kwargs.get("generator")) * std + mean
    return input.overwrite(value, "normal_", forgets=True)


@sharded_alike(*filter(has_function, _REFUSED.split()), always=True)
def refuse(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What draws random numbers otherwise."""
    layout = next(shards_in((args, kwargs))).sharding
    raise refusal(name_of(function), layout, "would draw other numbers on every rank")


def _options(
    p: float = 0.5,
    training: bool | None = None,
    inplace: bool = False,
    *,
    train: bool | None = None,
    default: bool = True,
) -> tuple[float, bool]:
    """The probability and whether to drop, by any of the names that torch has for it."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    chosen = train if training is None else training
    return p, default if chosen is None else chosen


def _drop(input: Tensor, p: float, training: bool, *, kept_dims: int | None, alpha: bool) -> Tensor:
    """Dropout whose noise spans the first dimensions, or all of them."""
    assert isinstance(input, ShardTensor)
    if not training or p == 0.0:
        return input  # torch gives the tensor itself, too
    local, scale = to_local(input), 1.0 / (1.0 - p) if p < 1.0 else 0.0
    noise = _noise(input, p, kept_dims)
    if not alpha:
        return from_local(local * (noise * scale).to(local.dtype), input.sharding)
    if p == 1.0:
        return from_local(local * 0.0, input.sharding)
    gain = 1.0 / math.sqrt((_ALPHA * _ALPHA * p + 1.0) * (1.0 - p))
    shift = ((noise - 1.0) * (_ALPHA * gain) + _ALPHA * gain * p).to(local.dtype)
    return from_local(local * (noise * gain).to(local.dtype) + shift, input.sharding)


def _noise(input: ShardTensor, p: float, kept_dims: int | None) -> Tensor:
    """Ones where elements are kept, in float64."""
    shape, layout = list(input.shape), input.sharding
    if p == 1.0:
        return torch.zeros((), dtype=torch.float64, device=input.device)
    if kept_dims is not None:
        shape[kept_dims:] = [1] * (input.ndim - kept_dims)
        layout = layout.with_dims({dim: dim for dim in range(kept_dims)})
    seed = draw_seed(layout, input.device)
    return (uniform(seed, layout, shape) >= p).to(torch.float64)


def _uniform(input: ShardTensor, generator: torch.Generator | None) -> Tensor:
    seed = draw_seed(input.sharding, input.device, generator)
    return uniform(seed, input.sharding, input.shape)


def _like(
    input: ShardTensor, drawn: Tensor, kwargs: dict[str, Any], *, down: bool = False
) -> Tensor:
    """Numbers in the dtype that is asked for."""
    dtype = kwargs.get("dtype") or input.dtype
    device = torch.device(kwargs.get("device") or input.device)
    if device.type != input.device.type:
        raise refusal("rand_like", input.sharding, f"would leave the mesh's {input.device}")
    if down and torch.finfo(dtype).bits < 64:  # rounding to nearest would reach 1
        digits = 1 - math.log2(torch.finfo(dtype).eps)
        drawn = torch.floor(drawn * 2.0**digits) * 2.0**-digits
    local = drawn.to(dtype)
    return from_local(local, input.sharding).requires_grad_(bool(kwargs.get("requires_grad")))
