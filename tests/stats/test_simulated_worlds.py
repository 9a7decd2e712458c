"""Worlds of thousands of ranks in one process: the same bits as one rank, and little to send.

Plan, trees, vectors and merge are the real ones; only the network between ranks is played.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import zarr

from neural_prep.data.layouts import open_source
from neural_prep.data.source import StoreOptions
from neural_prep.engine import gather
from neural_prep.engine.plan import Plan
from neural_prep.engine.reading import PieceReader
from neural_prep.stats.accumulate import SeriesAccumulator
from neural_prep.stats.moments import COUNT, M2, MEAN, empty
from neural_prep.stats.tree import MergeTree

LAGS = (1, 3)


def write_times(group, steps):
    time = group.create_array("time", data=np.arange(steps), dimension_names=("time",))
    time.attrs["units"] = "hours since 1990-01-01"


def plan_of(path, block_bytes, lags=LAGS):
    source = open_source("auto", StoreOptions(str(path), block_bytes=block_bytes))
    return Plan(source, lags, "fail", block_bytes)


@pytest.fixture(scope="module")
def read_world(tmp_path_factory):
    """A store of 1,400 blocks in three series, all of them read: the plan and the records."""
    path = tmp_path_factory.mktemp("read")
    group = zarr.open_group(path, mode="w", zarr_format=3)
    generator = np.random.default_rng(4)
    for name, steps, features, chunk in (("state", 600, 3, 2), ("forcing", 600, 2, 2)):
        values = generator.normal(1e5, 3.0, (steps, features, 6)).astype(np.float32)
        group.create_array(
            name,
            data=values,
            chunks=(1 if name == "state" else 3, chunk, 6),
            dimension_names=("time", f"{name}_feature", "grid_index"),
        )
    write_times(group, 600)
    plan = plan_of(path, block_bytes=1)
    records, accumulators = {}, {}
    for pending in PieceReader(plan, plan.runs(0, 1), piece_steps=1, workers=2):
        batch = pending.result()
        accumulator = accumulators.setdefault(
            batch.series,
            SeriesAccumulator(len(plan.source.series[batch.series].columns), LAGS),
        )
        span = batch.piece.span
        accumulator.add(batch.piece.values, batch.piece.age, first=span.first, context=span.context)
        if batch.last:
            records[batch.series, batch.block] = accumulator.finish()
    return plan, records


@pytest.fixture(scope="module")
def large_world(tmp_path_factory):
    """A plan of 50,000 blocks in 20 series, as metadata only, and records that depend on order."""
    path = tmp_path_factory.mktemp("large")
    group = zarr.open_group(path, mode="w", zarr_format=3)
    for number in range(20):
        group.create_array(
            f"v{number}", shape=(10_000, 90, 180), chunks=(1, 90, 180), dtype="f4",
            dimension_names=("time", "latitude", "longitude"),
        )  # fmt: skip
    write_times(group, 10_000)
    plan = plan_of(path, block_bytes=4 * 4 * 90 * 180)
    generator = np.random.default_rng(5)
    pool = []
    for number in range(97):
        record = empty(1 + len(LAGS), 1)
        record[COUNT] = 64_800
        record[MEAN] = 10.0 ** (8 - number % 9) + generator.standard_normal(record[MEAN].shape)
        record[M2] = generator.random(record[M2].shape) * 1e5
        pool.append(record)
    return plan, {
        (series, block): pool[(31 * series + block) % len(pool)]
        for series, length in enumerate(plan.lengths)
        for block in range(length)
    }


WORLDS = pytest.mark.parametrize("world", ["read_world", "large_world"])


def trees_of(plan, records, runs, order):
    """A rank's nodes of the blocks that it has read or found in a journal, in any order."""
    blocks = [(run.series, block) for run in runs for block in run.blocks]
    trees = [MergeTree(length) for length in plan.lengths]
    for at in order.permutation(len(blocks)):
        series, block = blocks[at]
        trees[series].add((0, block), records[series, block])
    return trees


def bits(records):
    return [record.tobytes() for record in records]


def alone(plan, records):
    """The bits of one rank, block after block: without gather."""
    trees = [MergeTree(length) for length in plan.lengths]
    for (series, block), record in sorted(records.items()):
        trees[series].add((0, block), record)
    return bits(tree.root() for tree in trees)


