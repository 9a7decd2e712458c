"""Layer and RMS normalisation, of dimensions that are cut or not.

Statistics are those of the whole tensor: the mean first, then squared distances from it, which do
not cancel where the mean is large.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.normalising import checked, on_piece, standardised
from neural_prep.sharding.operands import operand
from neural_prep.sharding.reduction import Reduction
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.shard_tensor import ShardTensor, from_local
from neural_prep.sharding.transport import summed_in


@sharded("layer_norm")
def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> ShardTensor:
    shape = tuple(normalized_shape)
    shard, result = checked(F.layer_norm, input, shape, weight, bias, eps)
    whole = _last_dims(shard, len(shape))
    scale, shift = _slice(weight, whole), _slice(bias, whole)
    if not whole.axes:
        local = on_piece(F.layer_norm, whole.local, shape, scale, shift, eps)
        return from_local(local, whole.layout)
    whole = whole.on(whole.local.to(summed_in(result)))
    local = _scaled(standardised(whole, eps)[0], scale, shift)
    return from_local(local.to(result), whole.layout)


@sharded("rms_norm")
def _rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> ShardTensor:
    shape = tuple(normalized_shape)
    shard, result = checked(F.rms_norm, input, shape, weight, eps)
    whole = _last_dims(shard, len(shape))
    scale = _slice(weight, whole)
    if not whole.axes:
        return from_local(on_piece(F.rms_norm, whole.local, shape, scale, eps), whole.layout)
    local = whole.local.to(summed_in(input.dtype))
    squares = whole.enter(whole.add(local.square().sum(whole.dims, True)) / whole.count)
    eps = torch.finfo(local.dtype).eps if eps is None else eps
    local = _scaled(local * (squares + eps).rsqrt(), scale, None)
    return from_local(local.to(result), whole.layout)


def _last_dims(tensor: ShardTensor, count: int) -> Reduction:
    return Reduction.of(tensor, range(tensor.ndim - count, tensor.ndim))


def _slice(parameter: Tensor | None, whole: Reduction) -> Tensor | None:
    """A parameter of the normalised dimensions, cut as they are."""
    if parameter is None:
        return None
    places = {dim: place for place, dim in enumerate(whole.dims)}
    return operand(parameter, whole.layout.with_dims(places), whole.layout)


def _scaled(local: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    local = local if scale is None else local * scale
    return local if shift is None else local + shift
