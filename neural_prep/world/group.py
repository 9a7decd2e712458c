"""This rank's process group: opened, compared with its peers', cut off, closed.

Groups are made on a store of the project's own, never through `env://`, so that a second world on
the machine cannot meet this one by its port.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # torch doesn't list what it exports
    HashStore,
    PrefixStore,
    ProcessGroup,
    Store,
    TCPStore,
    distributed_c10d,
)

from neural_prep.world.ways import Way

# Sends and receives of each group, which gloo counts among its collectives.
_point_to_point: dict[str, int] = {}
_messages: dict[Way, int] = {}


@dataclass(frozen=True, slots=True)
class World:
    """All ranks, as one of them sees them.

    Attributes:
        rank: This process, from 0.
        size: Number of ranks.
        device: The rank's GPU where every rank has one, else the CPU.
        group: The process group of all ranks.
        store: Their key-value store, which works whatever state the process group is in.
    """

    rank: int
    size: int
    device: torch.device

    group: ProcessGroup = field(repr=False)
    store: Store = field(repr=False)

    def barrier(self) -> None:
        """Returns once every rank is here."""
        dist.barrier(self.group)


def open_store(rank: int, size: int, port: int, listening: int, patience: timedelta) -> Store:
    """The world's key-value store; rank 0 serves it on a socket that listens already."""
    if rank:
        return TCPStore("127.0.0.1", port, size, False, patience)
    return TCPStore("127.0.0.1", port, size, True, patience, master_listen_fd=listening)


def open_world(store: Store, rank: int, size: int, *, name: str, patience: timedelta) -> World:
    """Makes the default process group: gloo, and NCCL for GPUs where every rank sees one.

    Args:
        store: A store that all ranks share.
        rank: This process.
        size: Number of ranks.
        name: The generation's name, new each time.
        patience: How long a collective may take.
    """
    local = int(os.environ.get("LOCAL_RANK", rank))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    device = _device(local, local_size)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _count_point_to_point()
    store = PrefixStore(name, store)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=size,
        timeout=patience,
        device_id=device if device.type == "cuda" else None,
    )
    assert dist.group.WORLD is not None
    return World(rank, size, device, dist.group.WORLD, store)


def open_lone_world() -> World:
    """A world of this process alone, on a store in its memory."""
    patience = timedelta(minutes=5)
    return open_world(HashStore(), 0, 1, name="lone", patience=patience)


def close_world() -> None:
    """Destroys every process group of this rank, if there is one."""
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    _point_to_point.clear()
    _messages.clear()


def is_open(world: World) -> bool:
    """Whether the world's process group is still the default one."""
    return dist.group.WORLD is world.group


def use_threads(number: int) -> None:
    """Has torch calculate with so many threads, which it has settled otherwise before a fork."""
    torch.set_num_threads(number)


def position() -> dict[str, int]:
    """How many collectives each of this rank's groups has run, and how many groups there were.

    Ranks that ran the same collectives have the same numbers for the groups that they share. Taking
    them costs a few microseconds and no communication.
    """
    if not dist.is_initialized():
        return {}
    found = {"groups made": distributed_c10d._world.group_count}
    for group in distributed_c10d._world.pg_map:
        if dist.get_rank(group) >= 0:
            name = group.group_name
            found[f"group {name}"] = _sequence(group) - _point_to_point.get(name, 0)
    return found


def messages() -> dict[Way, int]:
    """How many messages this rank has sent to each other one, and received from it."""
    return dict(_messages)


def seed_generators(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's generators, as far as they are in use."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    # Not torch.manual_seed: it asks every kind of device, which costs a test a quarter of its time.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def sockets() -> set[int]:
    """File numbers of this process' connected TCP sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with _borrowed(int(name)) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        connection.getpeername()  # raises where nobody is connected
                        found.add(int(name))
    return found


def cut_off(kept: set[int]) -> None:
    """Shuts this rank's TCP connections but these, so that blocked collectives end everywhere."""
    for number in sockets() - kept:
        with contextlib.suppress(OSError), _borrowed(number) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def _borrowed(number: int) -> socket.socket:
    return socket.socket(fileno=os.dup(number))


def _device(local: int, local_size: int) -> torch.device:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 1 and "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ","):
        return torch.device("cuda", 0)  # its own, as its launcher arranged
    return torch.device("cuda", local) if gpus >= local_size else torch.device("cpu")


def _count_point_to_point() -> None:
    """Counts sends and receives: not all ranks take part in them, but two do in each."""
    for name in ("send", "recv", "recv_anysource"):
        original = getattr(ProcessGroup, name)
        if not hasattr(original, "counted"):
            setattr(ProcessGroup, name, _counted(name, original))


def _counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def counting(self: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        before = _sequence(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            group, after = self.group_name, _sequence(self)
            _point_to_point[group] = _point_to_point.get(group, 0) + after - before
            own = dist.get_rank()
            other = -1 if name == "recv_anysource" else dist.get_global_rank(self, args[1])
            way = Way(group, own, other) if name == "send" else Way(group, other, own)
            _messages[way] = _messages.get(way, 0) + 1

    counting.counted = True  # type: ignore[attr-defined]
    return counting


def _sequence(group: ProcessGroup) -> int:
    """How many operations a group has begun."""
    return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]  # not in its stub
