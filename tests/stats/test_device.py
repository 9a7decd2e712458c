"""The arithmetic in torch against the kernel's definition in plain NumPy.

On torch's CPU device every bit is the same, but for the sign of zeros; a GPU, where there is one,
has to be as exact as `DESIGN.md` says.
"""

from itertools import product

import numpy as np
import pytest
import torch

from neural_prep.stats import arithmetic
from neural_prep.stats.accumulate import SeriesAccumulator, warm_up
from neural_prep.stats.arithmetic import DeviceArithmetic, HostArithmetic, Steps, arithmetic_on
from neural_prep.stats.moments import COUNT, M2, MAX, MEAN, MIN, MISSING

F32, F64 = np.float32, np.float64
CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# (N, O, I); a tile is 8192 points where I is 1, 512 where it is 17, 128 (100), 32 (300).
SHAPES = {
    "one-point": (1, 1, 1),
    "two-points": (2, 1, 2),
    "sample": (64, 1, 1),
    "one-lane-too-few": (255, 1, 1),
    "one-tile": (8192, 1, 1),
    "several-tiles": (8192 * 2 + 1029, 1, 1),
    "outer-and-inner": (90, 2, 3),
    "17-inner": (512 * 2 + 71, 1, 17),
    "100-inner": (128 + 37, 1, 100),
    "300-inner": (32 * 2 + 5, 1, 300),
}

# Made of normal noise (T, O, N, I) and the steps' numbers (T, 1, 1, 1).
FIELDS = {
    "pressure": lambda noise, _: 101325 + noise,
    "big-offset": lambda noise, _: 1e8 + 1e-7 * noise,
    "constant": lambda noise, _: 0 * noise + 0.1,
    "minus-zero": lambda noise, _: np.copysign(0.0, -abs(noise)),
    "both-zeros": lambda noise, _: np.where(abs(noise) > 1, noise, np.copysign(0.0, noise)),
    "trend": lambda noise, t: 64 * t + 0.001 * noise,
    "steady-and-rounding": lambda noise, t: np.where(t % 2, 64, 0) + 1e-9 * noise,
    "equal-but-for-rounding": lambda noise, t: np.where(t % 2, 64, 1e-17 * noise),
    "rounding-alike": lambda noise, t: np.where(t % 2, 64, 1e-15 / 3) + 0 * noise,
    "zeros-first": lambda noise, t: np.where(t == 0, 0, 5e4 + noise),
    "spike-in-sample": lambda noise, t: np.where(first_of(noise) & (t % 2 == 1), 1e4, noise / 1e3),
    "some-missing": lambda noise, _: np.where(abs(noise) > 1, np.nan, noise),
    "nearly-all-missing": lambda noise, _: np.where(noise < 1.5, np.nan, 1e5 + noise),
    "all-missing": lambda noise, _: noise * np.nan,
    "infinite": lambda noise, _: np.where(abs(noise) > 1, np.copysign(np.inf, noise), noise),
}

HUGE = {
    "squares-overflow": lambda noise, _: 1e200 * noise,
    "sums-overflow": lambda noise, _: np.clip(noise, -1, 1) * 1.7e308,
    "constant-whose-sums-overflow": lambda noise, _: 0 * noise + 1.7e308,
    "squares-vanish": lambda noise, _: 1e-200 * noise,
}


def first_of(noise):
    """Whether a point is the first of the grid, which the guess of the shift sees."""
    return np.arange(noise.shape[2]).reshape(-1, 1) == 0


def make(field, shape, dtype, steps=6):
    """`(T, O, N, I)` of a named field."""
    points, outer, inner = SHAPES[shape]
    noise = np.random.default_rng(0).standard_normal((steps, outer, points, inner))
    numbers = np.arange(steps, dtype=F64).reshape(-1, 1, 1, 1)
    with np.errstate(all="ignore"):
        return (FIELDS | HUGE)[field](noise, numbers).astype(dtype)


def run(values, age, lags, *, begin=0, ring=None, ahead=0, device="cpu"):
    """Records of the steps from `begin` on, and which of them are infinite."""
    rows = values.reshape(*values.shape[:2], -1)
    ring = np.zeros((1, *rows.shape[1:]), rows.dtype) if ring is None else ring
    age, lags = np.asarray(age, np.int64), np.asarray(lags, np.int64)
    steps = Steps(rows, ring, ahead, age, lags, values.shape[3])
    found = list(DeviceArithmetic(torch.device(device)).summarise(steps, begin))
    records, infinite = (np.concatenate(each) for each in zip(*found, strict=True))
    return records, infinite.tolist()


def bits(records):
    """Zeros without their sign, and all NaN alike."""
    records = records + 0.0
    return np.where(np.isnan(records), np.nan, records).view(np.uint64)


def assert_same(got, expected):
    assert not np.signbit(got[got == 0]).any()
    differing = np.argwhere(bits(got) != bits(expected))
    where = [f"{tuple(at)}: {got[tuple(at)]!r}, {expected[tuple(at)]!r}" for at in differing]
    assert not where, f"{len(where)} differ; at (t, row, kind, v): {where[:8]}"


def assert_accurate(got, expected, what):
    """As `DESIGN.md` says: counts and ends exact, mean and std to 1e-12."""
    exact = [COUNT, MISSING, MIN, MAX]
    np.testing.assert_array_equal(got[:, exact], expected[:, exact], what)
    stds = [np.sqrt(each[:, M2] / np.maximum(each[:, COUNT], 1)) for each in (got, expected)]
    np.testing.assert_allclose(*stds, rtol=1e-12, err_msg=what)
    off = abs(got[:, MEAN] - expected[:, MEAN])
    assert np.all(off <= 1e-12 * np.maximum(abs(expected[:, MEAN]), stds[1])), what


