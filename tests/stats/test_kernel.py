"""The fast loop against plain NumPy made from its definition: every bit of every step's record."""

import os
import subprocess
import sys

import numpy as np
import pytest

from neural_prep.stats.kernel import lanes_of, summarise_steps

F32, F64 = np.float32, np.float64

# (N, O, I); a tile is 8192 points where I is 1, 512 where it is 17, 128 (100), 32 (300).
SHAPES = {
    "one-point": (1, 1, 1),
    "two-points": (2, 1, 2),
    "sample": (64, 1, 1),
    "one-lane-too-few": (255, 1, 1),
    "one-tile": (8192, 1, 1),
    "several-tiles": (8192 * 2 + 1029, 1, 1),
    "two-inner": (4096 + 700, 1, 2),
    "outer": (300, 3, 1),
    "outer-and-inner": (90, 2, 3),
    "17-inner": (512 * 2 + 71, 1, 17),
    "100-inner": (128 + 37, 1, 100),
    "300-inner": (32 * 2 + 5, 1, 300),
}

# Made of a field of normal noise (T, O, N, I) and its steps' numbers (T, 1, 1, 1).
FIELDS = {
    "noise": lambda noise, _: noise,
    "pressure": lambda noise, _: 101325 + noise,
    "constant": lambda noise, _: 0 * noise + 101325,
    "trend": lambda noise, t: 64 * t + 0.001 * noise,
    "steady-and-rounding": lambda noise, t: np.where(t % 2, 64, 0) + 1e-9 * noise,
    "equal-but-for-rounding": lambda noise, t: np.where(t % 2, 64, 1e-17 * noise),
    "rounding-alike": lambda noise, t: np.where(t % 2, 64, 1e-15 / 3) + 0 * noise,
    "zeros-first": lambda noise, t: np.where(t == 0, 0, 5e4 + noise),
    "spike-in-sample": lambda noise, t: spiked(1e-3 * noise, t),
    "some-missing": lambda noise, _: np.where(abs(noise) > 1, np.nan, noise),
    "nearly-all-missing": lambda noise, _: np.where(noise < 1.5, np.nan, 1e5 + noise),
    "all-missing": lambda noise, _: noise * np.nan,
    "infinite": lambda noise, _: np.where(abs(noise) > 1, np.copysign(np.inf, noise), noise),
    "both-zeros": lambda noise, _: np.where(abs(noise) > 1, noise, np.copysign(0.0, noise)),
}

HUGE = {
    "squares-overflow": lambda noise, _: 1e200 * noise,
    "sums-overflow": lambda noise, _: np.clip(noise, -1, 1) * 1.7e308,
    "squares-vanish": lambda noise, _: 1e-200 * noise,
}


def spiked(noise, t):
    """The first point, which the guess of the shift sees, is far off, in every other step."""
    spikes = noise.copy()
    spikes[1::2, :, 0] = 1e4
    return spikes


def make(field, shape, dtype, steps=6, seed=0):
    """`(T, O, N, I)` of a named field."""
    points, outer, inner = SHAPES[shape]
    noise = np.random.default_rng(seed).standard_normal((steps, outer, points, inner))
    numbers = np.arange(steps, dtype=F64).reshape(-1, 1, 1, 1)
    with np.errstate(all="ignore"):
        return (FIELDS | HUGE)[field](noise, numbers).astype(dtype)


def run(values, age, lags, begin=0, stop=None, ring=None, ahead=0):
    """The kernel's records of the steps from `begin` to `stop`, and which are infinite."""
    steps, outer, _, inner = values.shape
    rows = values.reshape(steps, outer, -1)
    count = (steps if stop is None else stop) - begin
    out = np.full((count, 8, 1 + len(lags), outer * inner), 7.0)
    infinite = np.ones(count, np.bool_)
    summarise_steps(
        rows,
        np.zeros((1, *rows.shape[1:]), rows.dtype) if ring is None else ring,
        np.asarray(age, np.int64),
        ahead,
        begin,
        np.asarray(lags, np.int64),
        inner,
        lanes_of(inner),
        out,
        infinite,
    )
    return out, infinite


def bits(records):
    return np.ascontiguousarray(records, F64).view(np.uint64)


def assert_same_bits(got, expected):
    differing = np.argwhere(bits(got) != bits(expected))
    where = [f"{index}: {got[tuple(index)]!r}, {expected[tuple(index)]!r}" for index in differing]
    assert not where, f"{len(where)} differ; at (t, row, kind, v): {where[:8]}"