def play(plan, records, ranks):
    """What the first, the middle and the last rank end with, and what each rank sends."""
    order = np.random.default_rng(ranks)
    of_ranks = [trees_of(plan, records, runs, order) for runs in plan.all_runs(ranks)]
    whole = [slice(0, math.prod(plan.record_shape(series))) for series in range(len(plan.lengths))]
    vectors = [gather.pack(trees, whole) for trees in of_ranks]
    everything = np.full((ranks, max(map(len, vectors))), -1.0)
    for row, vector in zip(everything, vectors, strict=True):
        row[: len(vector)] = vector

    def result(rank):
        def all_gather(tensor):
            if tensor.numel() == 1:
                return torch.zeros(ranks, 1)
            assert tensor.numpy().tobytes() == everything[rank].tobytes()  # no number too many
            return torch.from_numpy(everything)

        return bits(gather.gather_nodes(plan, of_ranks[rank], all_gather))

    sent = [sum(len(tree.nodes) for tree in trees) for trees in of_ranks]
    return [result(rank) for rank in sorted({0, ranks // 2, ranks - 1})], sent


@WORLDS
@pytest.mark.parametrize("ranks", [2, 1024, 4096])
def test_same_bits_as_one_rank(world, ranks, request):
    plan, records = request.getfixturevalue(world)
    expected = alone(plan, records)
    results, sent = play(plan, records, ranks)
    assert all(result == expected for result in results)
    assert sent == [sum(nodes.values()) for nodes in plan.nodes(ranks)]


@WORLDS
@pytest.mark.parametrize("ranks", [3, 1024])
def test_same_bits_with_blocks_of_an_earlier_start(world, ranks, request):
    """Finished blocks are no work, so shares are cut elsewhere and hold many of them."""
    plan, records = request.getfixturevalue(world)
    picked = np.random.default_rng(ranks).random(len(records)) < 0.7
    done = [np.zeros(length, np.bool_) for length in plan.lengths]
    for (series, index), is_done in zip(records, picked, strict=True):
        done[series][index] = is_done
    resumed = replace(plan, done=tuple(done))
    assert resumed.all_runs(ranks) != plan.all_runs(ranks)
    results, _ = play(resumed, records, ranks)
    assert all(result == alone(plan, records) for result in results)


@pytest.mark.parametrize("ranks", [1, 2, 100])
def test_records_that_travel_in_strips_have_the_same_bits(large_world, ranks, monkeypatch):
    plan, records = large_world
    monkeypatch.setattr(gather, "MOST_BYTES", 1)  # one column at a time
    order = np.random.default_rng(0)
    of_ranks = [trees_of(plan, records, runs, order) for runs in plan.all_runs(ranks)]
    gathered = []  # of each round that is over: what all ranks sent
    for _ in range(1 + len(LAGS)):
        gathered.append(torch.stack([send(plan, trees, ranks, gathered) for trees in of_ranks]))
    longest = max(sum(nodes.values()) for nodes in plan.nodes(ranks))
    assert [each.shape for each in gathered] == [(ranks, longest * (3 + 8))] * (1 + len(LAGS))
    rounds = iter(gathered)
    result = gather.gather_nodes(
        plan,
        of_ranks[-1],
        lambda tensor: torch.zeros(ranks, 1) if tensor.numel() == 1 else next(rounds),
    )
    assert bits(result) == alone(plan, records)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Plans of 100 TB, as metadata only: 300 arrays of small objects, and one of large ones."""
    plans = {}
    for name, arrays, steps, levels in (("300 series", 300, 80_266, 1), ("one", 1, 240_798, 100)):
        path = tmp_path_factory.mktemp("archive")
        group = zarr.open_group(path, mode="w", zarr_format=3)
        for number in range(arrays):
            group.create_array(
                f"v{number}",
                shape=(steps, levels, 721, 1440),
                chunks=(1, levels, 721, 1440),
                dtype="float32",
                dimension_names=("time", "level", "latitude", "longitude"),
            )
        write_times(group, steps)
        plans[name] = plan_of(path, block_bytes=64_000_000)
    return plans


@pytest.mark.parametrize("ranks", [1, 2, 16, 128, 1024, 4096])
@pytest.mark.parametrize("archive", ["300 series", "one"])
def test_a_rank_sends_a_few_records_and_one_of_each_series_that_it_has_all_of(
    archives, archive, ranks
):
    plan = archives[archive]
    for runs, nodes in zip(plan.all_runs(ranks), plan.nodes(ranks), strict=True):
        whole = sum(len(run.blocks) == plan.lengths[run.series] for run in runs)
        # The ends of its share cut two series, or one at both ends.
        assert sum(nodes.values()) <= whole + 2 * math.ceil(math.log2(max(plan.lengths)))


class Sent(Exception):  # noqa: N818 - carries what a rank sends
    """Raised with a rank's vector, since nobody is there to send it to."""


def send(plan, trees, ranks, gathered):
    """What a rank sends after the rounds that are over."""
    earlier = iter(gathered)

    def all_gather(tensor):
        if tensor.numel() == 1:
            return torch.zeros(ranks, 1)
        if (answer := next(earlier, None)) is None:
            raise Sent(tensor)
        return answer

    with pytest.raises(Sent) as sent:
        gather.gather_nodes(plan, trees, all_gather)
    return sent.value.args[0]
