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
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from neural_prep.sharding.adjoint import apply, split
from neural_prep.sharding.agreement import agree_on_pieces
from neural_prep.sharding.in_place import check_fit, check_leaf
from neural_prep.sharding.layout import Layout
from neural_prep.sharding.names import METADATA, is_view
from neural_prep.sharding.redistribute import relayout
from neural_prep.sharding.refusal import refusal
from neural_prep.sharding.registry import name_of, run_version, version_of
from neural_prep.sharding.saving import load, save


class ShardTensor(Tensor):
    """This rank's piece of a global tensor.

    Attributes:
        sharding: How it is cut.
    """

    _local: Tensor
    _aliased: bool  # whether it has, or is, a view of the same memory, or ever had
    sharding: Layout

    @staticmethod
    def __new__(cls, local: Tensor, layout: Layout) -> ShardTensor:
        """A leaf around a piece."""
        shape = layout.global_shape(local.shape)
        self: ShardTensor = Tensor._make_wrapper_subclass(
            cls, shape, dtype=local.dtype, device=local.device
        )
        # Zeros without memory, as some of torch's gradients are, can't be sent.
        self._local = torch.zeros_like(local) if local._is_zerotensor() else local.detach()
        self._aliased = False
        self.sharding = layout
        return self

    def __init__(self, local: Tensor, layout: Layout) -> None:
        """Use `from_local` or `scatter`, which check and keep gradients."""

    @classmethod
    def from_local(cls, local: Tensor, layout: Layout) -> ShardTensor:
        """A tensor of which every rank gives its piece.

        Args:
            local: This rank's piece; its gradient is that piece's. It is not copied; in-place
                functions of the ShardTensor don't write to it.
            layout: How the whole is cut; every rank gives the same.

        Raises:
            ValueError: on all ranks, if a piece does not fit the layout, or ranks disagree.
        """
        return from_local(agree_on_pieces(local, layout), layout)

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
        local = full
        for axis, part in layout.cut_axes():
            local = split(local, part.sizes, part.dim, layout.group(axis))
        return from_local(_apart(local, full), layout)

    @property
    def local(self) -> Tensor:
        """This rank's piece, an ordinary tensor; its gradient is this piece's."""
        self._aliased = True
        return to_local(self)

    def full(self) -> Tensor:
        """The whole tensor, on every rank; backward takes this rank's slice of the gradient."""
        local = to_local(self)
        whole = relayout(local, self.sharding, Layout.replicated(self.sharding.mesh))
        return _apart(whole, local)

    def redistribute(self, layout: Layout) -> ShardTensor:
        """The same tensor, cut otherwise.

        Raises:
            ValueError: if the layout is of another mesh or another shape.
        """
        if layout == self.sharding:
            return self
        return from_local(relayout(to_local(self), self.sharding, layout), layout)

    def overwrite(
        self, value: Tensor, name: str = "overwrite", *, forgets: bool = False
    ) -> ShardTensor:
        """Gives this very tensor a new value, as in-place functions do.

        Args:
            value: Of the same shape; it is brought to this tensor's layout and dtype.
            name: The function that does it, for errors.
            forgets: Whether nothing of the old value is in it: its gradient is zeros then.

        Raises:
            RuntimeError: as torch does, for a leaf that requires a gradient, or where the value
                does not fit.
            NotImplementedError: if the tensor has, is, or ever had a view of the same memory.
        """
        if value is self:
            return self
        check_leaf(self)
        if self._aliased:
            why = "which is or has had a view of the same memory, would leave one of them unchanged"
            raise refusal(name, self.sharding, why)
        check_fit(self, value.shape, value.dtype)
        value = value.to(self.dtype)
        if not isinstance(value, ShardTensor):
            value = from_local(value, Layout.replicated(self.sharding.mesh))
        apply(_Overwrite, self, value.redistribute(self.sharding), forgets)
        return self

    @property
    def data(self) -> Tensor:
        """The same values without a graph."""
        self._aliased = True
        return _alias(self)

    @data.setter
    def data(self, value: Tensor) -> None:
        fits = isinstance(value, ShardTensor) and value.shape == self.shape
        if not fits or value.dtype != self.dtype:
            raise refusal("data", self.sharding, "takes a ShardTensor of the same shape and dtype")
        assert isinstance(value, ShardTensor)
        self._local = relayout(value._local, value.sharding, self.sharding)
        self._aliased = value._aliased = True

    def __repr__(self) -> str:  # type: ignore[override]  # torch passes contents of its own
        """The piece, the global shape and the cuts."""
        return f"ShardTensor({self._local!r}, shape={list(self.shape)}, {self.sharding})"

    def __format__(self, spec: str) -> str:
        """A number's own format."""
        return format(self._local.item(), spec) if self.ndim == 0 else format(str(self), spec)

    def __copy__(self) -> ShardTensor:
        """The same values; another leaf."""
        self._aliased = True
        return _alias(self).requires_grad_(self.requires_grad)  # type: ignore[return-value]

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardTensor:
        """A leaf of its own, with a copy of the gradient."""
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment"
            )
        copied = ShardTensor(self._local.clone(), self.sharding)
        memo[id(self)] = copied
        copied.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copied.grad = deepcopy(self.grad, memo)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What `pickle` and `torch.save` write; meshes can't be, so they are made again."""
        return _load, save(self._local, self.sharding, self.requires_grad)

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
        if name in METADATA and version_of(func) is None:  # `autograd.grad` is named as a property
            with torch._C.DisableTorchFunctionSubclass():
                result = func(*args, **kwargs)
        else:
            result = run_version(func, name, args, kwargs)
        if is_view(name):
            _mark_aliases(args, result)
        return result

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
        first = next(shards_in((args, kwargs)))
        layout, packet = first.sharding, func.overloadpacket
        name = str(packet.__name__)
        in_place = packet in _ENGINE_IN_PLACE
        if packet not in _ENGINE or (in_place and first is not args[0]):
            raise refusal(name, layout)
        pieces = [_engine_piece(arg, first, name) for arg in args]
        if packet is _aten.view:
            if tuple(args[1]) != tuple(first.shape):
                raise refusal(name, layout)
            pieces[1] = first._local.shape
        if in_place:
            # A new piece: others may hold the old one, as a gradient of their own for example.
            first._local = func(pieces[0].clone(), *pieces[1:], **kwargs)
            return first
        result = ShardTensor(func(*pieces, **kwargs), layout)
        if packet in _ENGINE_VIEWS:
            first._aliased = result._aliased = True
        return result


