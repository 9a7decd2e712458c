"""What a layout accepts, and what it says of what it does not."""

import pytest
from torch.distributed.device_mesh import init_device_mesh

from neural_prep.sharding import Cut, Layout, split_sizes

pytestmark = pytest.mark.multigpu_static


@pytest.mark.parametrize(
    ("total", "parts", "sizes"),
    [(10, 4, (3, 3, 2, 2)), (2, 3, (1, 1, 0)), (0, 2, (0, 0)), (5, 1, (5,))],
)
def test_split_sizes(total, parts, sizes):
    assert split_sizes(total, parts) == sizes


@pytest.mark.parametrize(("total", "parts"), [(-1, 2), (3, 0)])
def test_what_cannot_be_split(total, parts):
    with pytest.raises(ValueError, match=f"cannot split {total} items into {parts} parts"):
        split_sizes(total, parts)


def test_the_layout_of_a_cut(distributed_mesh):
    layout = Layout.of(distributed_mesh, (2, 7), {"domain": -1})
    sizes = split_sizes(7, distributed_mesh.size())
    assert layout.cuts == (Cut(1, sizes),)
    assert layout.local_shape((2, 7)) == (2, sizes[distributed_mesh.get_local_rank()])
    assert layout.global_shape(layout.local_shape((2, 7))) == (2, 7)
    assert (layout.axis_of(1), layout.axis_of(0)) == (0, None)
    assert str(layout) == "cut dim 1 along domain"
    assert not layout.is_replicated
    assert str(Layout.replicated(distributed_mesh)) == "replicated"


@pytest.mark.parametrize(
    ("cut", "sizes", "said"),
    [
        ({"time": 0}, None, "time is no axis of the mesh; it has domain"),
        ({"domain": 2}, None, r"dim 2 is cut along domain, but the shape is \[2, 7\]"),
        ({"domain": 1}, [[3]], r"sizes \[3\] along domain add up to 3; dim 1 has 7"),
        ({"domain": 1}, [], "0 lists of sizes for 1 cuts"),
        ({"domain": 1}, [[7, 0, 0, 0, 0, 0]], r"cut into \[7, 0, 0, 0, 0, 0\] along domain"),
        ({"domain": 1}, [[8, -1]], "ranks; give each of them a size of at least 0"),
    ],
)
def test_what_is_no_layout(distributed_mesh, cut, sizes, said):
    with pytest.raises(ValueError, match=said):
        Layout.of(distributed_mesh, (2, 7), cut, sizes)


def test_a_dimension_is_cut_once(distributed_mesh_2d):
    with pytest.raises(ValueError, match="dim 0 is cut along both axis1 and axis2"):
        Layout.of(distributed_mesh_2d, (4, 4), {"axis1": 0, "axis2": 0})


def test_a_mesh_without_names(world):
    mesh = init_device_mesh(world.device.type, (world.size,))
    with pytest.raises(ValueError, match="axes have no names"):
        Layout.replicated(mesh)
