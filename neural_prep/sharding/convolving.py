"""What convolutions and transposed ones share: checks before, and torch's own call on a piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.adjoint import connected
from neural_prep.sharding.channels import Channels
from neural_prep.sharding.operands import reduce_over
from neural_prep.sharding.transport import summed_in


def each_dim(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """A hyper-parameter for each dimension.

    >>> each_dim(2, 3), each_dim([1], 2), each_dim((1, 2), 2)
    ((2, 2, 2), (1, 1), (1, 2))
    """
    if isinstance(value, int):
        return (value,) * count
    return tuple(value) * count if len(value) == 1 else tuple(value)


def check(
    function: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *options: Any,
) -> tuple[int, ...]:
    """The output's global shape; raises what torch raises, on all ranks alike.

    Args:
        function: The convolution.
        input: What it convolves.
        weight: Its filters.
        bias: What it adds.
        options: Its other arguments.
    """
    kinds = {each.dtype for each in (input, weight, bias) if each is not None}
    if len(kinds) > 1 and not torch.is_autocast_enabled(input.device.type):
        raise RuntimeError(
            f"{function.__name__} of {', '.join(sorted(map(str, kinds)))}: "
            "input, weight and bias should have the same type"
        )
    shapes = [None if each is None else tuple(each.shape) for each in (input, weight, bias)]
    return _check(function, *shapes, tuple(map(_frozen, options)))


@lru_cache(maxsize=1024)
def _check(
    function: Callable[..., Tensor],
    input: tuple[int, ...],
    weight: tuple[int, ...],
    bias: tuple[int, ...] | None,
    options: tuple[Any, ...],
) -> tuple[int, ...]:
    """Calls torch with an empty batch: it checks nearly everything and computes nothing.

    Meta tensors are not enough: with them it accepts a bias of a wrong size or negative padding.
    """
    filters, offset = _stand_in(weight), None if bias is None else _stand_in(bias)
    spatial = len(weight) - 2
    batched = len(input) == spatial + 2
    if 0 in input[len(input) - spatial :] or len(input) not in (spatial + 1, spatial + 2):
        return tuple(function(_stand_in(input), filters, offset, *options).shape)
    empty = (0, *(input[1:] if batched else input))
    shape = tuple(function(_stand_in(empty), filters, offset, *options).shape)
    return (input[0], *shape[1:]) if batched else shape[1:]


def _stand_in(shape: tuple[int, ...]) -> Tensor:
    """A tensor that takes no memory."""
    return torch.zeros(1).expand(shape)


def _frozen(option: Any) -> Any:
    return tuple(option) if isinstance(option, list | tuple) else option


@dataclass(frozen=True, slots=True)
class Local:
    """A convolution of pieces.

    Attributes:
        run: Torch's own, given input, weight, and a bias or None.
        shape: Of this rank's piece of the output.
        input: The rows that it reads.
        weight: This rank's filters.
        bias: What is added, or None.
        channels: How channels are divided.
        late: Whether the bias is added after all else.
    """

    run: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    shape: tuple[int, ...]
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    channels: Channels
    late: bool = False


def convolve_local(call: Local) -> Tensor:
    """This rank's piece of the output: partial sums added up, then the bias; rounded once."""
    narrow = call.input.dtype
    wide = summed_in(narrow) if call.channels.partial else narrow
    input, weight = call.input.to(wide), call.weight.to(wide)
    empty = call.input.numel() == 0 or 0 in call.shape
    late = call.late or call.channels.partial or empty
    if empty:
        like = input.new_empty(0, dtype=_computed_in(input))
        result = connected(call.shape, like, input, weight, curved=True)
    else:
        result = call.run(input, weight, None if late else call.bias)
    if call.channels.partial:
        assert call.channels.axis is not None
        result = reduce_over(result, call.channels.layout, call.channels.axis)
    if call.bias is not None and late:
        ones = (1,) * (weight.ndim - 2)
        result = result + call.bias.to(result.dtype).reshape(-1, *ones)
    return result if wide == narrow else result.to(narrow)


def _computed_in(tensor: Tensor) -> torch.dtype:
    """The dtype of a convolution's result, where autocast may change it."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind) and tensor.dtype == torch.float32:
        return torch.get_autocast_dtype(kind)
    return tensor.dtype
