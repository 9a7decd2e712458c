"""Collectives against their definition, and each against its adjoint: <op(x), y> = <x, op*(y)>.

Inner products are summed over ranks, with another random y on each. An oracle puts all ranks'
tensors together by `all_gather_object`, which shares no code with what is tested.
"""

import functools

import pytest
import torch
import torch.distributed as dist

from neural_prep.sharding import split_sizes
from neural_prep.sharding.collectives import (
    all_gather_v,
    all_reduce_v,
    all_to_all_v,
    gather_v,
    halo_exchange,
    indexed_all_to_all_v,
    reduce_scatter_v,
    scatter_v,
)

pytestmark = pytest.mark.multigpu_static

EVEN, UNEVEN, EMPTY = "even", "uneven", "empty piece"
KINDS = [EVEN, UNEVEN, EMPTY]
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.complex64, torch.complex128),
]


def sizes_of(kind, ranks):
    """Every rank's part of a dimension."""
    if kind == EVEN:
        return [2] * ranks
    if kind == UNEVEN:
        return [3 + 2 * (rank % 2) for rank in range(ranks)]
    return [0 if 0 < rank == ranks // 2 else 2 + rank for rank in range(ranks)]


def matrix_of(kind, ranks):
    """How many elements each rank sends to each other."""
    return [
        [(kind != EVEN) * ((2 * i + j) % 3) + (kind == EVEN) for j in range(ranks)]
        for i in range(ranks)
    ]


def random(world, shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(world.rank)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def everybody(value, group=None):
    """What all ranks have, in their order."""
    found = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group)
    return found


def shape(length, dim):
    return [length if axis == dim else 2 + axis for axis in range(3)]


def operations(world, kind, dim):
    """Each collective as a function of this rank's tensor, and that tensor's shape."""
    ranks, rank = world.size, world.rank
    sizes, matrix = sizes_of(kind, ranks), matrix_of(kind, ranks)
    own, total, last = sizes[rank], sum(sizes), ranks - 1
    sent, received = matrix[rank], [row[rank] for row in matrix]
    indices = [[(3 * k + r) % 4 for k in range(count)] for r, count in enumerate(sent)]
    whole, piece = shape(total, dim), shape(own, dim)
    return {
        "scatter_v": (lambda x: scatter_v(x, sizes, dim, last), whole if rank == last else [3]),
        "gather_v": (lambda x: gather_v(x, sizes, dim, last), piece),
        "all_gather_v": (lambda x: all_gather_v(x, sizes, dim), piece),
        "reduce_scatter_v": (lambda x: reduce_scatter_v(x, sizes, dim), whole),
        "all_reduce_v": (all_reduce_v, whole),
        "all_to_all_v": (lambda x: all_to_all_v(x, sent, received, dim), shape(sum(sent), dim)),
        "indexed_all_to_all_v": (
            lambda x: indexed_all_to_all_v(x, indices, matrix, dim),
            shape(4, dim),
        ),
        "halo none": (lambda x: halo_exchange(x, 3, 1, dim, "none"), piece),
        "halo zeros": (lambda x: halo_exchange(x, 1, 4, dim, "zeros"), piece),
        "halo circular": (lambda x: halo_exchange(x, 5, 2, dim, "circular"), piece),
    }


NAMES = [
    *("scatter_v", "gather_v", "all_gather_v", "reduce_scatter_v", "all_reduce_v"),
    *("all_to_all_v", "indexed_all_to_all_v", "halo none", "halo zeros", "halo circular"),
]


def expected(name, world, kind, dim, inputs):
    """The result on this rank from all ranks' tensors."""
    ranks, rank = world.size, world.rank
    sizes, matrix = sizes_of(kind, ranks), matrix_of(kind, ranks)
    start, stop = sum(sizes[:rank]), sum(sizes[: rank + 1])

    def rows(tensor, chosen):
        return (
            torch.stack([tensor.select(dim, i) for i in chosen], dim)
            if chosen
            else (tensor.narrow(dim, 0, 0))
        )

    whole = functools.partial(torch.cat, dim=dim)
    match name.split():
        case ["scatter_v"]:
            return rows(inputs[-1], range(start, stop))
        case ["gather_v"]:
            return whole(inputs) if rank == ranks - 1 else inputs[0].narrow(dim, 0, 0)
        case ["all_gather_v"]:
            return whole(inputs)
        case ["reduce_scatter_v"]:
            return rows(sum(inputs[1:], inputs[0]), range(start, stop))
        case ["all_reduce_v"]:
            return sum(inputs[1:], inputs[0])
        case ["all_to_all_v"]:
            firsts = [sum(matrix[source][:rank]) for source in range(ranks)]
            return whole(
                [
                    tensor.narrow(dim, first, matrix[source][rank])
                    for source, (tensor, first) in enumerate(zip(inputs, firsts, strict=True))
                ]
            )
        case ["indexed_all_to_all_v"]:
            return whole(
                [
                    rows(tensor, [(3 * k + rank) % 4 for k in range(matrix[source][rank])])
                    for source, tensor in enumerate(inputs)
                ]
            )
        case ["halo", edge]:
            before, after = {"none": (3, 1), "zeros": (1, 4), "circular": (5, 2)}[edge]
            tensor, total = whole(inputs), sum(sizes)
            found = []
            for index in range(start - before, stop + after):
                inside = 0 <= index < total
                if inside or edge == "circular":
                    found.append(tensor.select(dim, index % total))
                elif edge == "zeros":
                    found.append(torch.zeros_like(tensor.select(dim, 0)))
            return torch.stack(found, dim)
    raise AssertionError(name)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_values(world, name, kind, dim):
    operation, size = operations(world, kind, dim)[name]
    tensor = random(world, size)
    result = operation(tensor)
    torch.testing.assert_close(
        result, expected(name, world, kind, dim, everybody(tensor)), rtol=0, atol=1e-15
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_adjoints(world, name, kind, dtype):
    operation, size = operations(world, kind, 1)[name]
    tensor = random(world, size, torch.float64).to(dtype)
    if dtype.is_complex:
        tensor = tensor * (1 + 2j)
    tensor.requires_grad_()
    result = operation(tensor)
    upstream = random(world, result.shape).to(dtype) * (1 - 1j if dtype.is_complex else 1)
    (gradient,) = torch.autograd.grad(result, tensor, upstream)
    assert gradient.shape == tensor.shape
    left = sum(everybody((upstream.conj() * result.detach()).sum()))
    right = sum(everybody((gradient.conj() * tensor.detach()).sum()))
    assert abs(left - right) <= 1e-12 * max(1, abs(left))


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(world, name):
    operation, size = operations(world, UNEVEN, 0)[name]
    tensor = random(world, size).requires_grad_()
    result = operation(tensor)
    (gradient,) = torch.autograd.grad((result**3).sum(), tensor, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), tensor)
    # d/dx of A'(3 (Ax)^2), summed, is A'(6 (Ax) (A 1)).
    ones = torch.ones_like(tensor).requires_grad_()
    through = operation(ones)
    (wanted,) = torch.autograd.grad(through, ones, 6 * result.detach() * through.detach())
    torch.testing.assert_close(second, wanted, rtol=1e-12, atol=1e-12)


def test_an_all_reduce_that_counts_once(world):
    tensor = random(world, [4]).requires_grad_()
    upstream = torch.arange(4.0, dtype=torch.float64)  # the same on all ranks
    total = all_reduce_v(tensor, backward="identity")
    (gradient,) = torch.autograd.grad(total, tensor, upstream)
    assert torch.equal(gradient, upstream)
    once = (total.detach() * upstream).sum()
    summed = sum(everybody((tensor.detach() * gradient).sum()))
    assert abs(once - summed) <= 1e-12


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_dtypes(world, name, dtype):
    operation, size = operations(world, EMPTY, 1)[name]
    tensor = (random(world, size) * 4).round().to(dtype).requires_grad_()  # sums are exact
    result = operation(tensor)
    assert result.dtype == dtype
    wanted = expected(name, world, EMPTY, 1, everybody(tensor.detach()))
    assert torch.equal(result, wanted)
    result.real.sum().backward()
    assert tensor.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_without_gradients(world, name, dtype):
    operation, size = operations(world, UNEVEN, 1)[name]
    tensor = (random(world, size) * 4).to(torch.int8).to(dtype)
    result = operation(tensor)
    assert result.dtype == dtype
    assert not result.requires_grad
    numbers = [each.to(torch.int64) for each in everybody(tensor)]
    assert torch.equal(result, expected(name, world, UNEVEN, 1, numbers).to(dtype))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_that_are_not_contiguous(world, name):
    operation, size = operations(world, UNEVEN, 1)[name]
    tensor = random(world, size)
    apart = torch.stack([tensor, tensor], -1)[..., 0].requires_grad_()
    assert tensor.numel() < 2 or not apart.is_contiguous()
    result = operation(apart)
    assert torch.equal(result, operation(tensor))
    upstream = result.detach().expand(2, *result.shape).movedim(0, -1)[..., 0]
    (gradient,) = torch.autograd.grad(result, apart, upstream)
    tensor.requires_grad_()
    (wanted,) = torch.autograd.grad(operation(tensor), tensor, upstream.contiguous())
    assert torch.equal(gradient, wanted)


def test_a_part_of_the_world(world):
    group = dist.new_group([0], use_local_synchronization=False)
    rest = dist.new_group(list(range(1, world.size))) if world.size > 1 else None
    mine = group if world.rank == 0 else rest
    size = 1 if world.rank == 0 else world.size - 1
    place = 0 if world.rank == 0 else world.rank - 1
    sizes = split_sizes(5, size)
    tensor = random(world, [sizes[place], 2]).requires_grad_()
    whole = all_gather_v(tensor, sizes, 0, mine)
    assert torch.equal(whole, torch.cat(everybody(tensor.detach(), mine)))
    whole.sum().backward()
    assert torch.equal(tensor.grad, torch.full_like(tensor, size))


def test_a_rank_whose_tensor_did_not_matter_has_a_zero_gradient(world):
    tensor = random(world, [4]).requires_grad_()
    scatter_v(tensor, split_sizes(4, world.size)).sum().backward()
    wanted = torch.ones(4) if world.rank == 0 else torch.zeros(4)
    assert torch.equal(tensor.grad, wanted.double())


class Wrong:
    """Calls that do not fit, and what all ranks are told."""

    @staticmethod
    def sizes_differ(world):
        sizes = [1 + (world.rank == world.size - 1)] * world.size
        return all_gather_v(torch.zeros(sizes[0]), sizes)

    @staticmethod
    def piece_is_not_its_size(world):
        return gather_v(torch.zeros(3 if world.rank == world.size - 1 else 2), [2] * world.size)

    @staticmethod
    def other_dims_differ(world):
        return halo_exchange(torch.zeros(2, 3 + (world.rank == world.size - 1)), 1, 1, 0)

    @staticmethod
    def dtypes_differ(world):
        dtype = torch.float32 if world.rank == world.size - 1 else torch.float64
        return all_reduce_v(torch.zeros(2, dtype=dtype))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("sizes_differ", r"all_gather_v: sizes on rank {last} is \[2"),
        ("piece_is_not_its_size", "gather_v: rank {last} has 3 elements along dim 0; its size is"),
        ("other_dims_differ", r"halo_exchange: shape \[2, 4\] on rank {last}, \[2, 3\] on rank 0"),
        ("dtypes_differ", "all_reduce_v: dtype on rank {last} is torch.float32, on rank 0"),
    ],
)
def test_what_does_not_fit_is_told_on_all_ranks(world, call, said):
    if world.size == 1 and call != "piece_is_not_its_size":
        pytest.skip("one rank agrees with itself")
    with pytest.raises(ValueError, match=said.format(last=world.size - 1)):
        getattr(Wrong, call)(world)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda n: scatter_v(torch.zeros(4), [4] * (n + 1)), "sizes for"),
        (lambda n: scatter_v(torch.zeros(5), [4] + [0] * (n - 1)), "dim 0 of rank 0 has 5"),
        (lambda n: scatter_v(torch.zeros(4), [4] + [0] * (n - 1), src=n), "is not in the group"),
        (lambda n: all_gather_v(torch.zeros(4), [4] * n, dim=1), r"dim 1 of \[4\] on rank 0"),
        (lambda n: all_reduce_v(torch.zeros(1), backward="mean"), "expected 'sum' or 'identity'"),
        (lambda n: halo_exchange(torch.zeros(1), 1, 1, 0, "mirror"), "expected one of none"),
        (lambda n: halo_exchange(torch.zeros(1), -1, 1, 0), "expected none below 0"),
        (lambda n: halo_exchange(torch.zeros(0), 1, 1, 0, "circular"), "nothing to go round"),
        (
            lambda n: all_to_all_v(torch.zeros(n), [1] * n, [2] * n),
            "rank 0 sends 1 to rank 0, which expects 2",
        ),
        (
            lambda n: indexed_all_to_all_v(torch.zeros(2), [[2]] * n, [[1] * n] * n),
            "rank 0 has 2 elements along dim 0 and is asked for 2; expected 0 to 1",
        ),
        (
            lambda n: indexed_all_to_all_v(torch.zeros(2), [[1]] * n, [[2] * n] * n),
            r"rank 0 sends \[1.*\] elements to the ranks, but sizes say \[2",
        ),
    ],
)
def test_mistakes_that_all_ranks_make(world, call, said):
    with pytest.raises(ValueError, match=said):
        call(world.size)


