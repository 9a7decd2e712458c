"""An array of training data: what its axes mean, and how its numbers are read."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from neural_prep.data.chunked.missing import Coding
from neural_prep.data.chunked.store import StoredArray
from neural_prep.data.timelines.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Axes:
    """What an array's axes are; those that are not named here are the grid.

    Attributes:
        time: The steps, None for a field without time.
        run: Forecasts, each with steps of its own along `time`.
        variables: Axes that tell variables apart, such as levels.
    """

    time: int | None = None
    run: int | None = None
    variables: tuple[int, ...] = ()

    def grid(self, ndim: int) -> tuple[int, ...]:
        """All other axes."""
        named = {self.time, self.run, *self.variables}
        return tuple(axis for axis in range(ndim) if axis not in named)


@dataclass(frozen=True, slots=True)
class DataArray:
    """An array of training data with what its axes mean.

    Attributes:
        stored: The array.
        axes: What its axes are.
        coding: How its numbers are read.
        time: The steps' time line, None where there is no time.
        run: Selection of the run axis, None where there is none.
        place: The array and its store, for messages.
    """

    stored: StoredArray
    axes: Axes
    coding: Coding
    time: Timeline | None
    run: Timeline | None
    place: str

    @property
    def variables(self) -> int:
        """Number of variables that the array holds."""
        return prod(self.stored.shape[axis] for axis in self.axes.variables)

    def times(self, region: tuple[slice, ...]) -> tuple[str | None, str | None]:
        """First and last time in a region; None where the array has no time."""
        lines = ((self.axes.run, self.run), (self.axes.time, self.time))
        ranges = [
            (line.times, region[axis])
            for axis, line in lines
            if axis is not None and line is not None
        ]
        first = " ".join(times.label(along.start) for times, along in ranges)
        last = " ".join(times.label(along.stop - 1) for times, along in ranges)
        return first or None, last or None
