"""Takes up what earlier starts have finished, so that all ranks agree on what is left.

Rank 0 has looked through the journal. It tells the others which blocks are there, so that all plan
alike, and tells each rank where the blocks of its own part are. The rank then makes sure that these
still hold, and reads again those whose store has changed since.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neural_prep.engine.journal import Found, Journal
from neural_prep.engine.peers import Peers
from neural_prep.engine.plan import Block, Plan, Run, digest
from neural_prep.engine.records import read_record
from neural_prep.engine.stamps import State, take_stamp
from neural_prep.stats.moments import Record

_FOUND, _PLACES = "found", "places"
_COUNTS = ("resumed", "resumed bytes", "changed", "different")
_AT_ONCE = 64  # blocks whose records are in memory before they are merged


@dataclass(frozen=True, slots=True)
class Taken:
    """What a rank has taken up.

    Attributes:
        plan: The plan with all blocks that were found, the same on every rank.
        finished: Blocks of this rank's part that still hold.
        changed: How many of its part don't.
        differs: Whether it has opened another store than rank 0, and so cannot go on.
    """

    plan: Plan
    finished: frozenset[Block] = frozenset()
    changed: int = 0
    differs: bool = False

    def count(self, peers: Peers) -> None:
        """Adds this rank's numbers to those that `all_taken` returns."""
        series = self.plan.source.series
        nbytes = (int(series[number].block_nbytes[index]) for number, index in self.finished)
        numbers = (len(self.finished), sum(nbytes), self.changed, int(self.differs))
        for what, number in zip(_COUNTS, numbers, strict=True):
            peers.count(what, number)


@dataclass(frozen=True, slots=True)
class AllTaken:
    """What all ranks have taken up.

    Attributes:
        blocks: Finished blocks.
        nbytes: Their uncompressed bytes.
        changed: Blocks that were finished and have changed since.
        different: Ranks that have opened another store than rank 0.
    """

    blocks: int = 0
    nbytes: int = 0
    changed: int = 0
    different: int = 0

    def lines(self, blocks: int) -> list[str]:
        """What the user is told, of so many blocks in all.

        >>> AllTaken(3, 100, 1).lines(5)
        ['resuming: 3 of 5 blocks done', '1 block has changed since and is read again']
        """
        if not (self.blocks or self.changed):
            return []
        lines = [f"resuming: {self.blocks} of {blocks} blocks done"]
        if self.changed == 1:
            lines.append("1 block has changed since and is read again")
        elif self.changed:
            lines.append(f"{self.changed} blocks have changed since and are read again")
        return lines


def all_taken(peers: Peers) -> AllTaken:
    """What all ranks have taken up, once all have counted it."""
    return AllTaken(*(peers.count(what) for what in _COUNTS))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A block that the journal holds: in which file, and where its record begins."""

    block: Block
    path: Path
    begin: int


def take_up(
    journal: Journal,
    plan: Plan,
    peers: Peers,
    *,
    threads: int,
    idle: Callable[[], None],
    add: Callable[[Block, Record], None],
) -> Taken:
    """Agrees with all ranks on what is done, and takes up this rank's part of it.

    Args:
        journal: The journal; rank 0 knows what was found.
        plan: The plan without it.
        peers: All ranks.
        threads: How many records are looked at at once.
        idle: Called over and over; what it raises ends this.
        add: Called with each block that still holds, and its record.
    """
    if peers.rank == 0:
        _tell(journal, plan, peers)
    told, _, bits = peers.hear(_FOUND, idle).partition(b"\n")
    start, files, same = json.loads(told)
    if same != _store_of(journal, plan):
        return Taken(plan, differs=True)
    journal.begin(start, peers.rank)
    plan = _with_done(plan, np.unpackbits(np.frombuffer(bits, np.uint8)))
    if not plan.done:
        return Taken(plan)
    runs = plan.runs(peers.rank, peers.ranks)
    places = np.frombuffer(peers.hear(f"{_PLACES}/{peers.rank}", idle), np.int64).reshape(-1, 2)
    blocks = [(run.series, block) for run in runs for block in run.blocks]
    own = [
        _Kept(block, journal.folder / files[file], int(begin))
        for block, (file, begin) in zip(blocks, places, strict=True)
        if file >= 0
    ]
    finished = []
    with ThreadPoolExecutor(threads, thread_name_prefix="journal") as pool:
        for batch in (own[at : at + _AT_ONCE] for at in range(0, len(own), _AT_ONCE)):
            idle()
            for kept, record in zip(batch, pool.map(partial(_load, plan, {}), batch), strict=True):
                if record is not None:
                    add(kept.block, record)
                    finished.append(kept.block)
    return Taken(plan, frozenset(finished), len(own) - len(finished))


def _tell(journal: Journal, plan: Plan, peers: Peers) -> None:
    """Tells all ranks which blocks are done, and each where those of its part are."""
    found = journal.found
    assert found is not None, "rank 0 has not looked"
    done = np.concatenate(found.file) >= 0
    plan = _with_done(plan, done)
    for rank, runs in enumerate(plan.all_runs(peers.ranks) if plan.done else ()):
        peers.tell(f"{_PLACES}/{rank}", b"".join(_places(found, run) for run in runs))
    told = json.dumps([found.start, found.files, _store_of(journal, plan)])
    peers.tell(_FOUND, told.encode() + b"\n" + np.packbits(done).tobytes())


def _store_of(journal: Journal, plan: Plan) -> str:
    """What all ranks must have opened alike."""
    return digest([journal.covered, plan.source.extent])


def _places(found: Found, run: Run) -> bytes:
    """File and place of each block of a run, as pairs."""
    blocks = slice(run.blocks.start, run.blocks.stop)
    pairs = [found.file[run.series][blocks], found.place[run.series][blocks]]
    return np.stack(pairs, axis=1).tobytes()


def _with_done(plan: Plan, done: NDArray[np.generic]) -> Plan:
    """The plan with these blocks of all series, in one line, as done."""
    lengths = plan.lengths
    done = done[: sum(lengths)].astype(np.bool_)
    return replace(plan, done=tuple(np.split(done, np.cumsum(lengths)[:-1])) if done.any() else ())


def _load(plan: Plan, known: dict[str, State], kept: _Kept) -> Record | None:
    """A block's record, if it is whole and the block would have the same bits now.

    Args:
        plan: The plan.
        known: States of files that were just looked at, for all blocks that share them.
        kept: Where the record is.
    """
    shapes = [plan.record_shape(series) for series in range(len(plan.lengths))]
    try:
        found = read_record(kept.path, kept.begin, shapes)
    except OSError:  # another node may see less than rank 0's
        return None
    if found is None or found[0] != kept.block:
        return None
    series, index = kept.block
    stamp = take_stamp(plan.source.series[series], index, plan.longest_lag(series), known)
    known.update(stamp.files)
    return found[2] if found[1] == stamp.digest else None
