"""How far a tensor, or a rank's piece of it, is from its serial twin, and where the most.

An error counts beside the largest value of the whole tensor: single elements may be as small as
what cancels in them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neural_prep.sharding.layout import Layout
from neural_prep.sharding.shard_tensor import ShardTensor
from neural_prep.sharding.transport import summed_in

NONE = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a comparison has found.

    Attributes:
        error: The largest error, relative to the largest value where that is above 1; infinite
            where tensors cannot be compared.
        text: What differs; empty: nothing does.
        comparable: Whether values were compared.
    """

    error: float = NONE
    text: str = ""
    comparable: bool = True


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What error is allowed.

    Attributes:
        rtol: Of the largest value.
        atol: Besides.
        dtype: That of the case: the serial twin of 16-bit floats is in float32.
    """

    rtol: float
    atol: float
    dtype: torch.dtype = torch.float64

    def dtype_of(self, serial: torch.dtype) -> torch.dtype:
        """The dtype of what has such a serial twin."""
        return self.dtype if serial == summed_in(self.dtype) else serial


def leaves_of(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Everything in a result that is no tuple, list or dict, by where it is.

    >>> list(leaves_of((1, {"a": 2}), "output"))
    [('output[0]', 1), ("output[1]['a']", 2)]
    """
    if isinstance(tree, list | tuple):
        for number, each in enumerate(tree):
            yield from leaves_of(each, f"{name}[{number}]")
    elif isinstance(tree, dict):
        for key, each in tree.items():
            yield from leaves_of(each, f"{name}[{key!r}]")
    else:
        yield name, tree


def local_slices(layout: Layout, shape: Sequence[int]) -> tuple[slice, ...]:
    """Where this rank's piece is in the whole tensor."""
    slices = [slice(0, size) for size in shape]
    for axis, cut in layout.cut_axes():
        start = cut.start(layout.rank(axis))
        slices[cut.dim] = slice(start, start + cut.sizes[layout.rank(axis)])
    return tuple(slices)


def compare_shard(serial: Tensor, shard: Tensor, tolerance: Tolerance) -> Found:
    """This rank's piece of a result beside the same piece of its serial twin."""
    if not isinstance(shard, ShardTensor):
        return unlike("is an ordinary tensor, expected a ShardTensor")
    layout, shape = shard.sharding, tuple(serial.shape)
    if tuple(shard.shape) != shape:
        text = f"has shape {list(shard.shape)}, expected {list(shape)}: it is {layout}"
        return unlike(text)
    for _, cut in layout.cut_axes():
        if cut.dim >= len(shape) or cut.total != shape[cut.dim]:
            return Found(
                math.inf, f"is {layout} into {list(cut.sizes)}; its shape is {list(shape)}"
            )
    local, expected = shard.local.detach(), list(layout.local_shape(shape))
    if list(local.shape) != expected:
        text = f"has a piece of {list(local.shape)}, expected {expected}: it is {layout}"
        return unlike(text)
    return compare(serial, local, tolerance, local_slices(layout, shape))


def compare(
    serial: Tensor, found: Tensor, tolerance: Tolerance, place: tuple[slice, ...] | None = None
) -> Found:
    """A tensor beside its serial twin, or beside a part of that.

    Args:
        serial: What is right.
        found: What is compared.
        tolerance: What error is allowed.
        place: The part of `serial` that `found` is.
    """
    expected = serial.detach() if place is None else serial.detach()[place]
    found = found.detach()
    dtype = tolerance.dtype_of(expected.dtype)
    if found.dtype != dtype:
        return unlike(f"is of {found.dtype}, expected {dtype}")
    if found.device.type != expected.device.type:
        return unlike(f"is on {found.device.type}, expected {expected.device.type}")
    if found.shape != expected.shape:
        return unlike(f"has shape {list(found.shape)}, expected {list(expected.shape)}")
    if not expected.numel():
        return Found()
    exact = not (expected.is_floating_point() or expected.is_complex())
    difference, scale = _difference(expected, found), NONE if exact else _scale(serial.detach())
    largest = float(difference.max())
    error = largest / max(1.0, scale)
    allowed = NONE if exact else tolerance.atol + tolerance.rtol * scale
    if largest <= allowed:
        return Found(error)
    index = [int(i) for i in torch.unravel_index(difference.argmax(), difference.shape)]
    starts = [0] * len(index) if place is None else [part.start for part in place]
    at = [i + start for i, start in zip(index, starts, strict=True)]
    values = f"found {found[tuple(index)].item()}, expected {expected[tuple(index)].item()}"
    wrong = int((difference > allowed).sum())
    text = f"differs by {largest:.1e} at {at}: {values}; allowed {allowed:.1e}; "
    text += f"{wrong} of {found.numel()} values differ"
    return Found(error, text)


def digest(tensor: Tensor) -> str:
    """A short word for all values of a tensor; both zeros are one, as are all NaNs."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        tensor = torch.where(tensor == 0, 0.0, tensor).to(tensor.dtype)
        tensor = torch.where(tensor.isnan(), math.nan, tensor).to(tensor.dtype)
    values = tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(values, digest_size=8).hexdigest()


def unlike(text: str) -> Found:
    """What is found of tensors whose values cannot be compared."""
    return Found(math.inf, text, comparable=False)


def _difference(expected: Tensor, found: Tensor) -> Tensor:
    """Absolute errors, infinite where one is NaN or infinite and the other isn't the same."""
    if not (expected.is_floating_point() or expected.is_complex()):
        return (expected.to(torch.float64) - found.to(torch.float64)).abs()
    wide = torch.complex128 if expected.is_complex() else torch.float64
    expected, found = expected.to(wide), found.to(wide)
    same = (expected == found) | (expected.isnan() & found.isnan())
    difference = torch.where(same, 0.0, (expected - found).abs())
    return torch.where(difference.isnan(), math.inf, difference)


def _scale(serial: Tensor) -> float:
    """The largest value, of those that are finite."""
    finite = serial[serial.isfinite()].abs()
    return float(finite.max()) if finite.numel() else NONE
