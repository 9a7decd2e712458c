"""Where a rank's output goes: to the terminal, to a log that is kept, or through a prefix."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading

_TAIL = 65536  # bytes of a log that are read back


class Output:
    """One rank's output, until its world ends."""

    def __init__(self, rank: int, mode: str) -> None:
        """Opens it.

        Args:
            rank: The rank.
            mode: `rank0`: rank 0 writes where the leader does, others into their log; `all`: every
                line goes where the leader writes, after its rank.
        """
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the world
        self._captured: tuple[int, ...] = ()
        self._read = 0
        self._pump = Pump(rank, terminal=1) if mode == "all" else None
        if self._pump is not None:
            self.handles = (self._pump.writing, self._pump.writing)
        elif rank == 0:
            self.handles = (1, 2)
        else:
            self.handles = (self._log.fileno(), self._log.fileno())

    @property
    def log(self) -> int:
        """File number of the rank's log."""
        return self._log.fileno()

    def started(self) -> None:
        """Closes what the rank alone writes to from now on."""
        if self._pump is not None:
            self._pump.let_go()

    def keep(self, files: tuple[int, ...]) -> None:
        """Takes the files in which the rank's pytest keeps the running phase's output."""
        self._captured = files

    def unread(self) -> str:
        """What the rank has written in its running phase, and into its log since the last call."""
        parts = []
        for file in self._captured:
            with contextlib.suppress(OSError):
                parts.append(os.pread(file, _TAIL, max(os.fstat(file).st_size - _TAIL, 0)))
        size = os.fstat(self.log).st_size
        parts.append(os.pread(self.log, _TAIL, max(self._read, size - _TAIL)))
        self._read = size
        return b"".join(parts).decode(errors="replace")

    def close(self) -> None:
        """Closes it; what is on its way to the terminal gets there first."""
        if self._pump is not None:
            self._pump.close()
        for file in self._captured:
            with contextlib.suppress(OSError):
                os.close(file)
        self._captured = ()
        self._log.close()


class Pump:
    """Copies what is written into a pipe to the terminal, each line with its rank."""

    def __init__(self, rank: int, terminal: int) -> None:
        """Opens the pipe; its end to write to is `writing`."""
        reading, self.writing = os.pipe()
        self._is_held = True
        self._thread = threading.Thread(
            target=_copy, args=(reading, terminal, f"[rank {rank}] "), daemon=True, name="pump"
        )
        self._thread.start()

    def let_go(self) -> None:
        """Closes the end to write to, which others may have inherited."""
        if self._is_held:
            os.close(self.writing)
            self._is_held = False

    def close(self) -> None:
        """Waits until all is written, once nobody else can write."""
        self.let_go()
        self._thread.join(2.0)


def _copy(reading: int, terminal: int, prefix: str) -> None:
    with open(reading, errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(OSError):
                os.write(terminal, f"{prefix}{line.rstrip(chr(10))}\n".encode())
