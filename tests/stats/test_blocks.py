"""Every block exactly once, and the same bits from any number of ranks."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_prep.engine.gather import gather_nodes
from neural_prep.engine.plan import Plan
from neural_prep.stats.accumulate import SeriesAccumulator
from neural_prep.stats.blocks import split_runs, subtrees
from neural_prep.stats.moments import COUNT, empty, merge
from neural_prep.stats.tree import MergeTree

KIB = 1024


@pytest.mark.parametrize(
    ("nbytes", "ranks", "lengths"),
    [
        pytest.param([8] * 10, 3, [3, 4, 3], id="10-on-3"),
        pytest.param([8] * 16, 5, [3, 3, 4, 3, 3], id="16-on-5"),
        pytest.param([8] * 60, 16, [4, 3, 4, 4] * 4, id="60-on-16"),
        pytest.param([8] * 4, 1, [4], id="one-rank"),
        pytest.param([8] * 4, 4, [1, 1, 1, 1], id="one-each"),
        pytest.param([8], 3, [0, 1, 0], id="one-block-on-3"),
        pytest.param([8] * 2, 5, [0, 1, 0, 1, 0], id="more-ranks-than-blocks"),
        pytest.param([90, 5, 5], 2, [1, 2], id="by-bytes"),
        pytest.param([5, 5, 90], 2, [2, 1], id="by-bytes-at-the-end"),
        pytest.param([0, 0, 0, 0], 2, [2, 2], id="blocks-without-bytes"),
        pytest.param([], 3, [0, 0, 0], id="no-block"),
        pytest.param([2**50] * 8, 4096, None, id="petabytes-on-4096"),
    ],
)
def test_split_runs(nbytes, ranks, lengths):
    runs = split_runs(np.array(nbytes, np.int64), ranks)
    assert len(runs) == ranks
    assert [block for run in runs for block in run] == list(range(len(nbytes)))
    if lengths is not None:
        assert [len(run) for run in runs] == lengths


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 2**40), max_size=200), st.integers(1, 300))
def test_every_block_on_exactly_one_rank_and_shares_about_equal(nbytes, ranks):
    runs = split_runs(np.array(nbytes, np.int64), ranks)
    assert len(runs) == ranks
    assert [block for run in runs for block in run] == list(range(len(nbytes)))
    # At either end a run is off by half a block, and by less than a byte.
    share = sum(max(size, 1) for size in nbytes) / ranks
    largest = max(nbytes, default=0)
    assert max(sum(nbytes[block] for block in run) for run in runs) <= share + largest + 2


@pytest.mark.parametrize("ranks", [0, -1])
def test_no_ranks(ranks):
    with pytest.raises(ValueError, match=f"among {ranks} ranks; give at least 1"):
        split_runs(np.array([8]), ranks)


@pytest.mark.parametrize(
    ("run", "nodes"),
    [
        (range(0), []),
        (range(5, 5), []),
        (range(1), [(0, 0)]),
        (range(8), [(3, 0)]),
        (range(7), [(2, 0), (1, 2), (0, 6)]),
        (range(1, 8), [(0, 1), (1, 1), (2, 1)]),
        (range(3, 9), [(0, 3), (2, 1), (0, 8)]),
        (range(12, 16), [(2, 3)]),
    ],
    ids=str,
)
def test_subtrees(run, nodes):
    assert list(subtrees(run)) == nodes


@pytest.mark.parametrize("stop", range(1, 34))
def test_subtrees_cover_each_block_once_with_at_most_two_nodes_a_level(stop):
    for start in range(stop):
        nodes = list(subtrees(range(start, stop)))
        covered = [
            block for level, index in nodes for block in range(index << level, index + 1 << level)
        ]
        assert covered == list(range(start, stop))
        levels = [level for level, _ in nodes]
        assert max(map(levels.count, levels)) <= 2
        assert len(nodes) <= 2 * math.log2(stop) + 2


def records(blocks):
    """Records whose merge depends on the order: means from 1e8 down to 1."""
    rng = np.random.default_rng(0)
    made = []
    for block in range(blocks):
        accumulator = SeriesAccumulator(3, [1])
        values = 10.0 ** (8 - block % 9) + rng.standard_normal((3, 1, 5, 3))
        accumulator.add(values, np.arange(3), first=0)
        made.append(accumulator.finish())
    return made


RECORDS = records(61)


def merged(order, blocks):
    tree = MergeTree(blocks)
    for block in order:
        tree.add((0, block), RECORDS[block])
    return tree


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 7, 8, 9, 13, 60])
def test_order_does_not_matter(blocks):
    expected = merged(range(blocks), blocks).root().tobytes()
    assert merged(reversed(range(blocks)), blocks).root().tobytes() == expected
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(blocks).tolist()
        assert merged(order, blocks).root().tobytes() == expected


def test_the_tree_matters():
    """Else the other tests would show nothing: one after the other gives other bits."""
    total = empty(2, 3)
    for record in RECORDS[:60]:
        total = merge(total, record)
    assert total.tobytes() != merged(range(60), 60).root().tobytes()


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("appended", [1, 2, 11])
def test_appended_blocks_leave_complete_nodes(blocks, appended):
    """What a rank has merged of a store stays valid when the store grows at its end."""
    before, after = MergeTree(blocks), MergeTree(blocks + appended)
    for node in subtrees(range(blocks)):
        part = MergeTree(1 << node[0])
        for block in range(1 << node[0]):
            part.add((0, block), RECORDS[(node[1] << node[0]) + block])
        before.add(node, part.root())
        after.add(node, part.root())
    for block in range(blocks, blocks + appended):
        after.add((0, block), RECORDS[block])
    assert before.root().tobytes() == merged(range(blocks), blocks).root().tobytes()
    grown = merged(range(blocks + appended), blocks + appended).root()
    assert after.root().tobytes() == grown.tobytes()


@pytest.mark.parametrize(
    ("added", "blocks"),
    [
        pytest.param([], 1, id="none"),
        pytest.param([(0, 0), (0, 2)], 3, id="hole"),
        pytest.param([(0, 0), (0, 1)], 3, id="end"),
        pytest.param([(1, 0), (0, 0)], 2, id="a-node-and-a-block-of-it"),
        pytest.param([(0, 0), (1, 0), (1, 1)], 4, id="a-block-and-the-node-above"),
    ],
)
def test_a_hole_or_a_repeated_block_is_an_error(added, blocks):
    tree = MergeTree(blocks)
    for node in added:
        tree.add(node, RECORDS[0])
    with pytest.raises(ValueError, match=f"{blocks} blocks don't merge to one"):
        tree.root()


@pytest.mark.parametrize("before", [[], [(0, 1)]], ids=["alone", "merged"])
def test_the_same_node_twice_is_an_error(before):
    tree = MergeTree(2)
    for node in [*before, (0, 0)]:
        tree.add(node, RECORDS[0])
    with pytest.raises(ValueError, match=r"counted twice|don't merge to one"):
        tree.add((0, 0), RECORDS[0]) or tree.root()


def test_4096_ranks():
    """Each sends a few nodes, and all that are sent make the tree of one rank."""
    blocks = 10_000
    tree, sent = MergeTree(blocks), []
    one = empty(1, 1)
    one[COUNT] = 1
    for run in split_runs(np.full(blocks, 64_000_000), 4096):
        own = MergeTree(blocks)
        for block in run:
            own.add((0, block), one)
        sent.append(len(own.nodes))
        for node, record in own.nodes.items():
            tree.add(node, record)
    assert max(sent) <= 2 * math.log2(blocks) + 2
    assert tree.root()[COUNT].item() == blocks


# The whole way: samples of 13 steps in two series, blocks of 5 steps, simulated ranks.

SAMPLE_STEPS, BLOCK_STEPS, LAGS = 13, 5, (3, 1)
STATE = np.random.default_rng(1).standard_normal((13, SAMPLE_STEPS, 2, 30, 2)) + 1e5
FLUX = np.random.default_rng(2).standard_normal((13, SAMPLE_STEPS, 1, 30, 1)).clip(0) * 300


def cut(samples):
    """Blocks of a series as (sample, first step, stop)."""
    return [
        (sample, first, min(first + BLOCK_STEPS, SAMPLE_STEPS))
        for sample in range(samples)
        for first in range(0, SAMPLE_STEPS, BLOCK_STEPS)
    ]


def plan_of(samples):
    """A plan as the engine makes one, of two series; the second has half the bytes."""
    bounds = cut(samples)
    steps = np.array([stop - first for _, first, stop in bounds], np.int64)
    series = tuple(
        SimpleNamespace(group=group, columns=columns, block_nbytes=steps * size)
        for group, columns, size in [("state", range(4), KIB), ("flux", range(1), KIB // 2)]
    )
    source = SimpleNamespace(series=series)
    return Plan(source=source, lags=LAGS, infinite="fail", block_bytes=KIB)


def trees_of(plan, samples, rank, ranks):
    """What a rank has merged: it remembers steps inside its run, and reads those before again."""
    trees = [MergeTree(length) for length in plan.lengths]
    for run in plan.runs(rank, ranks):
        fields = (STATE, FLUX)[run.series]
        accumulator = SeriesAccumulator(fields.shape[2] * fields.shape[4], LAGS)
        for block in run.blocks:
            sample, first, stop = cut(samples)[block]
            context = min(first, max(LAGS)) if block == run.blocks.start else 0
            read = slice(first - context, stop)
            accumulator.add(
                np.ascontiguousarray(fields[sample, read]),
                np.arange(SAMPLE_STEPS)[read],
                first=sample * SAMPLE_STEPS + read.start,
                context=context,
            )
            trees[run.series].add((0, block), accumulator.finish())
    return trees


class Sent(Exception):  # noqa: N818 - carries what a rank sends
    """Raised with a rank's vector, since nobody is there to send it to."""