# Each collective over a group of n ranks.
PART = {
    "scatter_v": lambda x, n, group: scatter_v(x, [2 * n] + [0] * (n - 1), 0, n - 1, group),
    "gather_v": lambda x, n, group: gather_v(x, [2 * n] * n, 0, n - 1, group),
    "all_gather_v": lambda x, n, group: all_gather_v(x, [2 * n] * n, 0, group),
    "reduce_scatter_v": lambda x, n, group: reduce_scatter_v(x, [0] * (n - 1) + [2 * n], 0, group),
    "all_reduce_v": lambda x, n, group: all_reduce_v(x, group),
    "all_to_all_v": lambda x, n, group: all_to_all_v(x, [2] * n, [2] * n, 0, group),
    "indexed_all_to_all_v": lambda x, n, group: indexed_all_to_all_v(
        x, [[1, 0, 1]] * n, [[3] * n] * n, 0, group
    ),
    "halo_exchange": lambda x, n, group: halo_exchange(x, 3, 1, 0, "circular", group),
}


@pytest.mark.parametrize("name", PART)
def test_adjoints_in_a_part_of_the_world(world, name):
    group = dist.new_group(list(range(1, world.size))) if world.size > 1 else dist.group.WORLD
    if world.rank == 0 < world.size - 1:
        return
    size = dist.get_world_size(group)
    tensor = random(world, [2 * size, 3]).requires_grad_()
    result = PART[name](tensor, size, group)
    upstream = random(world, result.shape)
    (gradient,) = torch.autograd.grad(result, tensor, upstream)
    left = sum(everybody((upstream * result.detach()).sum(), group))
    right = sum(everybody((gradient * tensor.detach()).sum(), group))
    assert abs(left - right) <= 1e-12 * max(1, abs(left))


def test_second_derivatives_of_an_all_reduce_that_counts_once(world):
    tensor = random(world, [4]).requires_grad_()
    total = all_reduce_v(tensor, backward="identity")
    (gradient,) = torch.autograd.grad((total**3).sum(), tensor, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), tensor)
    # The gradient is a summand of every rank's own: all of them depend on this rank's tensor.
    torch.testing.assert_close(second, 6 * total.detach() * world.size)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_of_which_one_alone_requires_a_gradient(world, name):
    # The others take part in backward all the same: nobody waits for them.
    operation, size = operations(world, UNEVEN, 0)[name]
    tensor = random(world, size).requires_grad_(world.rank == world.size - 1)
    result = operation(tensor)
    assert result.requires_grad
    result.sum().backward()
    assert (tensor.grad is not None) == tensor.requires_grad
