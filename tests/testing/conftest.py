"""Test files that are run by a pytest of their own, and what it says of each test."""

from __future__ import annotations

import os
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_OUTER = (
    *("RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "SLURM_", "GROUP_"),
    *("OMP_", "PYTEST_ADDOPTS"),
)
_HEADER = """\
import ctypes, os, signal, sys, time
import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.multigpu_static
RANK = int(os.environ.get("RANK", -1))


def total():
    ones = torch.ones(())
    dist.all_reduce(ones)
    return int(ones)


"""


@dataclass(frozen=True)
class Finished:
    """A pytest that has ended.

    Attributes:
        status: Its exit status.
        lines: Lines of its standard output.
        err: Its standard error.
        seconds: How long it took.
        outcomes: `passed`, `failed`, `skipped` or `error` by the test's name (`TestClass::test_a`).
        texts: Why a test failed, gave errors or was skipped, in full.
    """

    status: int
    lines: list[str]
    err: str
    seconds: float
    outcomes: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def out(self) -> str:
        return "\n".join(self.lines)

    @property
    def failed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome in ("failed", "error")}


@pytest.fixture
def traces(monkeypatch, new_traces):
    """Marks this test's processes, in an environment without a launcher's or pytest's options."""
    for name in list(os.environ):
        if name.startswith(_OUTER):
            monkeypatch.delenv(name)
    found = new_traces()
    monkeypatch.setenv(found.NAME, found.mark)
    yield found
    for pid in found.pids():
        os.kill(pid, 9)


@pytest.fixture
def run_tests(pytester, traces):
    """Runs pytest on a file with this source, or on the files that are there.

    Nothing but the given arguments and a JUnit file is added. Fails where a process is left.
    """

    def run(source=None, *args, timeout=120):
        if source is not None:
            pytester.makepyfile(test_it=textwrap.dedent(source))
        begun = time.monotonic()
        ended = pytester.runpytest_subprocess(
            "--junitxml=junit.xml", *map(str, args), timeout=timeout
        )
        seconds = time.monotonic() - begun
        assert traces.none_left(), "processes are left"
        found = _junit(pytester.path / "junit.xml")
        return Finished(int(ended.ret), ended.outlines, ended.stderr.str(), seconds, *found)

    return run


@pytest.fixture
def run_static(run_tests):
    """Runs a file of static tests on so many ranks.

    It begins with the usual imports, `RANK`, and `total()`: an all-reduce, the number of ranks.
    """

    def run(source, *args, ranks=2, timeout=120):
        options = ("--multigpu-static", "--nproc-per-node", ranks)
        return run_tests(_HEADER + textwrap.dedent(source), *options, *args, timeout=timeout)

    return run


@pytest.fixture
def run_cases(run_static):
    """Runs tests that go wrong, each before one that must pass, in one file of static tests.

    Checks that exactly these fail, and that each says what it should.
    """

    def run(cases, *args, before="", **kwargs):
        """Runs `cases`: body and a list of what the failure says, by name or `name(fixture)`."""
        source = [textwrap.dedent(before)]
        for signature, (body, _) in cases.items():
            name, _, fixtures = signature.rstrip(")").partition("(")
            source.append(f"def test_{name}({fixtures}):")
            source.append(textwrap.indent(textwrap.dedent(body), "    "))
            source.append(f"def test_{name}_next():\n    assert total() == dist.get_world_size()\n")
        done = run_static("\n".join(source), *args, **kwargs)
        said = {f"test_{name.partition('(')[0]}": texts for name, (_, texts) in cases.items()}
        missing = {
            name: [text for text in texts if text not in done.texts.get(name, "")]
            for name, texts in said.items()
        }
        assert done.failed == set(said)
        assert list(done.outcomes.values()).count("passed") == len(cases)
        assert {name: texts for name, texts in missing.items() if texts} == {}
        return done

    return run


def _junit(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Outcomes and texts; a test that both failed and gave an error has failed, with both texts."""
    outcomes: dict[str, str] = {}
    texts: dict[str, str] = {}
    if not path.exists():
        return outcomes, texts
    for case in ElementTree.parse(path).iter("testcase"):
        of_class = (case.get("classname") or "").rpartition(".")[2]
        name = case.get("name") or ""
        name = f"{of_class}::{name}" if of_class.startswith("Test") else name
        said = [child for child in case if child.tag in ("failure", "error", "skipped")]
        words = [{"failure": "failed"}.get(child.tag, child.tag) for child in said]
        outcomes[name] = outcomes.get(name) or (words[0] if words else "passed")
        text = [f"{child.get('message')}\n{child.text}" for child in said]
        texts[name] = "\n".join([*texts.get(name, "").splitlines(), *text])
    path.unlink()
    return outcomes, texts
