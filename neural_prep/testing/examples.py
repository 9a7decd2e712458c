"""Hypothesis in ranks: the same examples everywhere, none run again, none shrunk.

Ranks must draw alike, or their collectives don't pair. And once an example has failed on one rank,
its peers are elsewhere: running it again would wait for them for ever.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest

_PROFILE = "neural-prep-ranks"


def configure() -> None:
    """Makes Hypothesis, where it is in use, the same on all ranks."""
    hypothesis = sys.modules.get("hypothesis")
    if hypothesis is None:
        return
    hypothesis.settings.register_profile(_PROFILE, **_alike())
    hypothesis.settings.load_profile(_PROFILE)


def prepare(item: pytest.Item) -> None:
    """Has a Hypothesis test stop at its first failure, and keep to the common settings."""
    function = getattr(item, "obj", None)
    handle = getattr(function, "hypothesis", None)
    if handle is None or not hasattr(handle, "inner_test"):
        return
    import hypothesis

    owner: Any = getattr(function, "__func__", function)
    own = getattr(owner, "_hypothesis_internal_use_settings", None)
    if own is not None:
        owner._hypothesis_internal_use_settings = hypothesis.settings(own, **_alike())
    original = getattr(handle.inner_test, "original", handle.inner_test)
    handle.inner_test = _failing_once(original)


def _alike() -> dict[str, Any]:
    from hypothesis import HealthCheck, Phase

    return {
        "derandomize": True,
        "deadline": None,
        "database": None,
        "phases": (Phase.explicit, Phase.generate),
        "report_multiple_bugs": False,
        "suppress_health_check": list(HealthCheck),  # some of them go by time
    }


def _failing_once(test: Callable[..., Any]) -> Callable[..., Any]:
    """The test, which after its first failure fails again with the same, without being run."""
    failure: list[Exception] = []
    drawn: list[tuple[Any, Any]] = []  # by the body itself, through `data()`

    @functools.wraps(test)
    def once(*args: Any, **kwargs: Any) -> Any:
        data = _data_among([*args, *kwargs.values()])
        if failure:
            for strategy, label in drawn:  # the same again, or Hypothesis calls the test flaky
                data.draw(strategy, label)
            raise failure[0]
        drawn.clear()
        if data is not None:
            data.draw = _recording(data.draw, drawn)
        try:
            return test(*args, **kwargs)
        except Exception as error:
            if not type(error).__module__.startswith("hypothesis"):  # such as a failed assumption
                failure.append(error)
            raise

    once.original = test  # type: ignore[attr-defined]
    return once


def _data_among(arguments: list[Any]) -> Any:
    """What `data()` has given a test; there is one object of it, however many arguments."""
    from hypothesis.strategies import DataObject

    return next((value for value in arguments if isinstance(value, DataObject)), None)


def _recording(draw: Callable[..., Any], drawn: list[tuple[Any, Any]]) -> Callable[..., Any]:
    def recording(strategy: Any, label: Any = None) -> Any:
        drawn.append((strategy, label))
        return draw(strategy, label)

    return recording
