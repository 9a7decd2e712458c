"""What ranks have in common is imported once, before they are forked: pytest and its plugins."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence

import pytest
from _pytest.assertion import install_importhook
from _pytest.config import get_config

from neural_prep.testing.options import OUTSIDE, PRELOAD
from neural_prep.world.ranks import Nursery

_OURS = ("neural_prep.testing.started", "neural_prep.testing.plugin")


def start_nursery(config: pytest.Config, path: Sequence[str], ranks: int) -> Nursery:
    """Starts the process that forks ranks, which imports what they have in common.

    Args:
        config: The leading session's.
        path: `sys.path` of ranks.
        ranks: How many are likely.
    """
    loaded = config.pluginmanager.list_plugin_distinfo()
    plugins = [plugin.__name__ for plugin, _ in loaded if hasattr(plugin, "__name__")]
    return Nursery(
        path,
        ranks,
        base=config.stash[OUTSIDE],
        prepare=f"{__name__}:load",
        arguments=[config.getini(PRELOAD), plugins],
    )


def load(modules: Sequence[str], plugins: Sequence[str]) -> None:
    """Imports modules, and plugins of pytest as pytest itself does: with their asserts rewritten.

    Plugins may be heavy: zarr's, which imports all of it, takes a second of each rank's start.

    Args:
        modules: What the user has asked for.
        plugins: Modules of the plugins that the leading session has loaded.
    """
    for name in _OURS:
        importlib.import_module(name)
    with contextlib.suppress(Exception):
        config = get_config()
        hook = install_importhook(config)
        try:
            config._mark_plugins_for_rewrite(hook, disable_autoload=False)
            for name in plugins:
                importlib.import_module(name)
        finally:
            sys.meta_path.remove(hook)
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            sys.stderr.write(f"warning: {PRELOAD}: {name!r} cannot be imported ({error})\n")
