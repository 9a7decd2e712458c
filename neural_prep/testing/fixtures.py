"""What a distributed test's body may ask for: its world, meshes over it, a folder of all ranks.

In a single process the same fixtures are a world of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neural_prep.testing.kinds import SIZE

if TYPE_CHECKING:  # torch is imported where a test asks for a fixture, never by the plugin
    from torch.distributed.device_mesh import DeviceMesh

    from neural_prep.testing.rank import Rank
    from neural_prep.world.group import World

RANK = "neural-prep-rank"  # name of the plugin of a rank's session


@pytest.fixture(scope="session")
def world(pytestconfig: pytest.Config) -> Iterator[World]:
    """All ranks: `rank`, `size`, `device`, `group`, `barrier()`."""
    session: Rank | None = pytestconfig.pluginmanager.get_plugin(RANK)
    if session is not None:
        if session.world is None:
            pytest.fail("a test marked process_group=False has no world of its own", pytrace=False)
        yield session.world
        return
    from neural_prep.world import group

    lone = group.open_lone_world()
    yield lone
    group.close_world()


@pytest.fixture(scope="session")
def distributed_mesh(world: World) -> DeviceMesh:
    """A DeviceMesh over all ranks with the one axis `domain`."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("domain",))


@pytest.fixture(scope="session")
def distributed_mesh_2d(world: World) -> DeviceMesh:
    """A DeviceMesh with axes `axis1` and `axis2`, both longer than 1; skips where that cannot be.

    With one rank it is 1 x 1.
    """
    from torch.distributed.device_mesh import init_device_mesh

    rows = next(rows for rows in range(int(world.size**0.5), 0, -1) if world.size % rows == 0)
    if rows == 1 and world.size > 1:
        pytest.skip(f"{world.size} ranks are no mesh with two axes longer than 1")
    shape = (rows, world.size // rows)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("axis1", "axis2"))


@pytest.fixture
def shared_tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An empty folder that is the same on every rank."""
    session: Rank | None = request.config.pluginmanager.get_plugin(RANK)
    if session is None:
        name = re.sub(r"\W", "_", request.node.name)[:30]
        return tmp_path_factory.mktemp(f"{name}_shared")
    folder = Path(session.folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(name=SIZE)
def _world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks of a dynamic test with several sizes."""
    return int(request.param)
