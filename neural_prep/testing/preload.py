"""What ranks have in common is imported once, before they are forked: pytest and its plugins."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence

from _pytest.assertion import install_importhook
from _pytest.config import get_config

_OURS = ("neural_prep.testing.started", "neural_prep.testing.plugin")


def load(modules: Sequence[str], plugins: Sequence[str]) -> None:
    """Imports modules, and plugins of pytest as pytest itself does: with their asserts rewritten.

    Plugins may be heavy: zarr's, which imports all of it, takes a second of each rank's start.

    Args:
        modules: What the user has asked for; what fails here fails again in a rank.
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
        with contextlib.suppress(Exception):
            importlib.import_module(name)