@pytest.mark.parametrize("dtype", [F32, F64], ids=["f4", "f8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(kernel_twin, shape, dtype):
    values = make("pressure", shape, dtype, steps=3)
    values[0, :, 0], values[1, :, -1] = np.nan, np.inf
    got, infinite = run(values, [0, 1, 2], [1])
    assert_same(got, kernel_twin.step_records(values, [0, 1, 2], [1]))
    assert infinite == [False, True, False]


@pytest.mark.parametrize("dtype", [F32, F64], ids=["f4", "f8"])
@pytest.mark.parametrize("shape", ["one-point", "outer-and-inner", "one-lane-too-few"])
@pytest.mark.parametrize("field", FIELDS)
def test_fields(kernel_twin, field, shape, dtype):
    values, age = make(field, shape, dtype), range(6)
    got, _ = run(values, age, [1, 3, 2])
    assert_same(got, kernel_twin.step_records(values, age, [1, 3, 2]))


@pytest.mark.parametrize("dtype", [F32, F64], ids=["f4", "f8"])
@pytest.mark.parametrize("shape", ["one-tile", "several-tiles", "outer-and-inner"])
@pytest.mark.parametrize("field", ["pressure", "some-missing", "steady-and-rounding"])
def test_a_shift_that_is_far_off(kernel_twin, field, shape, dtype):
    """Every point that guesses it is: in all variables, or in one of those beside it."""
    values = make(field, shape, dtype, steps=3)
    points = values.shape[2]
    taken = min(points, 64)
    values[1:, :, [k * points // taken for k in range(taken)], 0] += 1e6
    got, _ = run(values, range(3), [1])
    assert_same(got, kernel_twin.step_records(values, range(3), [1]))


@needs_gpu
def test_on_a_gpu():
    """Every field in every shape, beside torch's CPU device, which the tests above hold."""
    for field, shape, dtype in product(FIELDS, SHAPES, [F32, F64]):
        values, age = make(field, shape, dtype, steps=3), range(3)
        expected, infinite = run(values, age, [2, 1])
        got, infinite_there = run(values, age, [2, 1], device="cuda")
        what = f"{field}, {shape}, {np.dtype(dtype)}"
        assert_accurate(got, expected, what)
        assert infinite_there == infinite, what


@pytest.mark.parametrize("field", HUGE)
@pytest.mark.parametrize("shape", ["one-point", "outer-and-inner"])
def test_out_of_range(kernel_twin, field, shape):
    values, age = make(field, shape, F64), range(6)
    assert_same(run(values, age, [1])[0], kernel_twin.step_records(values, age, [1]))


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
    values = make("some-missing", "two-points", F32)
    assert_same(run(values, age, lags)[0], kernel_twin.step_records(values, age, lags))


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
@pytest.mark.parametrize("ahead", [0, 4, 11])
def test_earlier_steps_come_from_the_ring(kernel_twin, cut, ahead):
    values, age, lags = make("trend", "outer-and-inner", F32), np.arange(6), [1, 3]
    rows = values.reshape(6, 2, -1)
    ring = np.full((3, *rows.shape[1:]), np.nan, F32)
    for t in range(max(cut - 3, 0), cut):
        ring[(ahead + t - cut) % 3] = rows[t]
    got, _ = run(values[cut:], age[cut:], lags, ring=ring, ahead=ahead)
    assert_same(got, kernel_twin.step_records(values, age, lags)[cut:])


@pytest.mark.parametrize("nbytes", [1, 100_000])
def test_what_is_summed_at_once_changes_no_bit(kernel_twin, nbytes, monkeypatch):
    """Nor does the number of steps whose records are held."""
    monkeypatch.setattr(arithmetic, "_DEVICE_BYTES", nbytes)
    monkeypatch.setattr(arithmetic, "_BATCH_BYTES", nbytes // 10)
    values, age = make("spike-in-sample", "17-inner", F32), range(6)
    got, _ = run(values, age, [2], begin=3)
    assert_same(got, kernel_twin.step_records(values, age, [2])[3:])


@pytest.mark.parametrize("cuts", [(), (1,), (4, 5)], ids=str)
def test_a_block_is_the_hosts(cuts):
    """In pieces, some of which need steps of the one before for their lags."""
    values, age = make("some-missing", "17-inner", F32), np.array([0, 1, 2, 3, 0, 1])
    records = []
    for each in (HostArithmetic(), DeviceArithmetic(CPU)):
        accumulator = SeriesAccumulator(17, [1, 2], arithmetic=each)
        for first, stop in zip((0, *cuts), (*cuts, 6), strict=True):
            accumulator.add(values[first:stop], age[first:stop], first=first)
        records.append(accumulator.finish())
    assert_same(records[1], records[0])


def test_no_points():
    accumulator = SeriesAccumulator(2, [1], arithmetic=DeviceArithmetic(CPU))
    assert accumulator.add(np.zeros((3, 2, 0, 1)), np.arange(3), first=0).tolist() == []


def test_infinite_values_are_told_where_they_are_counted():
    values = np.ones((5, 1, 3, 1))
    values[[0, 1, 3], 0, 2] = np.inf
    accumulator = SeriesAccumulator(1, [1], arithmetic=DeviceArithmetic(CPU))
    told = accumulator.add(values, np.array([0, 1, 2, -1, 0]), first=0, context=1)
    assert told.tolist() == [1]


def test_each_device_has_its_arithmetic():
    assert isinstance(arithmetic_on(CPU, 1), HostArithmetic)
    assert isinstance(arithmetic_on(torch.device("cuda", 0), 1), DeviceArithmetic)
    warm_up("gpu")
