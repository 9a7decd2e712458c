"""What is raised, on every rank alike, for what would not be right."""

from __future__ import annotations

from neural_prep.sharding.layout import Layout


def refusal(name: str, layout: Layout, why: str = "has no sharded version") -> NotImplementedError:
    """What to raise, on every rank alike, for what would not be right."""
    return NotImplementedError(
        f"{name} of a tensor that is {layout} {why}; redistribute it, or compute with x.full()"
    )
