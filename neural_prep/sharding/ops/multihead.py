"""Multi-head attention as `nn.MultiheadAttention` calls it: projections around sharded attention.

Inside, a sequence is cut rather than features, so that heads are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from neural_prep.sharding.contractions import raise_as_torch, refuse_options
from neural_prep.sharding.layout import Cut, Layout, split_sizes
from neural_prep.sharding.operands import layout_of
from neural_prep.sharding.ops.attention import attention, attention_and_weights, plan_attention
from neural_prep.sharding.ops.linear import linear
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.shard_tensor import ShardTensor, from_local, shards_in, to_local
from neural_prep.sharding.trees import map_tensors


@sharded("multi_head_attention_forward", random=True)
def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Projects, attends and projects; `(L, N, E)` or `(L, E)`, as torch has it."""
    call = dict(locals())
    layout = next(shards_in(call)).sharding
    if training and dropout_p > 0:
        raise refusal("multi_head_attention_forward", layout, "is not sharded with dropout")
    added = {
        "bias_k": bias_k is not None or bias_v is not None,
        "add_zero_attn": add_zero_attn,
        "static_k": static_k is not None or static_v is not None,
    }
    if any(added.values()):
        if all(each.sharding.is_replicated for each in shards_in(call)):
            return _run_whole(call, layout)
        refuse_options("multi_head_attention_forward", layout, added)
    masks_fit = _masks_fit(query, key, key_padding_mask, attn_mask, num_heads)
    if not masks_fit or not _inputs_fit(query, key, value, num_heads, embed_dim_to_check):
        raise_as_torch(F.multi_head_attention_forward, **call)
    if is_causal and attn_mask is None:
        raise_as_torch(F.multi_head_attention_forward, **call)
    weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    projected = _project_all(
        _with_sequences_cut((query, key, value), layout),
        weights if use_separate_proj_weight else in_proj_weight,
        in_proj_bias,
    )
    batched = query.ndim == 3
    heads = [_heads(each, num_heads, batched) for each in projected]
    causal = is_causal and key_padding_mask is None and not need_weights
    masks = []
    if attn_mask is not None and not causal:
        masks.append(_taking_part(attn_mask, heads[0].shape[0], num_heads))
    if key_padding_mask is not None:
        masks.append(_padding(key_padding_mask))
    result, shares = _attend(heads, masks, causal=causal, need_weights=need_weights)
    output = linear(_joined(result, batched), out_proj_weight, out_proj_bias)
    return output, None if shares is None else _shares(shares, average_attn_weights, batched)


@sharded("_nested_tensor_from_mask_left_aligned", always=True)
def is_left_aligned(tensor: Tensor, mask: Tensor) -> bool:
    """Keeps `nn.TransformerEncoder` from nested tensors, which are never sharded."""
    return False


def _run_whole(call: dict[str, Any], layout: Layout) -> tuple[Tensor, Tensor | None]:
    """Torch's own, on values that every rank has whole."""
    result = F.multi_head_attention_forward(**map_tensors(to_local, call))
    found: tuple[Tensor, Tensor | None] = map_tensors(
        lambda tensor: from_local(tensor, Layout.replicated(layout.mesh)), result
    )
    return found


def _inputs_fit(query: Tensor, key: Tensor, value: Tensor, heads: int, features: int) -> bool:
    """Whether the inputs' shapes are as torch demands."""
    return (
        query.ndim in (2, 3)
        and {key.ndim, value.ndim} == {query.ndim}
        and key.shape[:-1] == value.shape[:-1]
        and key.shape[1:-1] == query.shape[1:-1]
        and query.shape[-1] == features
        and features % heads == 0
    )


def _masks_fit(
    query: Tensor, key: Tensor, padding: Tensor | None, mask: Tensor | None, heads: int
) -> bool:
    """Whether the masks' shapes and types are as torch demands."""
    batch = query.shape[1:-1]
    scores = (query.shape[0], key.shape[0])
    return (
        all(
            each is None or each.dtype == torch.bool or each.is_floating_point()
            for each in (padding, mask)
        )
        and (padding is None or padding.shape == (*batch, key.shape[0]))
        and (mask is None or mask.shape in (scores, (prod(batch) * heads, *scores)))
    )


def _attend(
    heads: Sequence[Tensor], masks: Sequence[Tensor], *, causal: bool, need_weights: bool
) -> tuple[ShardTensor, ShardTensor | None]:
    """Attention of heads, and its weights where they are asked for."""
    query, key, value = heads
    plan = plan_attention(query, key, value, masks)
    if plan is None:
        mask = masks[0] if masks else None
        raise_as_torch(F.scaled_dot_product_attention, query, key, value, mask)
    if need_weights:
        return attention_and_weights(plan, query, key, value, masks)
    return attention(plan, query, key, value, masks, causal=causal), None


