"""Scaled dot-product attention, divided by batch, by heads, or by queries with keys in a ring.

Where features are cut, sequences are cut instead. Where only keys are cut, queries are cut too, and
the result is joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.contractions import Division, Label, Labels, raise_as_torch, sizes_of
from neural_prep.sharding.layout import Cut, split_sizes
from neural_prep.sharding.operands import operand
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.ring import Ring, attend, scores_of
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in

_HEADS = -1  # the last batch label
_Part = tuple[Label, tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a call is divided.

    Attributes:
        queries: Of queries, masks and the result.
        keys: Of keys and values.
        axis: The mesh axis along which the sequences are cut; None: along none.
        joined: Whether queries were whole along that axis, and so is the result.
        sizes: Of all labels but the masks'.
        grouped: Whether heads of queries share those of keys.
        group: How many share one.
    """

    queries: Division
    keys: Division
    axis: int | None
    joined: bool
    sizes: dict[Label, int]
    grouped: bool
    group: int

    @property
    def batch(self) -> list[Label]:
        """The labels of the result's batch dimensions."""
        return sorted(label for label in self.sizes if isinstance(label, int))

    def ring(self, causal: bool, scale: float | None) -> Ring:
        """What the blockwise function needs."""
        first, _ = self.queries.part("query", self.sizes["query"])
        cut = None if self.axis is None else self.keys.cuts[self.axis]
        if scale is None:
            scale = 1 / sqrt(self.sizes["feature"]) if self.sizes["feature"] else 1.0
        if cut is None:
            return Ring(scale, causal, first, (self.sizes["key"],), None)
        return Ring(scale, causal, first, cut[1], self.queries.mesh.get_group(self.axis))

    def sharded(self, local: Tensor, labels: Labels) -> ShardTensor:
        """A result of this division."""
        shape = [self.sizes[label] for label in labels]
        layout = self.queries.layout(labels, shape)
        result = from_local(local, layout)
        if self.axis is None or not self.joined:
            return result
        return result.redistribute(layout.with_cut(self.axis, None))


@sharded("scaled_dot_product_attention", random=True)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> ShardTensor:
    """Attention; a query that is masked from all keys gets 0."""
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (each.to(dtype) for each in (query, key, value))
    masks = () if attn_mask is None else (attn_mask,)
    if dropout_p > 0:
        layout = next(shards_in((query, key, value, masks))).sharding
        raise refusal("scaled_dot_product_attention", layout, "is not sharded with dropout")
    plan = plan_attention(query, key, value, masks, grouped=enable_gqa)
    if plan is None or (masks and is_causal):
        raise_as_torch(
            F.scaled_dot_product_attention,
            *(query, key, value, attn_mask, dropout_p, is_causal),
            scale=scale,
            enable_gqa=enable_gqa,
        )
    return attention(plan, query, key, value, masks, causal=is_causal, scale=scale)


def attention(
    plan: Plan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: Sequence[Tensor],
    *,
    causal: bool,
    scale: float | None = None,
) -> ShardTensor:
    """Attention as planned; all masks apply, true where a key takes part."""
    pieces = _pieces(plan, (query, key, value), plan.keys)
    parts = _mask_pieces(plan, masks)
    local = _attend(pieces, parts, plan.ring(causal, scale), plan.grouped)
    return plan.sharded(local, [*plan.batch, "query", "value"])


def attention_and_weights(
    plan: Plan, query: Tensor, key: Tensor, value: Tensor, masks: Sequence[Tensor]
) -> tuple[ShardTensor, ShardTensor]:
    """Attention and its weights `(..., L, S)`, for which every rank needs all keys."""
    query, key, value = _pieces(plan, (query, key, value), plan.queries)
    ring = plan.ring(causal=False, scale=None)
    scores = scores_of(query * ring.scale, key, _mask_pieces(plan, masks), ring, 0)
    unseen = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(unseen, 0).softmax(-1).masked_fill(unseen, 0)
    result = plan.sharded(weights @ value, [*plan.batch, "query", "value"])
    return result, plan.sharded(weights, [*plan.batch, "query", "key"])


def plan_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: Sequence[Tensor],
    *,
    grouped: bool = False,
) -> Plan | None:
    """Divides a call; None: its shapes or types don't fit."""
    tensors = (query, key, value)
    if min(each.ndim for each in tensors) < 2 + grouped:
        return None
    labels = _labels(tensors, grouped)
    sizes = sizes_of(tensors, labels)
    group = query.shape[-3] // max(key.shape[-3], 1) if grouped else 1
    if sizes is None or (grouped and group * key.shape[-3] != query.shape[-3]):
        return None
    if not query.dtype == key.dtype == value.dtype or not _masks_fit(masks, query.dtype, sizes):
        return None
    mesh = next(shards_in((*tensors, *masks))).sharding.mesh
    cuts = _cuts(tensors, labels, sizes)
    queries, axis = _divide(cuts, mesh.ndim, group)
    keys = [_of_keys(part, group) if grouped else part for part in queries]
    joined = False
    if axis is not None:
        found = {label: cut.sizes for at, label, cut in reversed(cuts) if at == axis}
        joined = found.keys() <= {"key"}
        even = split_sizes(sizes["query"], mesh.size(axis))
        queries[axis] = ("query", found.get("query", even))
        if "key" in found:
            keys[axis] = ("key", found["key"])
        elif "query" not in found:
            keys[axis] = ("key", split_sizes(sizes["key"], mesh.size(axis)))
    first, second = Division(mesh, tuple(queries)), Division(mesh, tuple(keys))
    return Plan(first, second, axis, joined, sizes, grouped, group)


