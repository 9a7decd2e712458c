"""Runs a command and finds the most memory that each of its ranks had."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL = 0.05  # seconds


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest of all ranks, in bytes.

    Attributes:
        resident: All that was in memory, mapped files' pages in the page cache among them.
        anonymous: What belongs to the process alone and cannot be dropped by the kernel.
    """

    resident: int = 0
    anonymous: int = 0

    def __str__(self) -> str:
        """MB resident (anonymous)."""
        return f"{self.resident / 1e6:.0f} ({self.anonymous / 1e6:.0f})"

    def __or__(self, other: Peak) -> Peak:
        return Peak(max(self.resident, other.resident), max(self.anonymous, other.anonymous))


def run_watched(command: Sequence[str], env: dict[str, str]) -> tuple[float, Peak]:
    """Runs a command; returns its wall time and the peak of the largest process of its tree.

    Raises:
        RuntimeError: with what it said, if it failed.
    """
    begun, peak = time.monotonic(), Peak()
    with subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while True:
            try:
                _, said = process.communicate(timeout=_POLL)
                break
            except subprocess.TimeoutExpired:
                for pid in _tree(process.pid):
                    peak |= _peak_of(pid)
    if process.returncode:
        raise RuntimeError(f"status {process.returncode}: {said}")
    return time.monotonic() - begun, peak


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(task).split():
            yield from _tree(int(child))


def _peak_of(pid: int) -> Peak:
    found = {}
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssAnon"):
            found[name] = int(value.split()[0]) * 1024
    return Peak(found.get("VmHWM", 0), found.get("RssAnon", 0))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""
