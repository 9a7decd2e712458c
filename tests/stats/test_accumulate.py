"""Same bits however the steps of a block come: in which pieces, on how many threads, read again."""

import numpy as np
import pytest

from neural_prep.stats import arithmetic, kernel
from neural_prep.stats.accumulate import SeriesAccumulator, warm_up
from neural_prep.stats.arithmetic import HostArithmetic
from neural_prep.stats.moments import COUNT, MEAN, MISSING, empty, merge

STEPS = 13
AGE = [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, -1, 0]  # two trajectories; one step not selected
LAGS = [3, 1]
NOISE = np.random.default_rng(0).standard_normal((STEPS, 2, 40, 3))
VALUES = np.where(NOISE > 2, np.nan, 101325 + NOISE).astype(np.float32)


def add(accumulator, first, stop, *, context=0, values=VALUES, age=AGE, part=0):
    accumulator.add(
        values[first - context : stop],
        np.array(age[first - context : stop], np.int64),
        first=first - context,
        context=context,
        part=part,
    )


def block(*cuts, lags=LAGS, context=False, values=VALUES, threads=1):
    """The record of all steps, in pieces that end at the cuts."""
    host = HostArithmetic(threads)
    accumulator = SeriesAccumulator(6, lags, arithmetic=host)
    for first, stop in zip((0, *cuts), (*cuts, STEPS), strict=True):
        again = min(first, max(lags)) if context else 0
        add(accumulator, first, stop, context=again, values=values)
    host.close()
    return accumulator.finish().tobytes()


WHOLE = block()
CUTS = [(1,), (2, 3), (5, 6, 7, 12), (4, 8), tuple(range(1, STEPS))]


def test_whole(kernel_twin):
    """The block is its steps' records, merged in their order."""
    total = empty(3, 6)
    for step in kernel_twin.step_records(VALUES, AGE, LAGS):
        total = merge(total, step)
    assert total.tobytes() == WHOLE


@pytest.mark.parametrize("context", [False, True], ids=["remembered", "read-again"])
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_pieces(cuts, context):
    assert block(*cuts, context=context) == WHOLE


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
def test_threads(threads, monkeypatch):
    monkeypatch.setattr(arithmetic, "_SERIAL_BYTES", 0)
    assert block(threads=threads) == WHOLE
    assert block(3, 8, threads=threads) == WHOLE


@pytest.mark.parametrize("batch_bytes", [1, 3000, 10_000])
def test_batches_of_records(batch_bytes, monkeypatch):
    monkeypatch.setattr(arithmetic, "_BATCH_BYTES", batch_bytes)
    assert block() == WHOLE
    assert block(2, 9) == WHOLE


@pytest.mark.parametrize("lags", [[1], [3], [12], [1, 2, 3]], ids=str)
def test_lags_do_not_depend_on_each_other(lags):
    alone = [np.frombuffer(block(4, 5, lags=[lag])).reshape(8, 2, 6) for lag in lags]
    together = np.frombuffer(block(4, 5, lags=lags)).reshape(8, 1 + len(lags), 6)
    for kind, record in enumerate(alone, start=1):
        assert record[:, 0].tobytes() == together[:, 0].tobytes()
        assert record[:, 1].tobytes() == together[:, kind].tobytes()


@pytest.mark.parametrize("boundary", [1, 2, 5, 9, 12])
@pytest.mark.parametrize("cut", [1, 4, 13])
def test_a_block_that_goes_on_equals_one_that_reads_again(boundary, cut):
    """The rank that has just read the earlier steps keeps them; another rank reads them again."""
    goes_on, alone = SeriesAccumulator(6, LAGS), SeriesAccumulator(6, LAGS)
    for first in range(0, boundary, cut):
        add(goes_on, first, min(first + cut, boundary))
    goes_on.finish()
    add(goes_on, boundary, STEPS)
    add(alone, boundary, STEPS, context=min(boundary, max(LAGS)))
    assert goes_on.finish().tobytes() == alone.finish().tobytes()


def test_context_may_be_a_piece_of_its_own():
    one, two = SeriesAccumulator(6, LAGS), SeriesAccumulator(6, LAGS)
    add(one, 7, STEPS, context=3)
    two.add(VALUES[4:7], np.array(AGE[4:7]), first=4, context=3)
    add(two, 7, STEPS)
    assert one.finish().tobytes() == two.finish().tobytes()


def test_pieces_may_change_once_their_block_is_finished():
    """A reader may use its memory again."""
    accumulator, buffer = SeriesAccumulator(6, LAGS), VALUES[:8].copy()
    add(accumulator, 0, 8, values=buffer)
    accumulator.finish()
    buffer[:] = 0
    add(accumulator, 8, STEPS)
    alone = SeriesAccumulator(6, LAGS)
    add(alone, 8, STEPS, context=3)
    assert accumulator.finish().tobytes() == alone.finish().tobytes()


