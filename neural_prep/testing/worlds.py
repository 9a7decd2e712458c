"""A world of ranks' sessions: started, asked to run a test, ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from neural_prep.testing.accounts import Account
from neural_prep.testing.following import Course
from neural_prep.testing.messages import (
    Captures,
    Collected,
    Finish,
    Run,
    Settings,
    Warned,
)
from neural_prep.testing.options import OUTSIDE
from neural_prep.testing.outputs import Output
from neural_prep.testing.problems import Limits
from neural_prep.world.environment import environment_of
from neural_prep.world.ranks import Gone, Message, Nursery, Ranks, ending
from neural_prep.world.watch import Stacks, TellStacks, request_dump, shorten_dump

_ENTRY = "neural_prep.testing.started:main"
_ANSWER = 1.0  # seconds until a rank must have told its stacks
_LEAVING = 5.0  # seconds that ranks have to tear down and end
_COLLECTING = 30.0  # seconds until ranks must have collected, besides a test's time
# Options that are the leader's business. Others are passed on.
_LEADERS_OWN: dict[str, Any] = {
    "multigpu_static": False,
    "multigpu_dynamic": False,
    "multigpu_all": False,
    "nproc_per_node": None,
    "xmlpath": None,
    "htmlpath": None,
    "report_log": None,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "usepdb": False,
    "trace": False,
    "maxfail": 0,
    "numprocesses": None,
    "tx": [],
    "dist": "no",
    "distload": False,
    "looponfail": False,
    "cov_source": [],
}


class StartError(Exception):
    """A world could not be started; the message says which rank failed, and how."""


class RankWorld:
    """Sessions of pytest in all ranks of one world."""

    def __init__(
        self,
        nursery: Nursery,
        config: pytest.Config,
        *,
        size: int,
        kind: str,
        files: frozenset[str],
        process_group: bool,
        limits: Limits,
        folder: Path,
        path: Sequence[str],
        output: str,
        coverage: dict[str, Any] | None,
    ) -> None:
        """Starts the ranks and waits until all have collected.

        Raises:
            StartError: if one of them failed.
        """
        self.size = size
        self._config = config
        self._folder = folder
        self._outputs = [Output(rank, output) for rank in range(size)]
        self.collected: list[Collected] = []
        self._ids: list[frozenset[str]] = []
        self._number = 0
        folder.mkdir(parents=True)
        options = rank_options(config)

        def settings(rank: int) -> Settings:
            capture = "no" if output == "all" else "fd" if rank else config.option.capture
            own = {"basetemp": str(folder / f"rank{rank}"), "capture": capture}
            return Settings(
                rank=rank,
                size=size,
                options={**options, **own},
                args=list(config.args),
                files=files,
                kind=kind,
                shared_temp=str(folder / "shared"),
                patience=2 * limits.timeout + 60,
                process_group=process_group,
                coverage=coverage,
            )

        try:
            self._ranks = Ranks(
                nursery,
                size,
                entry=_ENTRY,
                payload=settings,
                path=path,
                directory=str(config.invocation_params.dir),
                environment=lambda rank, port: environment_of(
                    rank, size, port=port, gpus=nursery.gpus, base=config.stash[OUTSIDE]
                ),
                outputs=lambda rank: self._outputs[rank].handles,
                logs=lambda rank: self._outputs[rank].log,
            )
            for one in self._outputs:
                one.started()
            self._await_collection(limits.timeout + _COLLECTING)
        except BaseException:
            self.end(gently=False)
            raise

    def knows(self, nodeid: str) -> list[int]:
        """The ranks that have collected this test."""
        return [rank for rank, ids in enumerate(self._ids) if nodeid in ids]

    def run(
        self, nodeid: str, following: str | None, limits: Limits, warn: Callable[[Warned], None]
    ) -> list[Account]:
        """Runs a test on all ranks, and gives up those that don't come to its end.

        Args:
            nodeid: The test.
            following: The next test of this world.
            limits: How long to wait.
            warn: Called with the ranks' warnings.
        """
        folder = self._folder / "shared" / f"{self._number}"
        self._number += 1
        self._ranks.send(Run(nodeid, following, str(folder)))
        course = Course(
            self._config,
            self._ranks,
            self.size,
            warn=warn,
            output=lambda rank: self._outputs[rank].unread(),
        )
        course.follow(limits)
        course.ask_where()
        for account in course.left:
            account.stacks = account.stacks or self._dump(account.rank)
        return course.accounts

    def end(self, *, gently: bool) -> None:
        """Ends all ranks, with time to tear down what is left or at once."""
        if hasattr(self, "_ranks"):
            if gently:
                self._ranks.send(Finish())
            self._ranks.end(_LEAVING if gently else 0.0)
        for output in self._outputs:
            output.close()

    def _dump(self, rank: int) -> Stacks | None:
        """Asks a rank whose threads don't get to answer."""
        with contextlib.suppress(OSError):
            self._outputs[rank].unread()
            request_dump(self.collected[rank].pid)
            time.sleep(_ANSWER / 4)
            text = self._outputs[rank].unread()
            if text.strip():
                return Stacks("code that keeps Python's lock", shorten_dump(text))
        return None

    def _await_collection(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        found: dict[int, Collected] = {}
        while len(found) < self.size:
            heard = self._ranks.listen(deadline - time.monotonic())
            if not heard:
                late = sorted(set(range(self.size)) - set(found))
                raise StartError(self._late(late, seconds))
            for event in heard:
                if isinstance(event, Gone):
                    raise StartError(
                        f"rank {event.rank} {ending(event.status)} while it started; "
                        f"{self._said(event.rank)}"
                    )
                if isinstance(event.content, Captures):
                    self._outputs[event.rank].keep(event.files)
                elif isinstance(event.content, Collected):
                    found[event.rank] = event.content
        self.collected = [found[rank] for rank in range(self.size)]
        self._ids = [frozenset(collected.ids) for collected in self.collected]

    def _late(self, ranks: Sequence[int], seconds: float) -> str:
        """Says that ranks did not start, and where the first of them is."""
        names = ", ".join(f"rank {rank}" for rank in ranks)
        said = f"{names} did not start in {seconds:g} s; {self._said(ranks[0])}"
        self._ranks.send(TellStacks(), ranks[:1])
        for event in self._ranks.listen(_ANSWER):
            if isinstance(event, Message) and isinstance(event.content, Stacks):
                said += f"\nrank {event.rank} is at {event.content.line}:\n{event.content.text}"
        return said

    def _said(self, rank: int) -> str:
        lines = self._outputs[rank].unread().strip()
        return f"it wrote:\n{lines}" if lines else "it wrote nothing"


def rank_options(config: pytest.Config) -> dict[str, Any]:
    """Pytest's options for ranks: those that can be sent, less the leader's own."""
    known = vars(config.option)
    options = {}
    for name, value in known.items():
        if name == "file_or_dir":  # ranks are told their arguments
            continue
        with contextlib.suppress(Exception):
            pickle.dumps(value)
            options[name] = value
    options.update({name: value for name, value in _LEADERS_OWN.items() if name in known})
    # The nursery has imported some of them, and their asserts are not the tests'.
    ignored = "ignore:Module already imported so cannot be rewritten"
    options["pythonwarnings"] = [*(known.get("pythonwarnings") or []), ignored]
    # It reports errors of collectives at level DEBUG, which the traceback says better.
    options["logger_disable"] = [*(known.get("logger_disable") or []), "c10d-NullHandler-default"]
    options["plugins"] = [*(known.get("plugins") or []), "no:terminal"]
    options["rootdir"] = str(config.rootpath)
    if config.inipath is not None:
        options["inifilename"] = str(config.inipath)
    return options


def python_path() -> list[str]:
    """This process' `sys.path`, for ranks."""
    return [entry or os.getcwd() for entry in sys.path]
