"""Functions that double a tensor, each wrong in one way where it is sharded."""

import os
import time

import torch
import torch.distributed as dist

from neural_prep.sharding import Layout, ShardTensor
from neural_prep.sharding.shard_tensor import from_local, to_local


def _on_pieces(double, layout=None):
    """A function whose twin is right, and which doubles each rank's piece by this one."""

    def function(x):
        if not isinstance(x, ShardTensor):
            return 2 * x
        found = Layout.replicated(x.sharding.mesh) if layout == "replicated" else x.sharding
        return from_local(double(to_local(x), dist.get_rank()), found)

    return function


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2.5 * grad


def _wrong_value(piece, rank):
    wrong = torch.zeros_like(piece)
    wrong[0, 1] = 0.001 * (rank == 1)
    return 2 * piece + wrong


def _unwritten(piece, rank):
    found = torch.empty_like(piece)
    found[1:] = 2 * piece[1:]
    return found


def _raises(piece, rank):
    if rank == 1:
        raise RuntimeError("not on one")
    dist.all_reduce(torch.ones(()))
    return 2 * piece


def _hangs(piece, rank):
    if rank == 0:
        dist.all_reduce(torch.ones(()))
    return 2 * piece


def _sleeps(piece, rank):
    time.sleep(1000 * (rank == 0))
    return 2 * piece


def _dies(piece, rank):
    if rank == 1:
        print("no space left", flush=True)  # noqa: T201 - what a rank says before it dies
        os._exit(3)
    return 2 * piece


def _out_of_step(piece, rank):
    if rank == 0:
        dist.new_group([0])
    return 2 * piece


right = _on_pieces(lambda piece, rank: 2 * piece)
wrong_value = _on_pieces(_wrong_value)
wrong_gradient = _on_pieces(lambda piece, rank: _WrongGradient.apply(piece))
wrong_layout = _on_pieces(lambda piece, rank: 2 * piece, "replicated")
wrong_piece = _on_pieces(lambda piece, rank: 2 * piece[: 1 - rank])
wrong_dtype = _on_pieces(lambda piece, rank: 2 * piece.float())
no_gradient = _on_pieces(lambda piece, rank: 2 * piece.detach())
unwritten = _on_pieces(_unwritten)
unequal = _on_pieces(lambda piece, rank: 2 * piece + rank * 1e-15)
raises = _on_pieces(_raises)
hangs = _on_pieces(_hangs)
sleeps = _on_pieces(_sleeps)
dies = _on_pieces(_dies)
out_of_step = _on_pieces(_out_of_step)


def plain(x):
    return 2 * to_local(x) if isinstance(x, ShardTensor) else 2 * x


def one_more(x):
    return (2 * x, x) if not isinstance(x, ShardTensor) else right(x)


def serial_raises(x):
    if not isinstance(x, ShardTensor):
        raise ValueError("not serial")
    return x


class WrongBuffer(torch.nn.Module):
    """Counts its calls: twice where its input is sharded."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.calls += 1 + isinstance(x, ShardTensor)
        return x + 0


class WrongParameter(WrongBuffer):
    """Has a wrong gradient of its parameter where its input is sharded."""

    def forward(self, x):
        if not isinstance(x, ShardTensor):
            return x * self.weight
        local = to_local(x)
        return from_local(local * (self.weight * 1.5 - self.weight.detach() * 0.5), x.sharding)