def test_parts_of_the_grid_keep_their_own_steps():
    """Blocks of two parts in turn: each goes on from its own last steps."""
    halves = [np.ascontiguousarray(VALUES[:, :, :15]), np.ascontiguousarray(VALUES[:, :, 15:])]
    in_turn = SeriesAccumulator(6, LAGS)
    records = {}
    for first, stop in [(0, 5), (5, 9), (9, STEPS)]:
        for part, values in enumerate(halves):
            add(in_turn, first, stop, values=values, part=part)
            records[part, first] = in_turn.finish().tobytes()
    for part, values in enumerate(halves):
        alone = SeriesAccumulator(6, LAGS)
        for first, stop in [(0, 5), (5, 9), (9, STEPS)]:
            add(alone, first, stop, values=values)
            assert alone.finish().tobytes() == records[part, first]


def test_a_part_may_change_its_size_with_the_trajectory():
    """As where runs of forecasts differ in how many are selected."""
    accumulator, alone = SeriesAccumulator(6, LAGS), SeriesAccumulator(6, LAGS)
    add(accumulator, 0, 4)
    accumulator.finish()
    fewer = np.ascontiguousarray(VALUES[:, :, :7])
    for each in (accumulator, alone):
        add(each, 4, 9, values=fewer)
    assert accumulator.finish().tobytes() == alone.finish().tobytes()


def test_a_gap_between_pieces():
    """Steps that nobody selected are not read; the next trajectory starts behind them."""
    accumulator = SeriesAccumulator(6, LAGS)
    add(accumulator, 0, 4)
    add(accumulator, 12, STEPS)
    expected = SeriesAccumulator(6, LAGS)
    add(expected, 0, STEPS, age=[0, 1, 2, 3] + [-1] * 8 + [0])
    assert accumulator.finish().tobytes() == expected.finish().tobytes()


def test_steps_that_the_lags_lack_are_noticed():
    accumulator = SeriesAccumulator(6, LAGS)
    with pytest.raises(AssertionError, match="3 steps before 7 lack"):
        add(accumulator, 7, STEPS)


def frozen(values):
    values = values.copy()
    values.flags.writeable = False
    return values


def unaligned(values):
    return np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].view(values.dtype)


KINDS = {
    "read-only": frozen,
    "every-other": lambda values: np.repeat(values, 2, axis=0)[::2],
    "grid-first": lambda values: np.asfortranarray(values),
    "unaligned": lambda values: unaligned(values).reshape(values.shape),
    "reversed": lambda values: values[::-1].copy()[::-1],
}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_any_kind_and_nothing_compiled_for_them(kind):
    compiled = len(kernel.summarise_steps.signatures)
    assert block(5, values=KINDS[kind](VALUES)) == WHOLE
    assert len(kernel.summarise_steps.signatures) == compiled


def test_warm_up_compiles_all_that_is_used():
    warm_up()
    compiled = len(kernel.summarise_steps.signatures)
    for dtype in (np.float32, np.float64):
        block(4, 6, values=VALUES.astype(dtype), threads=2)
    assert len(kernel.summarise_steps.signatures) == compiled


def test_no_points():
    accumulator = SeriesAccumulator(2, [1])
    assert accumulator.add(np.zeros((3, 2, 0, 1)), np.arange(3), first=0).tolist() == []
    assert accumulator.finish().tobytes() == empty(2, 2).tobytes()


def test_nothing_added():
    assert SeriesAccumulator(2, [1]).finish().tobytes() == empty(2, 2).tobytes()


def test_finish_starts_a_new_block():
    accumulator = SeriesAccumulator(1, [])
    for number in (3.0, 5.0):
        accumulator.add(np.full((1, 1, 2, 1), number), np.array([0]), first=0)
        record = accumulator.finish()
        assert record[[COUNT, MISSING, MEAN]].ravel().tolist() == [2, 0, number]


def test_infinite_steps_are_told(monkeypatch):
    values = np.ones((5, 1, 3, 1))
    values[1, 0, 2], values[4, 0, 0] = np.inf, -np.inf
    values[2, 0, 0] = np.nan
    for batch_bytes in (1, 8_000_000):
        monkeypatch.setattr(arithmetic, "_BATCH_BYTES", batch_bytes)
        accumulator = SeriesAccumulator(1, [1])
        assert accumulator.add(values, np.arange(5), first=0).tolist() == [1, 4]


def test_infinite_values_of_context_or_unselected_steps_are_not_told():
    """They are told, or not, where they are counted."""
    values = np.full((3, 1, 3, 1), np.inf)
    accumulator = SeriesAccumulator(1, [1])
    told = accumulator.add(values, np.array([0, 1, -1]), first=0, context=1)
    assert told.tolist() == [1]
