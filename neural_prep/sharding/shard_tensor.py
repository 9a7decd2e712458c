"""A global tensor of which every rank holds a piece, on which unmodified torch code runs.

`ShardTensor` is a wrapper subclass: to torch it has the global shape, and the autograd graph is on
it, so that hooks, checkpointing and a user's own autograd functions see global tensors. Functions
of torch reach `__torch_function__`, which calls the sharded version from `ops/` or refuses. What
the autograd engine does by itself reaches `__torch_dispatch__`. A graph on the local pieces was
tried and is silently wrong where a user's autograd function returns a gradient.

Gradients: a replicated value is one value, and its gradient is whole and equal on every rank. A cut
value's gradient is cut alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from neural_prep.sharding.adjoint import apply, split
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.redistribute import relayout
from neural_prep.sharding.registry import is_always_sharded, name_of, version_of

# What asks for the tensor as a whole, and is answered by its wrapper.
_METADATA = frozenset(
    (
        *("shape", "dtype", "device", "layout", "requires_grad"),
        *("requires_grad_", "grad", "grad_fn", "is_leaf", "ndim"),
        *("names", "size", "dim", "ndimension", "numel"),
        *("nelement", "is_floating_point", "is_complex", "is_signed", "is_cuda"),
        *("is_cpu", "is_sparse", "is_quantized", "is_meta", "is_mkldnn"),
        *("is_mps", "is_xpu", "is_nested", "element_size", "itemsize"),
        *("nbytes", "__len__", "__hash__", "register_hook", "register_post_accumulate_grad_hook"),
        *(
            "retain_grad",
            "retains_grad",
            "backward",
            "_backward_hooks",
            "_post_accumulate_grad_hooks",
        ),
        *("_version", "output_nr", "get_device", "is_inference", "_is_view"),
        *("is_conj", "is_neg", "_is_zerotensor", "is_contiguous", "stride"),
        *("is_same_size", "__format__", "_base", "detach", "clone"),
    )
)
_VALUES = frozenset(
    (
        *("item", "tolist", "numpy", "__bool__"),
        *("__float__", "__int__", "__index__", "__complex__"),
    )
)


class ShardTensor(Tensor):
    """This rank's piece of a global tensor.

    Attributes:
        sharding: How it is cut.
    """

    _local: Tensor
    sharding: Layout

    @staticmethod
    def __new__(cls, local: Tensor, layout: Layout) -> ShardTensor:
        """A leaf around a piece."""
        shape = layout.global_shape(local.shape)
        self: ShardTensor = Tensor._make_wrapper_subclass(
            cls, shape, dtype=local.dtype, device=local.device
        )
        self._local = local.detach()
        self.sharding = layout
        return self

    def __init__(self, local: Tensor, layout: Layout) -> None:
        """Use `from_local` or `scatter`, which check and keep gradients."""

    @classmethod
    def from_local(cls, local: Tensor, layout: Layout) -> ShardTensor:
        """A tensor of which every rank gives its piece.

        Args:
            local: This rank's piece; its gradient is that piece's.
            layout: How the whole is cut; every rank gives the same.

        Raises:
            ValueError: on all ranks, if a piece does not fit the layout, or ranks disagree.
        """
        _check_pieces(local, layout)
        return from_local(local, layout)

    @classmethod
    def scatter(  # type: ignore[override]  # of tensors it is another, rarely used function
        cls,
        full: Tensor,
        mesh: DeviceMesh,
        cut: Mapping[str, int] | None = None,
        sizes: Sequence[Sequence[int]] | None = None,
    ) -> ShardTensor:
        """Cuts a tensor that every rank has whole; its gradient is whole on every rank.

        Args:
            full: The same on every rank.
            mesh: The ranks.
            cut: By mesh axis, the dimension that is cut along it.
            sizes: For each entry of `cut`, in its order, every rank's part.

        Raises:
            ValueError: if the cut does not fit the tensor or the mesh.
        """
        layout = Layout.of(mesh, full.shape, cut, sizes)
        for axis, part in layout.cut_axes():
            full = split(full, part.sizes, part.dim, layout.group(axis))
        return from_local(full, layout)

    @property
    def local(self) -> Tensor:
        """This rank's piece, an ordinary tensor; its gradient is this piece's."""
        return to_local(self)

    def full(self) -> Tensor:
        """The whole tensor, on every rank; backward takes this rank's slice of the gradient."""
        return to_local(self.redistribute(Layout.replicated(self.sharding.mesh)))

    def redistribute(self, layout: Layout) -> ShardTensor:
        """The same tensor, cut otherwise.

        Raises:
            ValueError: if the layout is of another mesh or another shape.
        """
        if layout == self.sharding:
            return self
        return from_local(relayout(to_local(self), self.sharding, layout), layout)

    def __repr__(self) -> str:  # type: ignore[override]  # torch passes contents of its own
        """The piece, the global shape and the cuts."""
        return f"ShardTensor({self._local!r}, shape={list(self.shape)}, {self.sharding})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = name_of(func)
        if name in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        version = version_of(func)
        layouts = [shard.sharding for shard in shards_in((args, kwargs))]
        replicated = all(layout.is_replicated for layout in layouts)
        if version is not None and not (replicated and not is_always_sharded(func)):
            return version(*args, **kwargs)
        if replicated and not _is_in_place(name, kwargs):
            return _run_replicated(func, args, kwargs, layouts)
        raise refusal(name, next((each for each in layouts if not each.is_replicated), layouts[0]))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares a placeholder
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What the autograd engine itself needs; it meets layouts that are alike."""
        kwargs = dict(kwargs or {})
        shards = list(shards_in((args, kwargs)))
        layout = shards[0].sharding
        if func.overloadpacket not in _ENGINE or any(s.sharding != layout for s in shards):
            raise refusal(str(func.overloadpacket.__name__), layout)
        locals_ = [arg._local if isinstance(arg, ShardTensor) else arg for arg in args]
        result = func(*locals_, **kwargs)
        if func.overloadpacket in _ENGINE_IN_PLACE:
            return args[0]
        return ShardTensor(result, layout)


_aten = torch.ops.aten
_ENGINE_IN_PLACE = {_aten.add_, _aten.copy_, _aten.zero_}
_ENGINE = _ENGINE_IN_PLACE | {
    *(_aten.detach, _aten.clone, _aten.add, _aten.ones_like, _aten.zeros_like, _aten.alias),
    *(_aten.empty_like, _aten.mul, _aten.neg),
}


def from_local(local: Tensor, layout: Layout) -> ShardTensor:
    """`ShardTensor.from_local` without its check: the layout was agreed on."""
    result = apply(_FromLocal, local, layout)
    assert isinstance(result, ShardTensor)
    return result


def to_local(shard: Tensor) -> Tensor:
    """The piece of a ShardTensor; an ordinary tensor as it is, for every rank has it whole."""
    if not isinstance(shard, ShardTensor):
        return shard
    return apply(_ToLocal, shard)


def shards_in(tree: Any) -> Iterator[ShardTensor]:
    """All sharded tensors in arguments, however nested."""
    if isinstance(tree, ShardTensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from shards_in(each)
    elif isinstance(tree, dict):
        for each in tree.values():
            yield from shards_in(each)


def map_tensors(change: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same arguments or results with each tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, list | tuple):
        changed = [map_tensors(change, each) for each in tree]
        if hasattr(tree, "_fields"):  # a named tuple
            return type(tree)(*changed)
        return type(tree)(changed)  # torch's own named results take a sequence too
    if isinstance(tree, dict):
        return {key: map_tensors(change, each) for key, each in tree.items()}
    return tree


def refusal(name: str, layout: Layout, why: str = "has no sharded version") -> NotImplementedError:
    """What to raise, on every rank alike, for what would not be right."""
    return NotImplementedError(
        f"{name} of a tensor that is {layout} {why}; redistribute it, or compute with x.full()"
    )


class _FromLocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, layout: Layout) -> ShardTensor:
        ctx.layout = layout
        return ShardTensor(local, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return to_local(_laid_out(grad, ctx.layout)), None


class _ToLocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: ShardTensor) -> Tensor:
        ctx.layout = shard.sharding
        return shard._local.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return from_local(grad, ctx.layout)


def _laid_out(grad: Tensor, layout: Layout) -> ShardTensor:
    """A gradient in the layout of what it is of; an ordinary tensor is whole on every rank."""
    if not isinstance(grad, ShardTensor):
        grad = from_local(grad, Layout.replicated(layout.mesh))
    return grad if grad.sharding == layout else grad.redistribute(layout)


def _is_in_place(name: str, kwargs: Mapping[str, Any]) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    return (
        in_place
        or name in ("__setitem__", "__set__")
        or name.startswith("__i")
        or (kwargs.get("inplace") is True or kwargs.get("out") is not None)
    )


def _run_replicated(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    layouts: Sequence[Layout],
) -> Any:
    """Runs a function on values that every rank has whole."""
    layout = Layout.replicated(layouts[0].mesh)
    result = func(*map_tensors(to_local, list(args)), **map_tensors(to_local, dict(kwargs)))
    if name_of(func) in _VALUES:
        return result
    return map_tensors(lambda tensor: from_local(tensor, layout), result)


def _check_pieces(local: Tensor, layout: Layout) -> None:
    """Compares all ranks' pieces and layouts."""
    mesh = layout.mesh
    mine = (tuple(local.shape), local.dtype, layout.cuts, tuple(mesh.get_coordinate() or ()))
    found: list[Any] = [mine]
    for axis in range(mesh.ndim):
        lists: list[Any] = [None] * mesh.size(axis)
        dist.all_gather_object(lists, found, mesh.get_group(axis))
        found = [each for part in lists for each in part]
    _, dtype, cuts, _ = found[0]
    shape = layout.global_shape(found[0][0])
    for piece, its_dtype, its_cuts, place in found:
        if (its_dtype, its_cuts) != (dtype, cuts):
            raise ValueError(
                f"from_local: the rank at {place} of the mesh gives {its_dtype} and {its_cuts}, "
                f"the first {dtype} and {cuts}; expected the same"
            )
        expected = list(shape)
        for axis, cut in layout.cut_axes():
            if cut.dim >= len(shape):
                raise ValueError(f"from_local: dim {cut.dim} is cut, but pieces are {list(piece)}")
            expected[cut.dim] = cut.sizes[place[axis]]
        if list(piece) != expected:
            raise ValueError(
                f"from_local: the rank at {place} of the mesh gives a piece of {list(piece)}; "
                f"expected {expected}"
            )
