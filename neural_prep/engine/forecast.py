"""What a run will take, from its plan alone: each rank's share, memory, records and time.

Memory is a bound: imports; the plan; pieces in flight and being decoded; the steps that the lags
look back on; the step records that arithmetic has in hand. Pieces are fewer while ranks wait for
the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neural_prep.data.source import Group, Outline
from neural_prep.engine.plan import Plan
from neural_prep.engine.reading import READ_AHEAD, most_pieces

IMPORTS = 450_000_000  # bytes of torch, Lightning, numba and zarr, and of an empty run
RATE = 400_000_000  # bytes a second that one core decodes (zstd) and sums: tests/bench/rates.py
_LEAST = 2  # pieces in flight, the one in use among them
_STEP_RECORDS = 8_000_000
_PER_BLOCK, _PER_STEP = 40, 32  # bytes of a plan
_NUMBER = 8  # bytes of a float64
_RECORD = (3, 8)  # numbers of a record: of its place, and of each column


@dataclass(frozen=True, slots=True)
class GroupForecast:
    """One group: what there is, and in how many parts it is read.

    Attributes:
        name: `state`, `forcing`, `flux` or `static`.
        variables: Number of variables.
        steps: Selected steps, those of all members and forecasts.
        trajectories: Trajectories of these steps.
        bytes: Uncompressed bytes.
        blocks: Blocks of all its series.
        pieces: Pieces of these blocks.
        objects: Chunks, shards or files.
    """

    name: str
    variables: int
    steps: int
    trajectories: int
    bytes: int
    blocks: int
    pieces: int
    objects: int


@dataclass(frozen=True, slots=True)
class Spread:
    """The least and the most that a rank has."""

    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Shares:
    """What ranks have, each as least and most.

    Attributes:
        blocks: Blocks.
        bytes: Uncompressed bytes.
        again: Bytes that are read again for the lags, counted by another rank.
        records: Records that are sent in the end.
    """

    blocks: Spread
    bytes: Spread
    again: Spread
    records: Spread


@dataclass(frozen=True, slots=True)
class Memory:
    """The most memory that a rank takes, in bytes.

    Attributes:
        imports: Python's modules.
        plan: Times and blocks.
        pieces: Pieces that are in flight or being decoded.
        lags: Steps that lags look back on.
        arithmetic: Records of steps.
    """

    imports: int
    plan: int
    pieces: int
    lags: int
    arithmetic: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.imports + self.plan + self.pieces + self.lags + self.arithmetic


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run will take.

    Attributes:
        groups: Each group.
        ranks: Number of ranks.
        nodes: Number of nodes.
        threads: Threads of each rank.
        shares: What ranks have.
        again: Bytes that all ranks read again for the lags.
        memory: Of a rank.
        gathered: Bytes of all ranks' records, which each rank receives in the end.
        rate: Bytes a second of one rank.
        seconds: Time of the rank with the most to read.
    """

    groups: tuple[GroupForecast, ...]
    ranks: int
    nodes: int
    threads: int
    shares: Shares
    again: int
    memory: Memory
    gathered: int
    rate: int
    seconds: float


def forecast(
    plan: Plan,
    *,
    ranks: int,
    nodes: int,
    threads: int,
    piece_steps: int | None = None,
    read_ahead: int = READ_AHEAD,
    rate: int = RATE,
) -> Forecast:
    """What a run of this plan will take.

    Args:
        plan: The plan.
        ranks: Ranks on all nodes.
        nodes: Number of nodes.
        threads: Threads of each rank.
        piece_steps: Steps that are read at once; None: as many as make about 16 MB.
        read_ahead: Uncompressed bytes in flight.
        rate: Uncompressed bytes that a rank reads, decodes and sums in a second.
    """
    outlines = [
        series.outline(lag=plan.reach_of(index), piece_steps=piece_steps)
        for index, series in enumerate(plan.source.series)
    ]
    blocks, nbytes, again = _shares(plan, outlines, ranks)
    nodes_sent = plan.nodes(ranks)
    widths = [int(np.prod(plan.record_shape(index))) for index in range(len(outlines))]
    numbers = [
        sum(count * (_RECORD[0] + _RECORD[1] * widths[index]) for index, count in each.items())
        for each in nodes_sent
    ]
    return Forecast(
        groups=tuple(_group(plan, outlines, group) for group in plan.source.groups),
        ranks=ranks,
        nodes=nodes,
        threads=threads,
        shares=Shares(
            _spread(blocks),
            _spread(nbytes),
            _spread(again),
            _spread([sum(each.values()) for each in nodes_sent]),
        ),
        again=int(again.sum()),
        memory=_memory(
            plan,
            outlines,
            share=int((nbytes + again).max()),
            threads=threads,
            read_ahead=read_ahead,
        ),
        gathered=max(numbers) * ranks * _NUMBER,
        rate=rate,
        seconds=int((nbytes + again).max()) / rate,
    )


def _group(plan: Plan, outlines: Sequence[Outline], group: Group) -> GroupForecast:
    mine = [
        (series, outline)
        for series, outline in zip(plan.source.series, outlines, strict=True)
        if series.group == group.name
    ]
    return GroupForecast(
        name=group.name,
        variables=len(group.variables),
        steps=group.steps,
        trajectories=group.trajectories,
        bytes=sum(int(series.block_nbytes.sum()) for series, _ in mine),
        blocks=sum(len(series.block_nbytes) for series, _ in mine),
        pieces=sum(int(outline.pieces.sum()) for _, outline in mine),
        objects=sum(outline.objects for _, outline in mine),
    )


def _shares(
    plan: Plan, outlines: Sequence[Outline], ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Each rank's blocks, bytes and bytes read again, `(ranks,)`."""
    nbytes = [_sums(series.block_nbytes) for series in plan.source.series]
    again = [_sums(outline.again) for outline in outlines]
    found = np.zeros((3, ranks), np.int64)
    for rank, runs in enumerate(plan.all_runs(ranks)):
        for run in runs:
            first, stop = run.blocks.start, run.blocks.stop
            # Later blocks come after their predecessors on the same rank.
            lone = min(first + outlines[run.series].apart, stop)
            found[:, rank] += (
                len(run.blocks),
                nbytes[run.series][stop] - nbytes[run.series][first],
                again[run.series][lone] - again[run.series][first],
            )
    return found[0], found[1], found[2]


def _sums(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(values)))


def _spread(values: Sequence[int] | NDArray[np.int64]) -> Spread:
    return Spread(int(min(values)), int(max(values)))


def _memory(
    plan: Plan, outlines: Sequence[Outline], *, share: int, threads: int, read_ahead: int
) -> Memory:
    most = most_pieces(threads, remote=plan.source.remote)
    looked_back = [
        (plan.reach_of(index) or 1) * outline.step_nbytes if plan.lags_of(index) else 0
        for index, outline in enumerate(outlines)
    ]
    steps = max(group.steps for group in plan.source.groups)
    return Memory(
        imports=IMPORTS,
        plan=_PER_BLOCK * plan.blocks + _PER_STEP * steps,
        pieces=max(_in_memory(each, min(read_ahead, share), most, threads) for each in outlines),
        lags=max(looked_back),
        arithmetic=_STEP_RECORDS,
    )


def _in_memory(outline: Outline, read_ahead: int, most: int, threads: int) -> int:
    """Bytes of the pieces in flight, and of what each thread has in hand to put one together."""
    stored = outline.piece_nbytes // outline.growth
    ahead = min(max(read_ahead // max(stored, 1), _LEAST), most)
    return (ahead + threads) * outline.piece_nbytes
