"""The three kinds of tests, told apart by marker: how they are selected, ordered and sized."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

SINGLE, STATIC, DYNAMIC = "single", "multigpu_static", "multigpu_dynamic"
SIZE = "multigpu_world_size"  # the hidden parameter of dynamic tests
_KEYS = {
    STATIC: {"min_ranks": int, "ranks": (int, list, tuple), "timeout": (int, float)},
    DYNAMIC: {
        "world_size": (int, list, tuple),
        "timeout": (int, float),
        "process_group": bool,
    },
}
MARKERS = (
    f"{STATIC}(min_ranks=None, ranks=None, timeout=None): run on every rank of the one world of "
    "--multigpu-static; skipped with fewer than `min_ranks` ranks, and where their number is not "
    "among `ranks`; fails after `timeout` seconds.",
    f"{DYNAMIC}(world_size=None, timeout=None, process_group=True): run in a fresh world, one test "
    "for each `world_size`, under --multigpu-dynamic; without `process_group` the body makes its "
    "own, from the environment.",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """How a distributed test is to be run: its marker's name and options."""

    name: str
    options: dict[str, Any]

    @property
    def is_static(self) -> bool:
        """Whether the one world that is reused runs it."""
        return self.name == STATIC

    def reason_to_skip(self, size: int) -> str | None:
        """Why so many ranks cannot run it."""
        at_least, allowed = self.options.get("min_ranks"), self.options.get("ranks")
        if at_least is not None and size < at_least:
            return f"needs at least {at_least} ranks; there {_are(size)}"
        if allowed is None:
            return None
        allowed = [allowed] if isinstance(allowed, int) else list(allowed)
        if size in allowed:
            return None
        return f"needs {' or '.join(map(str, allowed))} ranks; there {_are(size)}"


def kind_of(item: pytest.Item) -> Kind | None:
    """The kind of a distributed test, by its nearest marker; None for a test of one process."""
    for mark in item.iter_markers():
        if mark.name in _KEYS:
            return Kind(mark.name, dict(mark.kwargs))
    return None


def check_markers(items: Sequence[pytest.Item]) -> None:
    """Refuses markers that say what nobody would hear.

    Raises:
        pytest.UsageError: naming the first such test.
    """
    for item in items:
        for mark in item.iter_markers():
            keys = _KEYS.get(mark.name)
            if keys is None:
                continue
            if mark.args:
                raise _refusal(item, mark.name, f"takes no value without a name: {mark.args[0]!r}")
            for name, value in mark.kwargs.items():
                if name not in keys:
                    raise _refusal(item, mark.name, f"has no option {name!r}")
                if value is not None and not _fits(value, keys[name]):
                    raise _refusal(item, mark.name, f"{name} cannot be {value!r}")


def parametrize_sizes(metafunc: pytest.Metafunc) -> None:
    """Makes one test of a dynamic test for each of its world sizes."""
    marks = [mark for mark in metafunc.definition.iter_markers() if mark.name in _KEYS]
    if not marks or marks[0].name != DYNAMIC:
        return
    sizes = marks[0].kwargs.get("world_size")
    if sizes is None or not _fits(sizes, (int, list, tuple)):
        return
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    metafunc.fixturenames.append(SIZE)
    metafunc.parametrize(SIZE, sizes, ids=[f"ranks={size}" for size in sizes], indirect=True)


def skip_unfit(items: Sequence[pytest.Item], size: int) -> None:
    """Has pytest skip the tests that so many ranks cannot run."""
    for item in items:
        kind = kind_of(item)
        reason = kind.reason_to_skip(size) if kind else None
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def size_of(item: pytest.Item, default: int) -> int:
    """The number of ranks of a dynamic test."""
    callspec = getattr(item, "callspec", None)
    return default if callspec is None else callspec.params.get(SIZE, default)


def seed_of(nodeid: str) -> int:
    """A seed for a test's random generators: alike on all ranks and in every run."""
    return zlib.crc32(nodeid.encode())


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(value, list | tuple):
        sound = all(isinstance(size, int) and size > 0 for size in value)
        sound = sound and len(set(value)) == len(value)
        return sound and bool(value) and list in (wanted if isinstance(wanted, tuple) else ())
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, wanted) and value > 0


def _refusal(item: pytest.Item, marker: str, what: str) -> pytest.UsageError:
    known = ", ".join(_KEYS[marker])
    return pytest.UsageError(f"{item.nodeid}: marker {marker} {what}; its options are {known}")


def _are(size: int) -> str:
    return "is 1" if size == 1 else f"are {size}"