def _labels(tensors: Sequence[Tensor], grouped: bool) -> list[Labels]:
    """Batch dimensions are numbered from their end; grouped heads have a name of their own."""
    batches: list[list[Label]] = [list(range(2 - each.ndim, 0)) for each in tensors]
    if grouped:
        batches[1][_HEADS] = batches[2][_HEADS] = "key heads"
    ends = (("query", "feature"), ("key", "feature"), ("key", "value"))
    return [[*batch, *end] for batch, end in zip(batches, ends, strict=True)]


def _masks_fit(masks: Sequence[Tensor], dtype: torch.dtype, sizes: dict[Label, int]) -> bool:
    """Whether masks broadcast to the scores, and not the scores to them."""
    return all(
        mask.dtype in (torch.bool, dtype)
        and all(
            size in (1, sizes.get(label))
            for label, size in zip(_mask_labels(mask), mask.shape, strict=True)
        )
        for mask in masks
    )


def _mask_labels(mask: Tensor) -> Labels:
    batch: list[Label] = list(range(2 - mask.ndim, 0))
    return [*batch, "query", "key"][-mask.ndim :] if mask.ndim else []


def _cuts(
    tensors: Sequence[Tensor], labels: Sequence[Labels], sizes: dict[Label, int]
) -> list[tuple[int, Label, Cut]]:
    """All cuts of dimensions that don't broadcast, those of queries first."""
    return [
        (axis, names[cut.dim], cut)
        for tensor, names in zip(tensors, labels, strict=True)
        if isinstance(tensor, ShardTensor)
        for axis, cut in tensor.sharding.cut_axes()
        if cut.total == sizes[names[cut.dim]]
    ]


def _divide(
    cuts: Sequence[tuple[int, Label, Cut]], axes: int, group: int
) -> tuple[list[_Part], int | None]:
    """Which batch label each axis cuts, and along which one sequences are cut."""
    parts: list[_Part] = [None] * axes
    sequences: int | None = None
    for axis, label, cut in cuts:
        sizes = cut.sizes
        if label == "key heads":
            label, sizes = _HEADS, tuple(group * size for size in sizes)
        if parts[axis] is not None or axis == sequences or label in ("feature", "value"):
            continue
        if isinstance(label, str):
            sequences = axis if sequences is None else sequences
        elif all(part is None or part[0] != label for part in parts):
            parts[axis] = (label, sizes)
    if sequences is None:
        sequences = next((axis for axis, _, _ in cuts if parts[axis] is None), None)
    return parts, sequences


def _of_keys(part: _Part, group: int) -> _Part:
    """How heads of keys are cut so that those of queries find theirs; None: not at all."""
    if part is None or part[0] != _HEADS:
        return part
    if any(size % group for size in part[1]):
        return None
    return "key heads", tuple(size // group for size in part[1])


def _pieces(plan: Plan, tensors: Sequence[Tensor], keys: Division) -> list[Tensor]:
    """This rank's queries, keys and values."""
    divisions = (plan.queries, keys, keys)
    pieces = [
        operand(tensor, division.layout(names, tensor.shape), plan.queries.work)
        for tensor, names, division in zip(
            tensors, _labels(tensors, plan.grouped), divisions, strict=True
        )
    ]
    if not plan.grouped or pieces[0].shape[-3] == pieces[1].shape[-3] * plan.group:
        return pieces
    heads = pieces[0].shape[-3]
    # Heads are cut across groups: each rank takes its own out of all.
    first, _ = plan.queries.part(_HEADS, heads)
    own = torch.arange(first, first + heads).div(plan.group, rounding_mode="floor")
    own = own.to(pieces[0].device)
    return [pieces[0], *(each.index_select(-3, own) for each in pieces[1:])]


def _mask_pieces(plan: Plan, masks: Sequence[Tensor]) -> list[Tensor]:
    """This rank's rows of masks, with a dimension for queries and one for keys."""
    pieces = [
        operand(mask, plan.queries.layout(_mask_labels(mask), mask.shape), plan.queries.work)
        for mask in masks
    ]
    return [each[(None,) * (2 - each.ndim)] if each.ndim < 2 else each for each in pieces]


def _attend(pieces: Sequence[Tensor], masks: Sequence[Tensor], ring: Ring, grouped: bool) -> Tensor:
    """Attention of pieces: torch's own where it is right for them, else block by block."""
    query, key, value = pieces
    alone = ring.group is None and not masks and not (ring.causal and ring.first_query)
    if alone and min(query.numel(), key.numel(), value.numel()):
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=ring.causal, scale=ring.scale, enable_gqa=grouped
        )
    if not grouped or query.shape[-3] == key.shape[-3]:
        return attend(query, key, value, masks, ring)
    heads = key.shape[-3]
    pair = (heads, query.shape[-3] // max(heads, 1))
    key, value = key.unsqueeze(-3), value.unsqueeze(-3)  # (..., heads, 1, S, E)
    rows = [_in_groups(each, pair) for each in masks]
    return attend(_in_groups(query, pair), key, value, rows, ring).flatten(-4, -3)


def _in_groups(tensor: Tensor, pair: tuple[int, int]) -> Tensor:
    """Heads as groups of them; what all heads share is for all groups."""
    if tensor.ndim < 3:
        return tensor
    heads = pair if tensor.shape[-3] != 1 or pair == (1, 1) else (1, 1)
    return tensor.reshape(*tensor.shape[:-3], *heads, *tensor.shape[-2:])
