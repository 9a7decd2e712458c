"""The time lines of a store's dimensions, each read once however many arrays share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from neural_prep.data.chunked.store import ZarrStore
from neural_prep.data.timelines.decode import decode_times, index_times
from neural_prep.data.timelines.timeline import Timeline, make_timeline
from neural_prep.data.timelines.times import Times
from neural_prep.errors import InputError


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """The time lines of a store.

    Attributes:
        store: The store.
        start: First date that is used; see `make_timeline`.
        end: Last date that is used.
        step: Distance of neighbours in a trajectory.
    """

    store: ZarrStore
    start: str | None = None
    end: str | None = None
    step: str | None = None
    _read: dict[tuple[str, str], Timeline] = field(default_factory=dict)

    def steps(self, dim: str) -> Timeline:
        """The selected times of a time dimension, cut into trajectories."""
        return self._once(
            dim,
            "steps",
            lambda times: make_timeline(times, start=self.start, end=self.end, step=self.step),
        )

    def leads(self, dim: str) -> Timeline:
        """All times since a forecast's start, cut into trajectories."""
        return self._once(dim, "leads", lambda times: make_timeline(times, step=self.step))

    def runs(self, dim: str) -> Timeline:
        """The selected starts of forecasts; their order does not matter."""

        def select(times: Times) -> Timeline:
            line = make_timeline(times, start=self.start, end=self.end, step="any")
            return replace(line, warnings=() if times.note is None else (times.note,))

        return self._once(dim, "runs", select)

    def _once(self, dim: str, role: str, make: Callable[[Times], Timeline]) -> Timeline:
        if (dim, role) not in self._read:
            times = _read_times(self.store, dim)
            try:
                self._read[dim, role] = make(times)
            except InputError as error:
                raise InputError(f"{self.store.path}: {error}") from error
        return self._read[dim, role]


def _read_times(store: ZarrStore, dim: str) -> Times:
    """The times of a dimension, from the coordinate of its name; else its index."""
    stored = store.arrays.get(dim)
    if stored is None:
        sizes = (dict(zip(each.dims, each.shape, strict=False)) for each in store.arrays.values())
        size = next(each[dim] for each in sizes if dim in each)
        return index_times(dim, size, f"{dim} has no coordinate")
    if stored.dims != (dim,):
        raise InputError(
            f"{store.path}: {dim} has dimensions {list(stored.dims)}; expected [{dim!r}]"
        )
    return decode_times(dim, stored.values(), stored.attrs)