_aten = torch.ops.aten
_ENGINE_IN_PLACE = {_aten.add_, _aten.copy_, _aten.zero_}
_ENGINE_VIEWS = {_aten.alias, _aten.view}  # of a function that returns its argument
_ENGINE = _ENGINE_IN_PLACE | {
    *(_aten.detach, _aten.clone, _aten.add, _aten.ones_like, _aten.zeros_like, _aten.empty_like),
    *(_aten._to_copy, *_ENGINE_VIEWS),
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
    found: list[ShardTensor] = []
    _collect(tree, found)
    return iter(found)


def _collect(tree: Any, found: list[ShardTensor]) -> None:
    if isinstance(tree, ShardTensor):
        found.append(tree)
    elif isinstance(tree, list | tuple):
        for each in tree:
            if isinstance(each, ShardTensor | list | tuple | dict):  # most are numbers: no call
                _collect(each, found)
    elif isinstance(tree, dict):
        for each in tree.values():
            _collect(each, found)


_SAVED = torch.empty(0)


class _FromLocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, layout: Layout) -> ShardTensor:
        ctx.layout = layout
        # Checkpointing computes again when backward first asks for something that was saved, and
        # ranks with empty pieces may have saved nothing else: all must do so at the same place.
        ctx.save_for_backward(_SAVED)
        return ShardTensor(local, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors
        shard = _laid_out(grad, ctx.layout)
        # The very piece, not an alias: the engine copies a gradient that someone else holds, too,
        # before it accumulates into it, and it knows by counting holders of the tensor.
        return to_local(shard) if torch.is_grad_enabled() else shard._local, None


class _ToLocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: ShardTensor) -> Tensor:
        ctx.layout = shard.sharding
        return shard._local.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        shard = from_local(grad, ctx.layout)
        if not (torch.is_grad_enabled() or grad._is_zerotensor()):
            shard._local = grad  # see `_FromLocal`
        return shard


class _Overwrite(torch.autograd.Function):
    """The tensor itself with a new value; the old value's gradient ends here."""

    @staticmethod
    def forward(ctx: Any, tensor: ShardTensor, value: ShardTensor, forgets: bool) -> ShardTensor:
        ctx.forgets = forgets
        tensor._local = value._local
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return torch.zeros_like(grad) if ctx.forgets else None, grad, None


def _laid_out(grad: Tensor, layout: Layout) -> ShardTensor:
    """A gradient in the layout of what it is of; an ordinary tensor is whole on every rank."""
    if not isinstance(grad, ShardTensor):
        grad = from_local(grad, Layout.replicated(layout.mesh))
    if grad.sharding == layout:
        return grad
    moved: ShardTensor = grad.redistribute(layout)
    if not torch.is_grad_enabled():
        moved._local = _apart(moved._local, grad._local)
    return moved


def _mark_aliases(args: Sequence[Any], results: Any) -> None:
    """Notes that arguments and results share memory, unless they are the same tensors."""
    shards = list(shards_in(args))
    known = {id(shard) for shard in shards}
    views = [view for view in shards_in(results) if id(view) not in known]
    for shard in [*shards, *views] if views else ():
        shard._aliased = True


def _apart(tensor: Tensor, other: Tensor) -> Tensor:
    """The same values in memory of their own."""
    if tensor.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return tensor
    return tensor.clone()


def _alias(shard: ShardTensor) -> ShardTensor:
    """The same piece without a graph."""
    alias = ShardTensor(shard._local, shard.sharding)
    alias._aliased = True
    return alias


def _engine_piece(arg: Any, first: ShardTensor, name: str) -> Any:
    """A piece for work in the first tensor's layout; what the engine adds may be cut otherwise."""
    if not isinstance(arg, Tensor):
        return arg
    if arg.shape != first.shape:
        raise refusal(name, first.sharding)
    if isinstance(arg, ShardTensor):
        return relayout(arg._local, arg.sharding, first.sharding)
    return relayout(arg, Layout.replicated(first.sharding.mesh), first.sharding)


def _load(*saved: Any) -> ShardTensor:
    """A tensor that was written, on the same rank of a mesh like that which it was on."""
    local, layout, requires_grad = load(*saved)
    return ShardTensor(local, layout).requires_grad_(requires_grad)  # type: ignore[return-value]


# So that `torch.load` reads it by default, with `weights_only`.
torch.serialization.add_safe_globals([_load])
