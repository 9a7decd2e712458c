"""One rank's part of measuring sharded layers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from neural_prep.sharding import ShardTensor

CUT = {"domain": 2}


@dataclass(frozen=True, slots=True)
class Measured:
    """What a rank found."""

    rank: int
    numbers: dict[str, float]


def measure_rank(rank: int, ranks: int, store: Path, what: str, repeat: int, results: Any) -> None:
    """What a started process does."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(store), ranks), rank=rank, world_size=ranks
    )
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("domain",))
    torch.manual_seed(0)
    results.put(Measured(rank, MEASURES[what](mesh, repeat)))
    dist.barrier()
    dist.destroy_process_group()


def count_bytes(mesh: DeviceMesh, repeat: int) -> dict[str, float]:
    """A training step of a convolution beside the serial one."""
    ranks = mesh.size()
    layer = nn.Conv2d(16, 16, 3, padding=1)
    field = torch.randn(1, 16, 96 * ranks, 256)
    piece = field[:, :, :96].clone().requires_grad_()
    shard = ShardTensor.scatter(field, mesh, CUT).detach().requires_grad_()

    def step(x: Tensor) -> None:
        layer.zero_grad()
        layer(x).square().mean().backward()

    with counting() as sent:
        step(shard)
    row = 16 * 256 * field.element_size()
    halo = 2 * (ranks - 1) * row * 2  # a row each way at each border, forward and back
    own, serial = best([lambda: step(shard), lambda: step(piece)], repeat)
    return {
        "sent": float(sent["moved"]),
        "summed": float(sent["summed"]),
        "halo": float(halo),
        "seconds": own,
        "serial": serial,
    }


def time_calls(mesh: DeviceMesh, repeat: int) -> dict[str, float]:
    """Microseconds of CPU that each call takes beyond torch's own, with and without backward."""
    assert mesh.size() == 1
    found = {}
    for name, call in calls().items():
        full = torch.randn(2, 8, 6, 8)
        pair = (ShardTensor.scatter(full, mesh, CUT).detach(), full)

        def both(x: Tensor, call: Callable[[Tensor], Tensor] = call) -> None:
            torch.autograd.grad(call(x).sum(), x)

        found[f"{name}/forward"] = difference(call, pair, repeat)
        found[f"{name}/with backward"] = difference(both, pair, repeat) - difference(
            lambda x: torch.autograd.grad(x.sum(), x), pair, repeat
        )
    return found


def difference(call: Callable[[Tensor], Any], pair: Sequence[Tensor], repeat: int) -> float:
    """Microseconds by which a call on the first of two takes longer than on the second."""
    ours, theirs = (partial(call, each.requires_grad_()) for each in pair)
    first, second = best([ours, theirs], repeat, 50, time.process_time)
    return (first - second) * 1e6


def calls() -> dict[str, Callable[[Tensor], Tensor]]:
    """One call of each family, on `(2, 8, 6, 8)`."""
    convolution, linear = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 8)
    layer, group, batch = nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.BatchNorm2d(8)
    return {
        "conv2d": convolution,
        "linear": linear,
        "add": lambda x: x + x,
        "gelu": F.gelu,
        "layer_norm": layer,
        "group_norm": group,
        "batch_norm": batch,
        "mean": lambda x: x.mean(2),
        "matmul": lambda x: x @ x.mT,
        "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
        "max_pool2d": lambda x: F.max_pool2d(x, 2),
        "pad": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
        "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "softmax": lambda x: F.softmax(x, 2),
        "slice": lambda x: x[:, :, 1:],
        "cat": lambda x: torch.cat([x, x], 1),
        "permute": lambda x: x.permute(0, 2, 3, 1),
        "reshape": lambda x: x.reshape(2, 4, 2, 6, 8),
        "rfft2": lambda x: torch.fft.rfft2(x).real,
        "mse_loss": lambda x: F.mse_loss(x, x),
    }


def count_activations(mesh: DeviceMesh, repeat: int) -> dict[str, float]:
    """Bytes that autograd keeps, of the whole field and of this rank's piece."""
    net = nn.Sequential(
        *(nn.Conv2d(8, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1), nn.GELU()),
        nn.Conv2d(8, 8, 3, padding=1),
    )
    field = torch.randn(1, 8, 720, 256)
    with keeping() as serial:
        net(field)
    shard = ShardTensor.scatter(field, mesh, CUT)
    with keeping() as own:
        net(shard)
    return {"kept": float(sum(own.values())), "serial": float(sum(serial.values()))}


def peak_of_ring(mesh: DeviceMesh, repeat: int) -> dict[str, float]:
    """Bytes above what was there before, at the worst moment."""
    ranks = mesh.size()
    pieces = [
        ShardTensor.scatter(torch.randn(1, 4, 2048 * ranks, 32), mesh, CUT)
        .detach()
        .requires_grad_()
        for _ in range(3)
    ]
    with watching() as seen:
        F.scaled_dot_product_attention(*pieces).square().sum().backward()
    return {"peak": float(seen["peak"])}


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Counts bytes that go to other ranks, and those that are summed."""
    counts = {"moved": 0, "summed": 0}
    move, add = dist.all_to_all_single, dist.all_reduce

    def moving(
        output: Tensor, input: Tensor, receive: Any, send: Any, group: Any, **kw: Any
    ) -> Any:
        size = input.element_size()
        counts["moved"] += size * (sum(send) - send[dist.get_rank(group)])
        return move(output, input, receive, send, group, **kw)

    def adding(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        counts["summed"] += tensor.nbytes
        return add(tensor, *args, **kwargs)

    dist.all_to_all_single, dist.all_reduce = moving, adding
    try:
        yield counts
    finally:
        dist.all_to_all_single, dist.all_reduce = move, add


@contextmanager
def keeping() -> Iterator[dict[int, int]]:
    """The memory of what autograd saves, each once."""
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        piece = tensor._local if isinstance(tensor, ShardTensor) else tensor
        storage = piece.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        alive.append(piece)  # else its memory may be another's soon
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


@contextmanager
def watching() -> Iterator[dict[str, int]]:
    """This process's peak of memory, above what it has before."""
    seen = {"peak": 0}
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from now on
    yield seen
    seen["peak"] = resident("VmHWM") - before


def resident(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def best(
    calls: list[Callable[[], Any]],
    repeat: int,
    times: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Seconds of each call, in turns; the best round counts."""
    seconds: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(repeat):
        for call, rounds in zip(calls, seconds, strict=True):
            start = clock()
            for _ in range(times):
                call()
            rounds.append((clock() - start) / times)
    return [min(rounds) for rounds in seconds]


MEASURES: dict[str, Callable[[DeviceMesh, int], dict[str, float]]] = {
    "bytes": count_bytes,
    "overhead": time_calls,
    "memory": count_activations,
    "ring": peak_of_ring,
}
