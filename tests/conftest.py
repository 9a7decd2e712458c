"""Oracles as fixtures: with import mode importlib, tests cannot import one another's modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest_plugins = ["pytester"]  # runs pytest in tests of the plugin

ORACLES = Path(__file__).parent / "oracles"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"oracle_{name}", ORACLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def neural_lam_oracle() -> ModuleType:
    """neural-lam's own definitions: `published_results(samples, lag, fluxes, ...)`."""
    return _load("neural_lam")


@pytest.fixture(scope="session")
def two_pass() -> ModuleType:
    """Results by NumPy: `statistics(group("state", [trajectory, ...], lags), ...)`."""
    return _load("two_pass")


@pytest.fixture(scope="session")
def kernel_twin() -> ModuleType:
    """The kernel's definition in plain NumPy: `step_records(values, age, lags)`."""
    return _load("kernel_twin")


@pytest.fixture(scope="session")
def exact() -> ModuleType:
    """Exact arithmetic: `of_values(values, age)`, `of_differences(values, age, lag)`."""
    return _load("exact")
