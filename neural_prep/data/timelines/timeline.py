"""A time line: which of its steps are selected, and which follow one another in a trajectory.

Legend: T times of one axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neural_prep.data.timelines.times import NO_TIME, Times, parse_moment, parse_step
from neural_prep.errors import InputError

_IRREGULAR = (
    0.1  # share of neighbours at another distance than the step that a person should know of
)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Times with their selection and their trajectories.

    Attributes:
        times: All times of the axis.
        age: `(T,)` int64: steps of the same trajectory before this one; -1: not selected.
        step: Distance of neighbours in a trajectory; None: any, or there is but a single time.
        warnings: What a person should know, one line each.
    """

    times: Times
    age: NDArray[np.int64]
    step: int | None
    warnings: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Number of selected steps."""
        return int(np.count_nonzero(self.age >= 0))

    @property
    def trajectories(self) -> int:
        """Number of trajectories among the selected steps."""
        return int(np.count_nonzero(self.age == 0))


def make_timeline(
    times: Times, *, start: str | None = None, end: str | None = None, step: str | None = None
) -> Timeline:
    """Selects the times from `start` to `end` and cuts them into trajectories.

    Args:
        times: The axis.
        start: First time that is used, inclusive; a partial date means its first moment.
        end: Last time that is used, inclusive; a partial date means its last moment.
        step: Duration between neighbours of a trajectory, `any`, or None for the most frequent one.

    Raises:
        InputError: if a bound or the step cannot be read, or if no time is selected.

    >>> daily = Times("time", np.array([0, 1, 2, 5, 6]) * 86_400_000_000, "date")
    >>> make_timeline(daily, start="1970-01-02").age.tolist()
    [-1, 0, 1, 0, 1]
    """
    low = None if start is None else parse_moment(start, times, "data.start", last=False)
    high = None if end is None else parse_moment(end, times, "data.end", last=True)
    selected = select_range(times.positions, low, high)
    if not selected.any():
        raise InputError(_nothing_selected(times, start, end))
    distance = pick_step(times.positions) if step is None else parse_step(step, times)
    age = trajectory_ages(times.positions, selected, distance)
    return Timeline(times, age, distance, _warnings(times, selected, distance))


def select_range(
    positions: NDArray[np.int64], low: int | None, high: int | None
) -> NDArray[np.bool_]:
    """Which positions lie from `low` to `high`, both inclusive; a missing time lies in no range.

    >>> select_range(np.array([3, 1, 2]), 2, None).tolist()
    [True, False, True]
    """
    if low is None and high is None:
        return np.ones(len(positions), np.bool_)
    selected: NDArray[np.bool_] = positions != NO_TIME
    if low is not None:
        selected &= positions >= low
    if high is not None:
        selected &= positions <= high
    return selected


def pick_step(positions: NDArray[np.int64]) -> int | None:
    """The most frequent positive distance of neighbours, the smaller on a tie; None without one.

    >>> pick_step(np.array([0, 6, 12, 24, 36]))
    6
    """
    distances = _distances(positions)
    if len(distances) and distances[0] > 0 and (distances == distances[0]).all():
        return int(distances[0])  # nothing to sort
    sizes, counts = np.unique(distances[distances > 0], return_counts=True)
    return int(sizes[np.argmax(counts)]) if len(sizes) else None


def trajectory_ages(
    positions: NDArray[np.int64], selected: NDArray[np.bool_], step: int | None
) -> NDArray[np.int64]:
    """Number of steps before each selected one in its trajectory; -1 where not selected.

    A neighbour at another distance than `step` begins a trajectory; with step None, only one that
    is not later.

    >>> trajectory_ages(np.array([0, 1, 2, 4, 3]), np.ones(5, bool), 1).tolist()
    [0, 1, 2, 0, 0]
    """
    distances = _distances(positions)
    first = selected.copy()
    first[1:] &= ~(selected[:-1] & (distances > 0 if step is None else distances == step))
    starts = np.concatenate(([0], np.flatnonzero(first)))
    age = np.arange(len(positions))
    age -= np.repeat(starts, np.diff(starts, append=len(positions)))
    age[~selected] = -1
    return age


def _distances(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distances of neighbours, `(T - 1,)`; 0 beside a missing time, which so joins nothing."""
    known = positions != NO_TIME
    distances = np.diff(positions)
    distances[~(known[1:] & known[:-1])] = 0
    return distances


def _nothing_selected(times: Times, start: str | None, end: str | None) -> str:
    known = np.flatnonzero(times.positions != NO_TIME)
    if len(known) == 0:
        return f"{times.name} has no time at all"
    first = known[np.argmin(times.positions[known])]
    last = known[np.argmax(times.positions[known])]
    return (
        f"no step lies from {start or 'the first'} to {end or 'the last'}: {times.name} runs from "
        f"{times.label(first)} to {times.label(last)}; change data.start, data.end or data.split"
    )


def _warnings(times: Times, selected: NDArray[np.bool_], step: int | None) -> tuple[str, ...]:
    """One line each for undecoded, for unsorted and for irregular times."""
    distances = _distances(times.positions)[selected[1:] & selected[:-1]]
    lines = [] if times.note is None else [times.note]
    if unsorted := int(np.count_nonzero(distances <= 0)):
        lines.append(
            f"{times.name} is unsorted, repeated or missing at {unsorted} steps; "
            "each of them begins a trajectory of its own"
        )
    irregular = int(np.count_nonzero((distances > 0) & (distances != step)))
    if step is not None and irregular > _IRREGULAR * len(distances):
        lines.append(
            f"{irregular} of {len(distances)} neighbours in {times.name} are not "
            f"{times.distance_label(step)} apart and give no difference; "
            "data.step: any takes neighbours as they come"
        )
    return tuple(lines)
