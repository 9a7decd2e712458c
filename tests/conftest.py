"""What tests share, as fixtures: with import mode importlib, tests cannot import one another."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import uuid
from pathlib import Path
from types import ModuleType

import pytest

pytest_plugins = ["pytester"]  # runs pytest in tests of the plugin

ORACLES = Path(__file__).parent / "oracles"
BENCH = Path(__file__).parent / "bench"


class Traces:
    """Finds the processes of one run by a mark in their environment."""

    NAME = "NEURAL_PREP_TEST"  # the variable that every process of a run inherits

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex

    def pids(self) -> list[int]:
        """All processes of the run that are alive, but this one."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                try:
                    environment = (folder / "environ").read_bytes()
                    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                if f"{self.NAME}={self.mark}".encode() in environment and state != "Z":
                    found.append(int(folder.name))
        return found

    def none_left(self, patience: float = 3.0) -> bool:
        """Whether every process of the run ends within `patience` seconds."""
        deadline = time.monotonic() + patience
        while self.pids():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


@pytest.fixture(scope="session")
def new_traces() -> type[Traces]:
    """Makes a mark for a run's processes, by which they are found."""
    return Traces


def _load(name: str, folder: Path = ORACLES) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def object_server() -> ModuleType:
    """An object store on loopback: `serve(folder)` is a context manager."""
    return _load("object_server", BENCH)


@pytest.fixture(scope="session")
def models() -> ModuleType:
    """Small whole models that know nothing of ranks, such as `models.UNet`."""
    return _load("models")


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


@pytest.fixture(scope="session")
def serial_twin() -> ModuleType:
    """A sharded layer beside a serial one: `assert_alike(layer, full, mesh, dim, sizes)`."""
    return _load("serial_twin")


@pytest.fixture(scope="session")
def archives() -> ModuleType:
    """Writes stores of terabytes as metadata alone: `write_cf(path, ...)`, `write_mllam(...)`."""
    return _load("archives", Path(__file__).parent / "bench")
