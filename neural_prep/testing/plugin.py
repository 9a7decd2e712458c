"""Hooks of the pytest plugin: options, markers, and who runs which tests.

A plain run of pytest loads this file and little else: torch, ranks and what handles them are
imported by the runs that ask for them.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from neural_prep.testing import kinds
from neural_prep.testing.fixtures import (  # noqa: F401 - pytest finds fixtures by name
    RANK,
    _world_size,
    distributed_mesh,
    distributed_mesh_2d,
    shared_tmp_path,
    world,
)
from neural_prep.testing.options import (
    OUTSIDE,
    Options,
    act_as_worker,
    add_options,
    read_options,
)
from neural_prep.world.environment import GPUS, visible_gpus
from neural_prep.world.slurm import as_launched

_OPTIONS = pytest.StashKey[Options]()
_IS_LED = pytest.StashKey[bool]()  # whether a leading session has started this one
_LEFT_OUT = pytest.StashKey[dict[str, int]]()
_OUTPUT = "neural_prep_left_out"  # in the output of an xdist worker


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the group `multigpu`."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Registers markers, and reads the options before other plugins look at the configuration."""
    for marker in kinds.MARKERS:
        config.addinivalue_line("markers", marker)
    option = config.option
    if option.multigpu_static or option.multigpu_dynamic or option.multigpu_all:
        os.environ.update(as_launched(os.environ))
    options = read_options(config)
    config.stash[_OPTIONS] = options
    config.stash[_LEFT_OUT] = {}
    config.stash[_IS_LED] = config.pluginmanager.has_plugin(RANK)
    if options.under_launcher and int(os.environ["RANK"]):
        act_as_worker(config, int(os.environ["RANK"]), options.ranks or 1, "launched")
    elif options.kinds:
        config.stash[OUTSIDE] = dict(os.environ)
        _share_gpus(config)


def _share_gpus(config: pytest.Config) -> None:
    """Gives each worker of pytest-xdist one GPU, where there are several, before it uses any."""
    worker = re.fullmatch(r"gw(\d+)", getattr(config, "workerinput", {}).get("workerid", ""))
    names = visible_gpus(os.environ)
    if worker is not None and len(names) > 1:
        os.environ[GPUS] = names[int(worker[1]) % len(names)]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Registers whoever runs distributed tests, where they are asked for."""
    config = session.config
    options = config.stash[_OPTIONS]
    if config.stash[_IS_LED] or not options.kinds or config.option.collectonly:
        return
    if options.under_launcher:
        from neural_prep.testing.launched import register

        register(config, options)
    else:
        from neural_prep.testing.leader import Leader

        config.pluginmanager.register(Leader(config, options), "neural-prep-leader")
    if config.pluginmanager.has_plugin("xdist"):
        from neural_prep.testing import parallel

        config.pluginmanager.register(parallel, "neural-prep-parallel")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one test for each world size of a dynamic test."""
    kinds.parametrize_sizes(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the kinds that weren't asked for; the others come in the order of their kinds."""
    if config.stash[_IS_LED]:
        return
    kinds.check_markers(items)
    options = config.stash[_OPTIONS]
    by_kind: dict[str, list[pytest.Item]] = {}
    for item in items:
        kind = kinds.kind_of(item)
        by_kind.setdefault(kind.name if kind else kinds.SINGLE, []).append(item)
    wanted = options.kinds or (kinds.SINGLE,)
    left = [item for kind, group in by_kind.items() if kind not in wanted for item in group]
    if left:
        config.hook.pytest_deselected(items=left)
    if not options.kinds:
        config.stash[_LEFT_OUT] = {
            kind: len(by_kind[kind]) for kind in (kinds.DYNAMIC, kinds.STATIC) if kind in by_kind
        }
    if options.in_process:
        kinds.skip_unfit(by_kind.get(kinds.STATIC, []), 1)
    items[:] = [item for kind in wanted for item in by_kind.get(kind, [])]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says what a plain run left out."""
    counts = config.stash[_LEFT_OUT]
    if not counts:
        return
    total = sum(counts.values())
    parts = ", ".join(f"{count} {kind.removeprefix('multigpu_')}" for kind, count in counts.items())
    flags = [f"--{kind.replace('_', '-')}" for kind in counts]
    flag = flags[0] if len(flags) == 1 else "--multigpu-all"
    terminalreporter.write_line(
        f"{total} distributed test{'s' * (total > 1)} left out ({parts}); run with: pytest {flag}"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Learns from an xdist worker what it left out; all have left out the same."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[_LEFT_OUT] = output.get(_OUTPUT, {}) or node.config.stash[_LEFT_OUT]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tells xdist's controller what was left out."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = session.config.stash[_LEFT_OUT]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Prepares static tests in pytest's own process as a rank does."""
    options = item.config.stash[_OPTIONS]
    kind = kinds.kind_of(item)
    if item.config.stash[_IS_LED] or not options.in_process or kind is None:
        return
    reason = kind.reason_to_skip(1)
    if reason is not None:
        raise pytest.skip.Exception(reason, _use_item_location=True)
    from neural_prep.world import group

    group.seed_generators(kinds.seed_of(item.nodeid))
