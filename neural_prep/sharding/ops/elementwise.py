"""Functions that work element by element, on operands that are broadcast together.

The result is cut as the first operand is; others are brought to that cut. What an operand lacks of
a cut dimension it has whole on every rank, and its gradient is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.broadcast import broadcast_pieces
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import has_function, name_of, sharded, sharded_alike
from neural_prep.sharding.shard_tensor import ShardTensor, from_local
from neural_prep.sharding.transport import add_up
from neural_prep.sharding.trees import map_tensors

_UNARY = (
    "abs absolute acos acosh angle arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan "
    "atanh bitwise_not ceil conj_physical cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 "
    "fix floor frac frexp i0 isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p "
    "log2 logical_not logit mvlgamma nan_to_num neg negative polygamma rad2deg reciprocal round "
    "rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc erfcx "
    "__abs__ __invert__ __neg__"
)
_BINARY = (
    "add arctan2 atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor "
    "complex copysign div divide eq float_power floor_divide fmax fmin fmod gcd ge greater "
    "greater_equal gt heaviside hypot igamma igammac lcm ldexp le less less_equal logaddexp "
    "logaddexp2 logical_and logical_or logical_xor lt maximum minimum mul multiply ne nextafter "
    "not_equal polar pow remainder rsub sub subtract true_divide xlogy isclose "
    "__add__ __radd__ __sub__ __rsub__ "
    "__mul__ __rmul__ __truediv__ __rtruediv__ __div__ __rdiv__ __floordiv__ __rfloordiv__ __mod__ "
    "__rmod__ __pow__ __rpow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __rand__ __or__ "
    "__ror__ __xor__ __rxor__ __lshift__ __rlshift__ __rshift__ __rrshift__"
)
_TERNARY = "addcdiv addcmul clamp clamp_max clamp_min clip lerp masked_fill"
_ACTIVATIONS = (
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid mish relu "
    "relu6 selu silu softplus softshrink softsign tanhshrink threshold _threshold"
)
_SPECIAL = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he "
    "laguerre_polynomial_l legendre_polynomial_p "
    "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma entr erf erfc erfcx erfinv exp2 expit "
    "expm1 gammainc gammaincc gammaln i0 i0e i1 i1e log1p log_ndtr logit modified_bessel_i0 "
    "modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 multigammaln ndtr ndtri polygamma "
    "psi round scaled_modified_bessel_k0 scaled_modified_bessel_k1 sinc spherical_bessel_j0 "
    "xlog1py xlogy zeta"
)
# Of integers these raise where the second operand, of `__r` ones the first, has a zero.
_DIVISIONS = [
    "div",
    "divide",
    "floor_divide",
    "remainder",
    "fmod",
    "__floordiv__",
    "__rfloordiv__",
    "__mod__",
    "__rmod__",
]
_NAMES = (
    *f"{_UNARY} {_BINARY} {_TERNARY} {_ACTIVATIONS}".split(),
    *(f"special_{name}" for name in _SPECIAL.split()),
)


@sharded_alike(*filter(has_function, _NAMES))
def elementwise(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Any function of which each element of the result needs those at its place alone."""
    tensors: list[Tensor] = []
    map_tensors(tensors.append, [args, kwargs])
    pieces, layout = broadcast_pieces(tensors)
    in_order = iter(pieces)

    def piece(_: Tensor) -> Tensor:
        return next(in_order)

    values, named = list(map_tensors(piece, args)), map_tensors(piece, kwargs)
    _check_divisor(name_of(function), values, named, layout)
    result = function(*values, **named)
    return map_tensors(lambda local: from_local(local, layout), result)


def _check_divisor(name: str, values: list[Any], named: Mapping[str, Any], layout: Layout) -> None:
    """Raises on all ranks if integers are divided by a zero that some rank has."""
    if name not in _DIVISIONS or (name in ("div", "divide") and not named.get("rounding_mode")):
        return
    pair = [*values, *(named[each] for each in ("other",) if each in named)]
    if not all(_is_integer(each) for each in pair):
        return
    divisor = torch.as_tensor(pair[0 if name.startswith("__r") else 1])
    zeros = (divisor.to(torch.result_type(*pair[:2])) == 0).sum()  # 256 is 0 in 8 bits
    for axis, _ in layout.cut_axes():
        zeros = add_up(zeros, layout.group(axis))
    if int(zeros):
        raise RuntimeError("ZeroDivisionError")


def _is_integer(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex())
    return isinstance(value, int)


@sharded("positive", "__pos__", "resolve_conj", "resolve_neg")
def positive(input: Tensor) -> Tensor:
    """The tensor itself, as torch has it; pieces are never conjugated or negated lazily."""
    return input


@sharded_alike("conj", "real", "imag")
def part(function: Callable[..., Tensor], input: ShardTensor) -> Tensor:
    """Conjugates, or takes a part of complex numbers."""
    if not input.is_complex() and name_of(function) != "imag":
        return input
    take = {"conj": torch.conj_physical, "real": torch.real, "imag": torch.imag}[name_of(function)]
    return elementwise(take, input)  # type: ignore[no-any-return]


@sharded_alike("where")
def where(function: Callable[..., Tensor], condition: Any, *args: Any, **kwargs: Any) -> Any:
    """Elements of one or the other; without them it would be `nonzero`, of unknown size."""
    if not (args or kwargs):
        raise refusal("where without values", condition.sharding)
    return elementwise(function, condition, *args, **kwargs)


@sharded("prelu")
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """A slope for all channels, or for each: they are dim 1."""
    if weight.ndim > 1 or (weight.numel() != 1 and weight.numel() != _channels(input)):
        meta = [torch.empty(tensor.shape, device="meta") for tensor in (input, weight)]
        torch.prelu(*meta)  # raises what torch raises
    rank = max(input.ndim - 2, 0)
    slopes = weight if weight.numel() == 1 else weight.reshape(-1, *(1,) * rank)
    if weight.numel() == 1:
        slopes = weight.reshape(())
    return elementwise(torch._prelu_kernel, input, slopes)  # type: ignore[no-any-return]


@sharded("rrelu", always=True)
def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Without training, one slope between both."""
    assert isinstance(input, ShardTensor)
    if training:
        raise refusal("rrelu in training", input.sharding)
    return elementwise(torch.rrelu, input, lower, upper)  # type: ignore[no-any-return]


def _channels(input: Tensor) -> int:
    return input.shape[1] if input.ndim > 1 else 1
