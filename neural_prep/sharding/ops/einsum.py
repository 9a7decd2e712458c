"""Einstein sums: an equation's letters are the labels of a sharded product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from neural_prep.sharding.contractions import product, raise_as_torch
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.shard_tensor import ShardTensor


@sharded("einsum")
def einsum(equation: str, *operands: Tensor) -> ShardTensor:
    """The sum of products that an equation names; lists of labels have become an equation here."""
    terms, _, output = equation.replace(" ", "").partition("->")
    names = terms.split(",")
    if len(names) != len(operands) or not _is_well_formed(equation):
        raise_as_torch(torch.einsum, equation, *operands)
    labels = [
        _labels(term, tensor.ndim - len(term.replace("...", "")))
        for term, tensor in zip(names, operands, strict=True)
    ]
    dots = max((-min(each, default=0) for each in labels), default=0)
    result = _labels(output, dots) if "->" in equation else _implicit(labels, dots)
    if not set(result) <= {label for each in labels for label in each}:
        raise_as_torch(torch.einsum, equation, *operands)

    def compute(*pieces: Tensor) -> Tensor:
        return torch.einsum(equation, *pieces)

    return product(compute, operands, labels, result)


def _is_well_formed(equation: str) -> bool:
    """Whether it has letters, commas, one arrow and dots by three; torch says what is wrong."""
    bare = equation.replace(" ", "").replace("...", "").replace("->", "", 1).replace(",", "")
    return bare == "" or (bare.isascii() and bare.isalpha())


def _labels(term: str, dots: int) -> list[int]:
    """A term's labels: letters' codes, and negative numbers for what the dots stand for.

    >>> _labels("...ij", 2)
    [-2, -1, 105, 106]
    """
    before, found, after = term.partition("...")
    inner = range(-dots, 0) if found else ()
    return [*map(ord, before), *inner, *map(ord, after)]


def _implicit(labels: Sequence[Sequence[int]], dots: int) -> list[int]:
    """What the result has by default: the dots, then letters that occur once, in their order."""
    counts = Counter(label for each in labels for label in each if label > 0)
    return [*range(-dots, 0), *sorted(label for label, count in counts.items() if count == 1)]
