"""Hooks for pytest-xdist: distributed tests go to one worker, others as they would without them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling

from neural_prep.testing.kinds import kind_of

_MARK = "@multigpu"  # ends the ids of distributed tests, where the scheduler sees them


class _OneWorkerForWorlds(LoadGroupScheduling):  # type: ignore[misc]
    """Sends the distributed tests to one worker, in their order."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.endswith(_MARK):
            return _MARK
        how = self.config.getvalue("dist")
        if how == "loadgroup":
            return str(super()._split_scope(nodeid))
        parts = {"loadscope": nodeid.rpartition("::")[0], "loadfile": nodeid.partition("::")[0]}
        return parts.get(how, nodeid)


class _Marked:
    """A distributed test whose id says so; pytest has no way to give a test another id."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self.nodeid = f"{item.nodeid}{_MARK}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._item, name)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling | None:
    """Replaces the schedulers that would start a world in every worker."""
    return None if config.getvalue("dist") == "each" else _OneWorkerForWorlds(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session: pytest.Session) -> Generator[None, None, None]:
    """Marks the ids of distributed tests while a worker sends them to the scheduler."""
    items = session.items
    if hasattr(session.config, "workerinput"):
        shown: list[Any] = [item if kind_of(item) is None else _Marked(item) for item in items]
        session.items = shown
    try:
        yield
    finally:
        session.items = items