@pytest.mark.parametrize("dtype", [F32, F64], ids=["f4", "f8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(kernel_twin, shape, dtype):
    values = make("pressure", shape, dtype, steps=3)
    values[0, :, 0], values[1, :, -1] = np.nan, np.inf
    got, infinite = run(values, [0, 1, 2], [1])
    assert_same_bits(got, kernel_twin.step_records(values, [0, 1, 2], [1]))
    assert infinite.tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [F32, F64], ids=["f4", "f8"])
@pytest.mark.parametrize("shape", ["one-point", "outer-and-inner", "one-lane-too-few"])
@pytest.mark.parametrize("field", FIELDS)
def test_fields(kernel_twin, field, shape, dtype):
    values, age = make(field, shape, dtype), range(6)
    assert_same_bits(
        run(values, age, [1, 3, 2])[0], kernel_twin.step_records(values, age, [1, 3, 2])
    )


@pytest.mark.parametrize("field", HUGE)
@pytest.mark.parametrize("shape", ["one-point", "outer-and-inner"])
def test_out_of_range(kernel_twin, field, shape):
    values, age = make(field, shape, F64), range(6)
    assert_same_bits(run(values, age, [1])[0], kernel_twin.step_records(values, age, [1]))


@pytest.mark.parametrize(
    ("age", "lags"),
    [
        pytest.param([0, 1, 2, 3, 4, 5], [], id="no-lag"),
        pytest.param([0, 1, 2, 3, 4, 5], [5], id="one-pair"),
        pytest.param([0, 1, 2, 3, 4, 5], [6, 1], id="a-lag-too-long"),
        pytest.param([0, 1, 0, 1, 2, 3], [1, 2], id="two-trajectories"),
        pytest.param([-1, 0, 1, -1, -1, 0], [1], id="not-selected"),
        pytest.param([-1] * 6, [1], id="nothing-selected"),
    ],
)
def test_ages(kernel_twin, age, lags):
    values = make("some-missing", "two-inner", F32)
    assert_same_bits(run(values, age, lags)[0], kernel_twin.step_records(values, age, lags))


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
@pytest.mark.parametrize("ahead", [0, 1, 4, 11])
def test_earlier_steps_come_from_the_ring(kernel_twin, cut, ahead):
    values, age, lags = make("trend", "outer-and-inner", F32), np.arange(6), [1, 3]
    rows = values.reshape(6, 2, -1)
    ring = np.full((3, *rows.shape[1:]), np.nan, F32)
    for t in range(max(cut - 3, 0), cut):
        ring[(ahead + t - cut) % 3] = rows[t]
    got, _ = run(values[cut:], age[cut:], lags, ring=ring, ahead=ahead)
    assert_same_bits(got, kernel_twin.step_records(values, age, lags)[cut:])


def test_some_steps_of_a_piece(kernel_twin):
    values, age = make("noise", "17-inner", F32), np.arange(6)
    got, _ = run(values, age, [2], begin=3, stop=5)
    assert_same_bits(got, kernel_twin.step_records(values, age, [2])[3:5])


@pytest.mark.parametrize(
    ("values", "infinite"),
    [
        pytest.param([1, np.nan, 2], False, id="missing"),
        pytest.param([1, np.inf, 2], True, id="infinite"),
        pytest.param([-np.inf, np.nan, 2], True, id="minus-infinite"),
        pytest.param([1.7e308, 1.7e308, 1.7e308], False, id="sum-overflows"),
    ],
)
def test_infinite_values_are_reported(values, infinite):
    field = np.array(values).reshape(1, 1, 3, 1)
    assert run(field, [0], [])[1].tolist() == [infinite]


def test_infinity_is_reported_of_values_not_of_differences():
    """And of the step that holds it, not of a later one whose difference reaches back to it."""
    field = np.array([np.inf, 1, 2]).reshape(3, 1, 1, 1)
    assert run(field, [0, 1, 2], [1])[1].tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("inner", "lanes"), [(1, 256), (2, 128), (17, 16), (100, 4), (255, 2), (256, 1), (300, 1)]
)
def test_lanes(inner, lanes):
    assert lanes_of(inner) == lanes


PORTABLE = [
    (field, shape, dtype)
    for field in ("pressure", "some-missing", "steady-and-rounding", "spike-in-sample")
    for shape in ("several-tiles", "17-inner", "100-inner", "300-inner", "outer-and-inner")
    for dtype in (F32, F64)
]

DUMP = """
import sys
import numpy as np
from neural_prep.stats.accumulate import SeriesAccumulator
with np.load(sys.argv[1]) as fields, open(sys.argv[2], "wb") as out:
    for values in fields.values():
        accumulator = SeriesAccumulator(values.shape[1] * values.shape[3], [1, 3])
        accumulator.add(values, np.arange(len(values)), first=0)
        np.save(out, accumulator.finish())
"""


def test_same_bits_without_vector_extensions(tmp_path):
    """The processor that is compiled for has SSE2 alone: no FMA, no AVX."""
    fields = {"_".join([f, s, d.__name__]): make(f, s, d) for f, s, d in PORTABLE}
    np.savez(tmp_path / "fields.npz", **fields)
    cpus = {"here": {}, "generic": {"NUMBA_CPU_NAME": "generic"}}
    cpus["generic"]["NUMBA_CACHE_DIR"] = str(tmp_path)
    for name, variables in cpus.items():
        command = [sys.executable, "-c", DUMP, tmp_path / "fields.npz", tmp_path / name]
        subprocess.run(command, env=os.environ | variables, check=True, timeout=240)
    assert (tmp_path / "here").read_bytes() == (tmp_path / "generic").read_bytes()
    assert any(path.suffix == ".nbc" for path in tmp_path.rglob("*")), "nothing was compiled"
