"""Reads a rank's pieces in order, some ahead in threads while the arithmetic runs on earlier ones.

The reader has no length on purpose: Lightning skips the epoch's end on a rank whose sized loader
is empty, and that end is where all ranks meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from neural_prep.data.source import Piece, Series, Span
from neural_prep.engine.plan import Block, Plan, Run
from neural_prep.engine.stamps import Stamp, take_stamp
from neural_prep.errors import InputError

READ_AHEAD = 128_000_000  # bytes in flight, or two pieces where those are larger
MOST_PIECES = 128  # in flight: a mapped one holds a file descriptor


@dataclass(frozen=True, slots=True)
class Batch:
    """A piece and where it belongs; a block of which no step is selected comes without a piece.

    The stamp says what its block is made from.
    """

    series: int
    block: int
    piece: Piece | None
    last: bool
    stamp: bytes


class ReadError(Exception):
    """Part of the store cannot be read or decoded; the message says which."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A piece that is being read."""

    run: Run
    block: int
    source: Series
    span: Span | None
    piece: Future[Piece] | None
    stamp: Future[Stamp]

    @property
    def nbytes(self) -> int:
        return 0 if self.span is None else self.span.nbytes

    def result(self) -> Batch:
        if self.span is None or self.piece is None:
            return Batch(self.run.series, self.block, None, True, self.stamp.result().digest)
        try:
            piece = self.piece.result()
        except InputError:
            raise
        except Exception as error:  # whatever a codec or a file system may raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            where = self.source.place(self.span, 0)
            steps = self.span.stop - self.span.first
            raise ReadError(f"cannot read {steps} steps from {where} on ({reason})") from error
        return Batch(self.run.series, self.block, piece, self.span.last, self.stamp.result().digest)


class PieceReader:
    """All pieces of a rank's runs, in order: an iterable for Lightning's prediction loop."""

    def __init__(
        self,
        plan: Plan,
        runs: tuple[Run, ...],
        *,
        finished: frozenset[Block] = frozenset(),
        piece_steps: int | None,
        workers: int,
    ) -> None:
        self._plan = plan
        self._runs = runs
        self._finished = finished
        self._piece_steps = piece_steps
        self._workers = workers

    def __iter__(self) -> Iterator[Batch]:
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="reader")
        ahead: deque[_Request] = deque()
        nbytes = 0
        try:
            for request in self._requests(pool):
                ahead.append(request)
                nbytes += request.nbytes
                while len(ahead) > 2 and (nbytes > READ_AHEAD or len(ahead) > MOST_PIECES):
                    nbytes -= ahead[0].nbytes
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _requests(self, pool: ThreadPoolExecutor) -> Iterator[_Request]:
        for run in self._runs:
            series = self._plan.source.series[run.series]
            lag = self._plan.longest_lag(run.series)
            blocks = [block for block in run.blocks if (run.series, block) not in self._finished]
            before = {block: series.predecessor(block) for block in blocks}
            continuing = set(before.values())
            stamps: dict[int | None, Future[Stamp]] = {}  # of blocks that a later one continues
            for block in blocks:
                earlier = stamps.pop(before[block], None)
                stamp = pool.submit(_take_stamp, series, block, lag, earlier)
                if block in continuing:
                    stamps[block] = stamp
                spans = series.spans(
                    block,
                    lag=self._plan.reach_of(run.series),
                    piece_steps=self._piece_steps,
                    continued=earlier is not None,
                )
                span = None
                for span in spans:
                    piece = pool.submit(_read_stamped, series, span, stamp)
                    yield _Request(run, block, series, span, piece, stamp)
                if span is None:
                    yield _Request(run, block, series, None, None, stamp)


def _take_stamp(series: Series, block: int, lag: int, earlier: Future[Stamp] | None) -> Stamp:
    """A block's stamp; steps that an earlier block has read are stamped as they were then."""
    return take_stamp(series, block, lag, {} if earlier is None else earlier.result().files)


def _read_stamped(series: Series, span: Span, stamp: Future[Stamp]) -> Piece:
    """Reads a span once its block has its stamp: a file that changes meanwhile is then found."""
    stamp.result()  # submitted earlier, so a thread is at it
    return series.read(span)
