"""Attention block by block: keys and values travel round the ranks, and no rank sees all scores.

The softmax is formed online, after Milakov and Gimelshein (arXiv:1805.02867); the ring follows Liu
et al. (arXiv:2310.01889). Backward computes the scores again from the saved logarithm of their sum,
and the keys' gradients travel with the keys, so that a rank's memory does not grow with the number
of ranks. It can be differentiated once.

Shapes: `...` batch and heads, which broadcast; L this rank's queries, S its keys, E their features,
V the values'. Masks are `(..., L or 1, all keys or 1)`: true where a key takes part, or added to
the scores. A query without any key gets 0, and gives no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from neural_prep.sharding.adjoint import apply
from neural_prep.sharding.layout import Cut
from neural_prep.sharding.transport import start_move

_BLOCK = 1024  # keys whose scores are held at once
_WORKS_IN = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@dataclass(frozen=True, slots=True)
class Ring:
    """What attention needs to know besides tensors.

    Attributes:
        scale: Factor of the scores.
        causal: Whether a query sees only keys of at most its own global index.
        first_query: Global index of this rank's first query.
        key_sizes: Every rank's keys; one entry where a rank has all of them.
        group: The ranks, where keys are cut.
    """

    scale: float
    causal: bool
    first_query: int
    key_sizes: tuple[int, ...]
    group: ProcessGroup | None


def attend(
    query: Tensor, key: Tensor, value: Tensor, masks: Sequence[Tensor], ring: Ring
) -> Tensor:
    """Attention of this rank's queries to all keys.

    Args:
        query: `(..., L, E)`.
        key: `(..., S, E)`.
        value: `(..., S, V)`.
        masks: All of them apply; they don't enlarge the batch.
        ring: The rest.

    Returns:
        `(..., L, V)`.
    """
    return apply(_Attend, ring, query, key, value, *masks)


def scores_of(
    scaled: Tensor, key: Tensor, masks: Sequence[Tensor], ring: Ring, start: int
) -> Tensor:
    """Scores of queries, already scaled, and the keys that begin at a global index."""
    scores = scaled @ key.mT  # (..., L, keys)
    count = key.shape[-2]
    for mask in masks:
        part = _columns(mask, start, count)
        if part.dtype == torch.bool:
            scores = scores.masked_fill(~part, -torch.inf)
        else:
            scores = scores + part.to(scores.dtype)
    if ring.causal:
        rows = torch.arange(scaled.shape[-2], device=key.device) + ring.first_query
        columns = torch.arange(start, start + count, device=key.device)
        scores = scores.masked_fill(columns > rows[:, None], -torch.inf)
    return scores


def _columns(mask: Tensor, start: int, count: int) -> Tensor:
    return mask if mask.shape[-1] == 1 else mask.narrow(-1, start, count)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ring: Ring, query: Tensor, key: Tensor, value: Tensor, *masks: Tensor
    ) -> Tensor:
        work = _WORKS_IN.get(query.dtype, query.dtype)
        scaled = query.to(work) * ring.scale
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])  # type: ignore[no-untyped-call]
        rows = (*batch, query.shape[-2])
        highest = scaled.new_full((*rows, 1), -torch.inf)
        total = scaled.new_zeros((*rows, 1))
        result = scaled.new_zeros((*rows, value.shape[-1]))
        keys, values = key, value
        for step, start in _steps(ring):
            coming = _pass_on((keys, values), step, ring)
            for first, *part in _parts(start, keys, values, ring, query.shape[-2]):
                some_keys, some_values = (each.to(work) for each in part)
                scores = scores_of(scaled, some_keys, masks, ring, first)
                now = torch.maximum(highest, scores.amax(-1, keepdim=True))
                safe = now.masked_fill(now == -torch.inf, 0)
                weights, shrink = torch.exp(scores - safe), torch.exp(highest - safe)
                total = total * shrink + weights.sum(-1, keepdim=True)
                result = result * shrink + weights @ some_values
                highest = now
            keys, values = coming()
        empty = total == 0
        result = (result / total.masked_fill(empty, 1)).to(query.dtype)
        # Weights are exp(scores - logarithm): zeros for a query that sees nothing.
        logarithm = (highest + total.log()).masked_fill(empty, torch.inf)
        ctx.ring = ring
        ctx.save_for_backward(query, key, value, result, logarithm, *masks)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Not torch's `once_differentiable`: it says nothing where the gradient needs none itself.
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "scaled_dot_product_attention of a cut tensor has one derivative, and create_graph "
                "asks for more; compute with x.full()"
            )
        ring: Ring = ctx.ring
        query, key, value, result, logarithm, *masks = ctx.saved_tensors
        work = logarithm.dtype
        grad = grad.to(work)
        scaled = query.to(work) * ring.scale
        own = (grad * result.to(work)).sum(-1, keepdim=True)
        to_query = torch.zeros_like(scaled)
        to_masks = [
            torch.zeros_like(mask, dtype=work) if needed else None
            for mask, needed in zip(masks, ctx.needs_input_grad[4:], strict=True)
        ]
        keys, values = key, value
        sums = [torch.zeros_like(each, dtype=work) for each in (key, value)]
        for step, start in _steps(ring):
            coming = _pass_on((keys, values), step, ring)
            for first, *part in _parts(start, keys, values, ring, query.shape[-2]):
                some_keys, some_values = (each.to(work) for each in part)
                count = some_keys.shape[-2]
                scores = scores_of(scaled, some_keys, masks, ring, first)
                weights = torch.exp(scores - logarithm)
                to_scores = weights * (grad @ some_values.mT - own)
                to_query += (to_scores @ some_keys).sum_to_size(to_query.shape)
                to_keys, to_values = (each.narrow(-2, first - start, count) for each in sums)
                to_keys += (to_scores.mT @ scaled).sum_to_size(to_keys.shape)
                to_values += (weights.mT @ grad).sum_to_size(to_values.shape)
                for to_mask in to_masks:
                    if to_mask is not None:
                        columns = _columns(to_mask, first, count)
                        columns += to_scores.sum_to_size(columns.shape)
            keys, values = coming()
            sums = _pass_on(sums, step, ring, home=True)()
        to_key, to_value = sums
        return (
            None,
            (to_query * ring.scale).to(query.dtype),
            to_key.to(key.dtype),
            to_value.to(value.dtype),
            *(
                None if each is None else each.to(mask.dtype)
                for each, mask in zip(to_masks, masks, strict=True)
            ),
        )


def _steps(ring: Ring) -> Iterator[tuple[int, int]]:
    """The steps of a round, with the global index of the first key that is here then."""
    count = len(ring.key_sizes)
    rank = dist.get_rank(ring.group) if count > 1 else 0
    starts = Cut(0, ring.key_sizes).starts
    for step in range(count):
        yield step, starts[(rank - step) % count]


def _pass_on(
    tensors: Sequence[Tensor], step: int, ring: Ring, *, home: bool = False
) -> Callable[[], list[Tensor]]:
    """Starts to send blocks to the next rank; what it returns waits for the previous one's.

    After the last step blocks stay, unless they are to come home.
    """
    count = len(ring.key_sizes)
    if count == 1 or (step + 1 == count and not home):
        return lambda: list(tensors)
    rank = dist.get_rank(ring.group)
    coming = ring.key_sizes[(rank - step - 1) % count]
    shapes = [(*each.shape[:-2], coming, each.shape[-1]) for each in tensors]
    sent = torch.cat([each.reshape(-1) for each in tensors])
    lengths = [prod(shape) for shape in shapes]
    send, receive = [0] * count, [0] * count
    send[(rank + 1) % count], receive[(rank - 1) % count] = len(sent), sum(lengths)
    wait = start_move(sent, send, receive, ring.group)

    def received() -> list[Tensor]:
        parts = torch.split(wait(), lengths)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    return received


def _parts(
    start: int, key: Tensor, value: Tensor, ring: Ring, queries: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Parts of a block whose scores are held at once, but for those that no query sees."""
    count = key.shape[-2]
    if ring.causal:
        count = min(count, ring.first_query + queries - start)
    for first in range(0, count, _BLOCK):
        size = min(_BLOCK, count - first)
        yield start + first, key.narrow(-2, first, size), value.narrow(-2, first, size)
