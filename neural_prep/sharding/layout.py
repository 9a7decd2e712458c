"""How a global tensor is cut over a mesh of ranks: for each mesh axis a dimension and sizes.

Pieces are consecutive, in order of the ranks along the axis, and may be uneven or empty. An axis
without a cut has the same values on all of its ranks: the tensor is replicated along it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from weakref import ReferenceType, ref

from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh


def split_sizes(total: int, parts: int) -> tuple[int, ...]:
    """Sizes of `parts` contiguous pieces that add up to `total`.

    Sizes differ by at most one, larger pieces first; pieces may be empty.

    Raises:
        ValueError: if `total` is negative or `parts` is not positive.

    >>> split_sizes(10, 4)
    (3, 3, 2, 2)
    """
    if total < 0 or parts < 1:
        raise ValueError(f"cannot split {total} items into {parts} parts")
    base, extra = divmod(total, parts)
    return tuple(base + (part < extra) for part in range(parts))


@dataclass(frozen=True, slots=True)
class Cut:
    """A dimension that is cut along one mesh axis.

    Attributes:
        dim: The dimension, not negative.
        sizes: Each rank's part of it.
    """

    dim: int
    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        """The whole dimension's size."""
        return sum(self.sizes)

    def start(self, rank: int) -> int:
        """Global index of a rank's first element.

        >>> Cut(0, (3, 0, 2)).start(2)
        3
        """
        return sum(self.sizes[:rank])

    @property
    def starts(self) -> tuple[int, ...]:
        """Each rank's first global index.

        >>> Cut(0, (3, 0, 2)).starts
        (0, 3, 3)
        """
        return tuple(accumulate(self.sizes, initial=0))[:-1]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a mesh does to a tensor's dimensions.

    Attributes:
        mesh: The ranks; its axes have names.
        cuts: A cut, or None, for each axis of the mesh.
    """

    mesh: DeviceMesh
    cuts: tuple[Cut | None, ...]
    _cut_axes: tuple[tuple[int, Cut], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = tuple((axis, cut) for axis, cut in enumerate(self.cuts) if cut is not None)
        object.__setattr__(self, "_cut_axes", found)  # asked for many times in each call
        names = self.mesh.mesh_dim_names
        if names is None:
            raise ValueError("the mesh's axes have no names; give it mesh_dim_names")
        if len(self.cuts) != self.mesh.ndim:
            raise ValueError(
                f"{len(self.cuts)} cuts for the mesh axes {', '.join(names)}; give one for each"
            )
        dims: dict[int, str] = {}
        for axis, cut in self.cut_axes():
            if len(cut.sizes) != self.mesh.size(axis) or min(cut.sizes) < 0:
                raise ValueError(
                    f"dim {cut.dim} is cut into {list(cut.sizes)} along {names[axis]}, which has "
                    f"{self.mesh.size(axis)} ranks; give each of them a size of at least 0"
                )
            if cut.dim < 0:
                raise ValueError(f"dim {cut.dim} along {names[axis]}; count dims from the front")
            if cut.dim in dims:
                raise ValueError(
                    f"dim {cut.dim} is cut along both {dims[cut.dim]} and {names[axis]}; "
                    "cut a dimension along one axis"
                )
            dims[cut.dim] = names[axis]

    @classmethod
    def of(
        cls,
        mesh: DeviceMesh,
        shape: Sequence[int],
        cut: Mapping[str, int] | None = None,
        sizes: Sequence[Sequence[int]] | None = None,
    ) -> Layout:
        """The layout of a global tensor.

        Args:
            mesh: The ranks.
            shape: The global shape.
            cut: By mesh axis, the dimension that is cut along it; negative ones count from the end.
            sizes: For each entry of `cut`, in its order, every rank's part; as even as can be where
                it is left out.

        Raises:
            ValueError: if an axis or a dimension is not there, or sizes don't add up to it.
        """
        names = mesh.mesh_dim_names or ()
        cut = dict(cut or {})
        if sizes is not None and len(sizes) != len(cut):
            raise ValueError(f"{len(sizes)} lists of sizes for {len(cut)} cuts; give one for each")
        cuts: list[Cut | None] = [None] * mesh.ndim
        for number, (name, dim) in enumerate(cut.items()):
            if name not in names:
                raise ValueError(f"{name} is no axis of the mesh; it has {', '.join(names)}")
            if not -len(shape) <= dim < len(shape):
                raise ValueError(f"dim {dim} is cut along {name}, but the shape is {list(shape)}")
            axis, dim = names.index(name), dim % len(shape)
            given = split_sizes(shape[dim], mesh.size(axis)) if sizes is None else sizes[number]
            if sum(given) != shape[dim]:
                raise ValueError(
                    f"sizes {list(given)} along {name} add up to {sum(given)}; "
                    f"dim {dim} has {shape[dim]}"
                )
            cuts[axis] = Cut(dim, tuple(given))
        return cls(mesh, tuple(cuts))

    @classmethod
    def replicated(cls, mesh: DeviceMesh) -> Layout:
        """The layout of a tensor that every rank has whole."""
        return cls(mesh, (None,) * mesh.ndim)

    @property
    def is_replicated(self) -> bool:
        """Whether nothing is cut."""
        return not self._cut_axes

    def cut_axes(self) -> tuple[tuple[int, Cut], ...]:
        """The axes that cut a dimension, with their cuts."""
        return self._cut_axes

    def axis_of(self, dim: int) -> int | None:
        """The axis along which a dimension is cut; None: it is whole."""
        return next((axis for axis, cut in self.cut_axes() if cut.dim == dim), None)

    def rank(self, axis: int) -> int:
        """This rank's place along an axis."""
        return _place(self.mesh).ranks[axis]

    def group(self, axis: int) -> ProcessGroup:
        """The ranks along an axis, this one among them."""
        return _place(self.mesh).groups[axis]

    def with_cut(self, axis: int, cut: Cut | None) -> Layout:
        """The same but for one axis."""
        if self.cuts[axis] == cut:
            return self
        return Layout(self.mesh, (*self.cuts[:axis], cut, *self.cuts[axis + 1 :]))

    def with_dims(self, dims: Mapping[int, int]) -> Layout:
        """The same cuts of dimensions that have moved; those that are not named are cut no more."""
        return replace(
            self,
            cuts=tuple(
                None if cut is None or cut.dim not in dims else replace(cut, dim=dims[cut.dim])
                for cut in self.cuts
            ),
        )

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of this rank's piece."""
        local = list(shape)
        for axis, cut in self.cut_axes():
            local[cut.dim] = cut.sizes[self.rank(axis)]
        return tuple(local)

    def global_shape(self, local: Sequence[int]) -> tuple[int, ...]:
        """The whole tensor's shape."""
        shape = list(local)
        for _, cut in self.cut_axes():
            shape[cut.dim] = cut.total
        return tuple(shape)

    def __str__(self) -> str:
        """The cuts, as errors name them."""
        names = self.mesh.mesh_dim_names or ()
        cuts = [f"dim {cut.dim} along {names[axis]}" for axis, cut in self.cut_axes()]
        return f"cut {' and '.join(cuts)}" if cuts else "replicated"


@dataclass(frozen=True, slots=True)
class _Place:
    """This rank's place in a mesh, which takes the mesh itself some microseconds to find.

    Attributes:
        mesh: The mesh.
        ranks: This rank's place along each axis.
        groups: The ranks along each axis.
    """

    mesh: ReferenceType[DeviceMesh]
    ranks: tuple[int, ...]
    groups: tuple[ProcessGroup, ...]


_places: dict[int, _Place] = {}


def _place(mesh: DeviceMesh) -> _Place:
    """Looked up by identity: a mesh that is equal may be of process groups that are gone."""
    known = _places.get(id(mesh))
    if known is not None and known.mesh() is mesh:
        return known
    axes = range(mesh.ndim)
    ranks = tuple(int(mesh.get_local_rank(axis)) for axis in axes)
    place = _Place(ref(mesh), ranks, tuple(mesh.get_group(axis) for axis in axes))
    for gone in [key for key, each in _places.items() if each.mesh() is None]:
        del _places[gone]
    _places[id(mesh)] = place
    return place
