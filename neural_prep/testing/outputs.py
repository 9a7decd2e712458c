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
        self._pump: threading.Thread | None = None
        self._owned: list[int] = []
        if mode == "all":
            reading, writing = os.pipe()
            self._owned = [writing]
            self._pump = threading.Thread(
                target=_copy, args=(reading, f"[rank {rank}] "), daemon=True, name=f"rank {rank}"
            )
            self._pump.start()
            self.handles = (writing, writing)
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
        while self._owned:
            os.close(self._owned.pop())

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
        self.started()
        if self._pump is not None:
            self._pump.join(2.0)
        for file in self._captured:
            with contextlib.suppress(OSError):
                os.close(file)
        self._captured = ()
        self._log.close()


def _copy(reading: int, prefix: str) -> None:
    with open(reading, errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(OSError):
                os.write(1, f"{prefix}{line.rstrip(chr(10))}\n".encode())
