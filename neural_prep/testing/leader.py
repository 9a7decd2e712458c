"""The pytest that people see: it hands distributed tests to worlds of ranks and reports for them.

A world whose ranks may disagree, after a failure, a hang, a death or a divergence, is ended and
started anew before the next test, so that one defect is one failure.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from _pytest.reports import TestReport

from neural_prep.testing.coverage import coverage_settings
from neural_prep.testing.kinds import DYNAMIC, STATIC, Kind, kind_of, size_of
from neural_prep.testing.leading import Leading, agree, limits_of, not_run, skipped, unknown
from neural_prep.testing.options import Options
from neural_prep.testing.preload import start_nursery
from neural_prep.testing.problems import About, Limits
from neural_prep.testing.verdict import merge
from neural_prep.testing.worlds import RankWorld, StartError, python_path
from neural_prep.world.ranks import Nursery, WorldError

_DEFAULT = 2  # ranks, where there is no GPU
_ATTEMPTS = 2  # to start the static world, before its tests are given up


class Leader(Leading):
    """Hooks of the session that leads."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        super().__init__(config, options)
        self._path = python_path()
        self._nursery: Nursery | None = None
        self._world: RankWorld | None = None  # the static one
        self._failures: list[str] = []  # of the static world to start, one after another
        self._worlds = 0
        self._starting = 0.0  # seconds that the running test's world took to start
        needs_ranks = DYNAMIC in options.kinds or not options.in_process
        if needs_ranks and not _is_in_xdist(config):
            self._get_nursery()  # imports torch while tests are collected

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Ends the ranks with the tests, before coverage is put together."""
        gently = False
        try:
            result = yield
            gently = True
            return result
        except (pytest.Session.Failed, pytest.Session.Interrupted):
            gently = True
            raise
        finally:
            self._close(gently=gently)

    def pytest_unconfigure(self) -> None:
        """Ends whatever an error has left."""
        self._close(gently=False)

    def _run(
        self, item: pytest.Item, kind: Kind, nextitem: pytest.Item | None
    ) -> Sequence[TestReport]:
        about = About(item.nodeid, item.location, dict.fromkeys(item.keywords, 1))
        limits = limits_of(item, kind, self._options)
        self._starting = 0.0
        try:
            if not kind.is_static:
                reports = self._run_dynamic(item, kind, about, limits)
            elif reason := kind.reason_to_skip(self._size):
                reports = skipped(about, reason)
            else:
                reports = self._run_static(item, nextitem, about, limits)
        except StartError as error:
            reports = not_run(about, str(error))
        except WorldError as error:
            self._close(gently=False)  # the next test starts anew
            reports = not_run(about, str(error))
        reports[0].duration += self._starting
        return reports

    def _run_static(
        self, item: pytest.Item, nextitem: pytest.Item | None, about: About, limits: Limits
    ) -> Sequence[TestReport]:
        world = self._static_world(item, limits)
        knowing = world.knows(item.nodeid)
        if len(knowing) < world.size:
            return not_run(about, unknown(world.collected, knowing))
        is_next = nextitem is not None and kind_of(nextitem) is not None
        following = nextitem.nodeid if is_next else None  # type: ignore[union-attr]
        accounts = world.run(item.nodeid, following, limits, self._warn)
        if not agree(accounts):
            self._world = None
            world.end(gently=all(account.done for account in accounts))
        return merge(about, accounts, limits)

    def _run_dynamic(
        self, item: pytest.Item, kind: Kind, about: About, limits: Limits
    ) -> Sequence[TestReport]:
        size = size_of(item, self._size)
        grouped = kind.options.get("process_group", True)
        world = self._start([item], size, DYNAMIC, limits, process_group=grouped)
        gently = False
        try:
            knowing = world.knows(item.nodeid)
            if len(knowing) < size:
                return not_run(about, unknown(world.collected, knowing))
            accounts = world.run(item.nodeid, None, limits, self._warn)
            gently = all(account.done for account in accounts)
        finally:
            world.end(gently=gently)
        return merge(about, accounts, limits)

    @property
    def _size(self) -> int:
        return self._options.ranks or self._get_nursery().gpus or _DEFAULT

    def _get_nursery(self) -> Nursery:
        if self._nursery is not None and not self._nursery.is_alive:
            self._close(gently=False)
        if self._nursery is None:
            ranks = self._options.ranks or _DEFAULT
            self._nursery = start_nursery(self._config, self._path, ranks)
        return self._nursery

    def _static_world(self, item: pytest.Item, limits: Limits) -> RankWorld:
        if self._world is not None:
            return self._world
        if len(self._failures) >= _ATTEMPTS:
            raise StartError(
                f"the world could not be started {_ATTEMPTS} times running; the last time: "
                f"{self._failures[-1]}"
            )
        items = [one for one in item.session.items if _is_static(one)]
        try:
            self._world = self._start(items, self._size, STATIC, limits, process_group=True)
        except StartError as error:
            self._failures.append(str(error))
            raise
        self._failures.clear()
        self._tell_strangers(self._world.collected, item.session)
        return self._world

    def _start(
        self,
        items: Sequence[pytest.Item],
        size: int,
        kind: str,
        limits: Limits,
        *,
        process_group: bool,
    ) -> RankWorld:
        self._worlds += 1
        begun = time.monotonic()
        temp: Path = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        world = RankWorld(
            self._get_nursery(),
            self._config,
            size=size,
            kind=kind,
            files=frozenset(str(item.path) for item in items),
            process_group=process_group,
            limits=limits,
            folder=temp / f"world{self._worlds}",
            path=self._path,
            output=self._options.output,
            coverage=coverage_settings(self._config),
        )
        self._starting = time.monotonic() - begun
        return world

    def _close(self, *, gently: bool) -> None:
        if self._world is not None:
            self._world.end(gently=gently)
            self._world = None
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None


def _is_static(item: pytest.Item) -> bool:
    kind = kind_of(item)
    return kind is not None and kind.is_static


def _is_in_xdist(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput") or bool(getattr(config.option, "numprocesses", None))
