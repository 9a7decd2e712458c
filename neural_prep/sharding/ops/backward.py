"""Runs autograd's engine for sharded results with torch's functions still going to their versions.

By default torch runs `backward` of a subclass with that switched off, and with it hooks, recomputed
checkpoints and the user's own autograd functions, which would then see pieces for wholes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import sharded
from neural_prep.sharding.shard_tensor import shards_in


@sharded(torch.Tensor.backward, always=True)
def backward_of(
    tensor: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Gradients of one result."""
    backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


@sharded(torch.autograd.backward, always=True)
def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """Gradients of results, accumulated in leaves."""
    outputs = _as_tuple(tensors)
    if grad_tensors is None:
        grad_tensors = grad_variables
    leaves = () if inputs is None else _as_tuple(inputs)
    if inputs is not None and not leaves:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    _engine_run_backward(
        outputs,
        _gradients(outputs, grad_tensors),
        create_graph if retain_graph is None else retain_graph,
        create_graph,
        leaves,
        allow_unreachable=True,
        accumulate_grad=True,
    )


@sharded(torch.autograd.grad, always=True)
def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of results with respect to inputs."""
    results, sources = _as_tuple(outputs), _as_tuple(inputs)
    if is_grads_batched:
        raise refusal("grad", next(shards_in([results, sources])).sharding, "takes no batches")
    if materialize_grads and allow_unused is False:
        raise ValueError("Expected allow_unused to be True or not passed when materialize_grads")
    found = _engine_run_backward(
        results,
        _gradients(results, grad_outputs),
        create_graph if retain_graph is None else retain_graph,
        create_graph,
        sources,
        materialize_grads if allow_unused is None else allow_unused,
        accumulate_grad=False,
    )
    if not materialize_grads:
        return tuple(found)
    return tuple(
        torch.zeros_like(source, requires_grad=create_graph) if each is None else each
        for each, source in zip(found, sources, strict=True)
    )


def _gradients(outputs: Sequence[Any], given: Any) -> tuple[Tensor | None, ...]:
    """A gradient for each result; of a scalar it may be left out."""
    gradients = (None,) * len(outputs) if given is None else _as_tuple(given)
    if len(gradients) != len(outputs):
        raise RuntimeError(f"got {len(outputs)} tensors and {len(gradients)} gradients")
    return tuple(
        _gradient(output, gradient) for output, gradient in zip(outputs, gradients, strict=True)
    )


def _gradient(output: Any, gradient: Tensor | None) -> Tensor | None:
    if gradient is None and isinstance(output, Tensor) and output.requires_grad:
        if output.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        return torch.ones_like(output)
    if gradient is not None and gradient.shape != getattr(output, "shape", gradient.shape):
        raise RuntimeError(
            f"Mismatch in shape: a gradient has a shape of {list(gradient.shape)} and its result "
            f"of {list(output.shape)}."
        )
    return gradient


def _as_tuple(given: Any) -> tuple[Any, ...]:
    """One or several."""
    if isinstance(given, Mapping):
        return tuple(given.values())
    if isinstance(given, Tensor) or hasattr(given, "output_nr"):  # the latter is an edge
        return (given,)
    return tuple(given)
