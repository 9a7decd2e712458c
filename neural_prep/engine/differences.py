"""How two runs' settings differ, in words for a user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_MOST = 3  # differences that are told
_WIDEST = 60  # characters of a value that is told whole


def differences(old: Any, new: Any) -> str:
    """The first differences of two values of JSON, each with its name and both values.

    >>> differences({"a": 1, "store": {"t": [2, 3]}}, {"a": 2, "store": {"t": [2, 4]}})
    'a was 1, now 2, and store.t was [2, 3], now [2, 4]'
    """
    found = list(_differences("", json.loads(json.dumps(old)), _plain(new)))
    told = [f"{name} was {_short(was)}, now {_short(now)}" for name, was, now in found[:_MOST]]
    more = [f"{len(found) - _MOST} more"] if len(found) > _MOST else []
    return ", and ".join([*told, *more])


def _plain(value: Any) -> Any:
    """The value as it is once it has been written and read."""
    return json.loads(json.dumps(value, default=str))


def _differences(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*new, *old]):
            yield from _differences(f"{name}.{key}" if name else key, old.get(key), new.get(key))
    elif _are_long(old, new):
        for index, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{name}[{index}]", was, now)
    else:
        yield name, old, new


def _are_long(old: Any, new: Any) -> bool:
    """Whether both are lists of which it is better to name the items that differ."""
    if not (isinstance(old, list) and isinstance(new, list) and len(old) == len(new)):
        return False
    return max(len(json.dumps(old)), len(json.dumps(new))) > _WIDEST


def _short(value: Any) -> str:
    text = "not set" if value is None else value if isinstance(value, str) else json.dumps(value)
    if len(text) <= _WIDEST:
        return text
    of = f" ({len(value)} items)" if isinstance(value, list) else ""
    return f"{text[: _WIDEST - 3]}...{of}"