def gather(plan, of_ranks):
    """Each rank's result: an `all_gather` made of what all ranks send."""

    def collect(trees):
        def all_gather(tensor):
            if tensor.numel() == 1:
                return torch.zeros(len(of_ranks), 1)
            raise Sent(tensor)

        with pytest.raises(Sent) as sent:
            gather_nodes(plan, trees, all_gather)
        return sent.value.args[0]

    vectors = torch.stack([collect(trees) for trees in of_ranks])

    def all_gather(tensor):
        return torch.zeros(len(of_ranks), 1) if tensor.numel() == 1 else vectors

    return [gather_nodes(plan, trees, all_gather) for trees in of_ranks]


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 7, 13])
def test_same_bits_on_any_number_of_ranks(samples):
    plan = plan_of(samples)
    alone = trees_of(plan, samples, 0, 1)
    expected = [tree.root().tobytes() for tree in alone]
    assert [r.tobytes() for r in gather_nodes(plan, alone, lambda tensor: tensor)] == expected
    for ranks in range(1, 14):
        of_ranks = [trees_of(plan, samples, rank, ranks) for rank in range(ranks)]
        for records in gather(plan, of_ranks):
            assert [record.tobytes() for record in records] == expected


def test_a_rank_that_sends_the_blocks_of_another_is_noticed():
    plan = plan_of(2)
    first = trees_of(plan, 2, 0, 2)
    with pytest.raises(ValueError, match="counted twice"):
        gather(plan, [first, first])
