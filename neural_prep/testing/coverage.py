"""Coverage in ranks, where pytest-cov measures it in the leading session.

pytest-cov no longer measures subprocesses. Each rank writes a file of its own beside the leader's,
which pytest-cov then puts together.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

_PYTEST_COV = "_cov"  # its plugin's name


def coverage_settings(config: pytest.Config) -> dict[str, Any] | None:
    """Arguments of `coverage.Coverage` in ranks; None where nothing is measured."""
    plugin = config.pluginmanager.getplugin(_PYTEST_COV)
    controller = getattr(plugin, "cov_controller", None)
    if controller is None:
        return None
    measure = controller.cov
    return {
        "data_file": os.path.abspath(measure.config.data_file),
        "data_suffix": True,
        "source": controller.cov_source,
        "branch": controller.cov_branch,
        "config_file": measure.config.config_file or False,
    }


def measure_coverage(settings: dict[str, Any] | None) -> Any:
    """Begins to measure, and returns what is to be stopped and saved."""
    if settings is None:
        return None
    import coverage

    measure = coverage.Coverage(**settings)
    measure.start()
    return measure


def take_over_coverage(config: pytest.Config) -> Any:
    """Measures in place of pytest-cov, in a rank that writes no report."""
    settings = coverage_settings(config)
    plugin: Any = config.pluginmanager.getplugin(_PYTEST_COV)
    if settings is None:
        return None
    plugin.cov_controller.cov.stop()
    config.pluginmanager.unregister(plugin)
    return measure_coverage(settings)
