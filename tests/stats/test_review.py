from dataclasses import replace

import numpy as np
import pytest

from neural_prep.stats.review import warnings_of
from neural_prep.stats.statistics import CorruptChunk

NAN = np.nan


def field(*columns: list[float]) -> np.ndarray:
    """`(T, 1, V)` of each variable's values in time order."""
    return np.array(columns, np.float64).T[:, np.newaxis]


@pytest.mark.parametrize(
    ("trajectory", "lags", "expected"),
    [
        pytest.param(field([1, 2, 4], [5, 6, 8]), [1], [], id="nothing"),
        pytest.param(
            field([1, 2], [101325, 101325]),
            [1],
            ["state: v_1 is constant: every value is 101325"],
            id="constant",
        ),
        pytest.param(
            field([1, 2], [NAN, NAN]),
            [1],
            ["state: v_1 has no value: all 2 are missing"],
            id="all-missing-is-said-once",
        ),
        pytest.param(
            field([1, 2, 3, 5, 8], [1, 2, NAN, 4, 5]),
            [1],
            ["state: v_1 lacks 20 % of its values: 1 of 5"],
            id="some-missing",
        ),
        pytest.param(field([*range(99), NAN]), [1], [], id="one-percent-missing-is-little"),
        pytest.param(
            field([1, 2, 3], [3, 4, 5]),
            [1, 3],
            ["state: no pair of steps for lag 3: no trajectory has more than 3 steps"],
            id="lag-too-long-is-one-line",
        ),
        pytest.param(
            field([1, 2, 3, 5], [1, NAN, 3, NAN]),
            [1],
            [
                "state: v_1 lacks 50 % of its values: 2 of 4",
                "state: v_1 has no pair of steps for lag 1: a value is missing at one end of each",
            ],
            id="a-variable-without-pairs",
        ),
        pytest.param(
            field([1, 2], [NAN, NAN]),
            [2],
            [
                "state: v_1 has no value: all 2 are missing",
                "state: no pair of steps for lag 2: no trajectory has more than 2 steps",
            ],
            id="lag-too-long-for-all-that-have-values",
        ),
    ],
)
def test_warnings(two_pass, trajectory, lags, expected):
    statistics = two_pass.statistics(two_pass.group("state", [trajectory], lags))
    assert warnings_of(statistics) == expected


def test_every_group_is_looked_at(two_pass):
    group = two_pass.group("static", [field([7])], variables=["border_mask"])
    assert warnings_of(two_pass.statistics(group)) == [
        "static: border_mask is constant: every value is 7"
    ]


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        (["a/c/0"], "1 chunk is corrupt and counts as missing: a/c/0"),
        (list("abc"), "3 chunks are corrupt and count as missing: a, b, c"),
        (list("abcdef"), "6 chunks are corrupt and count as missing: a, b, c and 3 more"),
    ],
    ids=len,
)
def test_corrupt_chunks_come_first(two_pass, chunks, said):
    result = two_pass.statistics(two_pass.group("state", [field([1, 1])], [1]))
    corrupt = tuple(CorruptChunk("a", chunk, None, None) for chunk in chunks)
    source = replace(result.source, corrupt=corrupt)
    lines = warnings_of(replace(result, source=source))
    assert lines == [said, *warnings_of(result)]
    assert len(lines) == 2
