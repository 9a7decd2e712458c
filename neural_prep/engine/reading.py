"""Reads a rank's pieces in order, some ahead in threads while the arithmetic runs on earlier ones.

What is handed out is a piece that may still be being read, and whoever needs it waits: Lightning
asks for one batch ahead, and would wait for it before the arithmetic on the one in hand. Two pieces
at least are in flight, the one in use and the next; more while they fit into `data.read_ahead`.

The reader has no length on purpose: Lightning skips the epoch's end on a rank whose sized loader
is empty, and that end is where all ranks meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from neural_prep.data.chunked.retrying import REQUESTS
from neural_prep.data.chunked.threads import free_at_once, request_at_once
from neural_prep.data.source import Piece, Series, Span
from neural_prep.engine.plan import Block, Plan, Run
from neural_prep.engine.stamps import Stamp, take_stamp
from neural_prep.errors import InputError, ReadError

READ_AHEAD = 256_000_000  # bytes in flight, or two pieces where those are larger
_READS = 64  # threads that wait for a server far away
_MOST_PIECES = 4096  # in flight from there
_HANDED_OUT = 2  # pieces that Lightning has: one in use, one ahead
_STORED = 4  # of as many bytes, one more is there as it came from a server, or is being decoded
_POLL = 0.1  # seconds


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


@dataclass(frozen=True, slots=True)
class Request:
    """A piece that is to be read; a block of which no step is selected has no span."""

    run: Run
    block: int
    source: Series
    span: Span | None
    stamp: Future[Stamp]

    @property
    def nbytes(self) -> int:
        """Uncompressed bytes of the piece."""
        return 0 if self.span is None else self.span.nbytes


@dataclass(frozen=True, slots=True)
class Pending:
    """A piece that is being read, or has been."""

    request: Request
    piece: Future[Piece] | None

    def result(self, idle: Callable[[], None] = lambda: None) -> Batch:
        """Waits until the piece has been read.

        Args:
            idle: Called over and over while waiting; what it raises ends the wait.

        Raises:
            InputError: if it will never be read.
            ReadError: if it cannot be read now.
        """
        run, block, span = self.request.run, self.request.block, self.request.span
        stamp = self.request.stamp
        if self.piece is None or span is None:
            return Batch(run.series, block, None, True, stamp.result().digest)
        while not wait([self.piece], _POLL).done:
            idle()
        try:
            return Batch(run.series, block, self.piece.result(), span.last, stamp.result().digest)
        except (InputError, ReadError):
            raise
        except Exception as error:  # whatever else a codec or a file system may raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            where = self.request.source.place(span, 0)
            steps = span.stop - span.first
            raise ReadError(f"cannot read {steps} steps from {where} on ({reason})") from error


def most_pieces(workers: int, *, remote: bool) -> int:
    """How many pieces are in flight at most.

    From a disk few, since what has left the processor's cache is slow to sum.
    """
    return _MOST_PIECES if remote else 2 * workers + 2


class PieceReader:
    """All pieces of a rank's runs, in order: an iterable for Lightning's prediction loop.

    Args:
        plan: The plan of the run.
        runs: The rank's part of it.
        piece_steps: Steps of a piece; None: as many as make about 16 MB.
        workers: Threads that read and decode.
        read_ahead: Uncompressed bytes in flight; two pieces where those are more.
    """

    def __init__(
        self,
        plan: Plan,
        runs: tuple[Run, ...],
        *,
        finished: frozenset[Block] = frozenset(),
        piece_steps: int | None,
        workers: int,
        read_ahead: int = READ_AHEAD,
    ) -> None:
        self._plan = plan
        self._runs = runs
        self._finished = finished
        self._piece_steps = piece_steps
        self._workers = workers
        self._read_ahead = read_ahead
        self._most = most_pieces(workers, remote=plan.source.remote)

    def __iter__(self) -> Iterator[Pending]:
        threads = self._workers
        if self._plan.source.remote:
            request_at_once(REQUESTS)
            free_at_once()
            threads = max(threads, _READS)
        pool = ThreadPoolExecutor(threads, thread_name_prefix="reader")
        waiting: deque[Pending] = deque()
        in_use: deque[Request] = deque(maxlen=_HANDED_OUT)
        try:
            for request in self._requests(pool):
                while waiting and not self._has_room(request, waiting, in_use):
                    in_use.append(waiting[0].request)
                    yield waiting.popleft()
                waiting.append(_begin(request, pool))
            while waiting:
                yield waiting.popleft()
        except BaseException:  # whoever takes the pieces has gone
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown(wait=False)  # the last pieces that were handed out may yet be read

    def _has_room(self, request: Request, waiting: deque[Pending], in_use: deque[Request]) -> bool:
        """Whether another piece may be in flight besides those that wait and those in use."""
        requests = [request, *in_use, *(each.request for each in waiting)]
        nbytes = sum(each.nbytes for each in requests)
        nbytes += nbytes // _STORED if self._plan.source.remote else 0
        return nbytes <= self._read_ahead and len(waiting) + 2 <= self._most

    def _requests(self, pool: ThreadPoolExecutor) -> Iterator[Request]:
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
                    yield Request(run, block, series, span, stamp)
                if span is None:
                    yield Request(run, block, series, None, stamp)


def _begin(request: Request, pool: ThreadPoolExecutor) -> Pending:
    if request.span is None:
        return Pending(request, None)
    return Pending(request, pool.submit(_read, request.source, request.span, request.stamp))


def _take_stamp(series: Series, block: int, lag: int, earlier: Future[Stamp] | None) -> Stamp:
    """A block's stamp; steps that an earlier block has read are stamped as they were then."""
    return take_stamp(series, block, lag, {} if earlier is None else earlier.result().files)


def _read(series: Series, span: Span, stamp: Future[Stamp]) -> Piece:
    """Reads a span once its block has its stamp: a file that changes meanwhile is then found."""
    stamp.result()  # submitted earlier, so a thread is at it
    return series.read(span)