def _with_sequences_cut(inputs: Sequence[Tensor], like: Layout) -> list[ShardTensor]:
    """Cuts sequences where features are cut; what was one tensor still is."""
    changed: dict[int, ShardTensor] = {}
    for each in inputs:
        if id(each) in changed:
            continue
        layout = layout_of(each, like)
        shard = each if isinstance(each, ShardTensor) else from_local(each, layout)
        axis = layout.axis_of(each.ndim - 1)
        if axis is not None and layout.axis_of(0) is None:
            sizes = split_sizes(each.shape[0], layout.mesh.size(axis))
            shard = shard.redistribute(layout.with_cut(axis, Cut(0, sizes)))
        changed[id(each)] = shard
    return [changed[id(each)] for each in inputs]


def _project_all(
    inputs: Sequence[ShardTensor],
    weights: Sequence[Tensor | None] | Tensor | None,
    bias: Tensor | None,
) -> list[ShardTensor]:
    """Queries, keys and values by weights of their own or packed; self-attention at one stroke."""
    assert weights is not None
    query, key, value = inputs
    if isinstance(weights, Tensor) and query is key is value:
        whole = _features_whole(linear(query, weights, bias))
        return [from_local(part, whole.sharding) for part in whole.local.chunk(3, -1)]
    parts = weights.chunk(3) if isinstance(weights, Tensor) else weights
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    projected = []
    for each, weight, its_bias in zip(inputs, parts, biases, strict=True):
        assert weight is not None
        projected.append(linear(each, weight, its_bias))
    return projected


def _features_whole(tensor: ShardTensor) -> ShardTensor:
    axis = tensor.sharding.axis_of(tensor.ndim - 1)
    return tensor if axis is None else tensor.redistribute(tensor.sharding.with_cut(axis, None))


def _heads(tensor: ShardTensor, heads: int, batched: bool) -> ShardTensor:
    """`(L, N, E)` or `(L, E)` as `(N, heads, L, E / heads)`."""
    tensor = _features_whole(tensor)
    local = tensor.local if batched else tensor.local.unsqueeze(1)
    local = local.reshape(*local.shape[:2], heads, local.shape[-1] // heads).permute(1, 2, 0, 3)
    return from_local(local, tensor.sharding.with_dims({0: 2, 1: 0} if batched else {0: 2}))


def _joined(tensor: ShardTensor, batched: bool) -> ShardTensor:
    """`(N, heads, L, E / heads)` as `(L, N, E)` or `(L, E)`."""
    local = tensor.local.permute(2, 0, 1, 3).flatten(2)
    if batched:
        return from_local(local, tensor.sharding.with_dims({0: 1, 2: 0}))
    return from_local(local.squeeze(1), tensor.sharding.with_dims({2: 0}))


def _shares(weights: ShardTensor, averaged: bool, batched: bool) -> ShardTensor:
    """`(N, heads, L, S)` weights as torch returns them."""
    local, layout = weights.local, weights.sharding
    if averaged:
        local, layout = local.mean(1), layout.with_dims({0: 0, 2: 1, 3: 2})
    if not batched:
        dims = {dim: dim - 1 for dim in range(1, local.ndim)}
        local, layout = local.squeeze(0), layout.with_dims(dims)
    return from_local(local, layout)


def _taking_part(mask: Tensor, batch: int, heads: int) -> Tensor:
    """A mask of scores, true where a key takes part: `(L, S)` or `(N, heads, L, S)`."""
    if isinstance(mask, ShardTensor):
        layout = mask.sharding
        if mask.ndim == 3 and (axis := layout.axis_of(0)) is not None:
            mask = mask.redistribute(layout.with_cut(axis, None))
            layout = mask.sharding
        dims = {1: 2, 2: 3} if mask.ndim == 3 else {0: 0, 1: 1}
        return from_local(_taking_part(to_local(mask), batch, heads), layout.with_dims(dims))
    mask = ~mask if mask.dtype == torch.bool else mask
    return mask.reshape(batch, heads, *mask.shape[1:]) if mask.ndim == 3 else mask


def _padding(mask: Tensor) -> Tensor:
    """A mask of keys, true where one takes part, as `(N, 1, 1, S)`."""
    if isinstance(mask, ShardTensor):
        dims = {0: 0, 1: 3} if mask.ndim == 2 else {0: 3}
        layout = mask.sharding.with_dims(dims)
        return from_local(_padding(to_local(mask)), layout)
    mask = ~mask if mask.dtype == torch.bool else mask
    return (mask if mask.ndim == 2 else mask[None])[:, None, None]
