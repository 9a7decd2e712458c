"""Real and example stores through the whole chain in one process, against NumPy and exact sums.

The stores are read here by `np.load` and file name alone, and their statistics are computed by the
two-pass oracle in float64; `truth.json` has them by exact summation.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from neural_prep.data.layouts import open_source
from neural_prep.data.source import StoreOptions
from neural_prep.engine.plan import Plan
from neural_prep.engine.reading import PieceReader
from neural_prep.engine.result import assemble
from neural_prep.stats.accumulate import SeriesAccumulator
from neural_prep.stats.statistics import RunInfo
from neural_prep.stats.tree import MergeTree

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
EXAMPLE = ROOT / "tests" / "data" / "meps_example"
EDA, HOURLY = SHARED / "meps_layout_era5_eda", SHARED / "meps_layout_era5_hourly"
TOLERANCE = 1e-12  # DESIGN.md's accuracy; NumPy's pairwise float64 sums are good to some 1e-15

needs_shared = pytest.mark.skipif(not EDA.is_dir(), reason=f"{SHARED} is not there")


def run(path, split, lags, *, block_bytes=100_000, piece_steps=None, workers=1, **options):
    """All statistics of one split, as `neural-prep stats` computes them on one rank."""
    options = StoreOptions(str(path), split=split, block_bytes=block_bytes, **options)
    plan = Plan(open_source("auto", options), tuple(lags), "fail", block_bytes)
    accumulators = [
        SeriesAccumulator(len(series.columns), plan.lags_of(index))
        for index, series in enumerate(plan.source.series)
    ]
    trees = [MergeTree(length) for length in plan.lengths]
    reader = PieceReader(plan, plan.runs(0, 1), piece_steps=piece_steps, workers=workers)
    nbytes = 0
    for pending in reader:
        batch = pending.result()
        piece, accumulator = batch.piece, accumulators[batch.series]
        infinite = accumulator.add(
            piece.values, piece.age, first=piece.span.first, context=piece.span.context
        )
        assert infinite.size == 0
        nbytes += piece.span.nbytes
        if batch.last:
            trees[batch.series].add((0, batch.block), accumulator.finish())
    assert nbytes == plan.nbytes
    return assemble(
        plan,
        [tree.root() for tree in trees],
        split=split,
        run=RunInfo(1, plan.blocks, nbytes, 1.0),
        device="cpu",
    )


def load(path, split, pattern):
    """Arrays of a split's files in float64, in the order of their names."""
    files = sorted((path / "samples" / split).glob(pattern), key=lambda file: file.name)
    return [np.load(file).astype(np.float64) for file in files]


def fields(arrays, kept=None):
    """Arrays `(T, y, x, V)` as `(T, N, V)`."""
    flat = [array.reshape(len(array), -1, array.shape[-1]) for array in arrays]
    return flat if kept is None else [array[:, kept] for array in flat]


def assert_agree(found, expected):
    """Counts and bounds are the same, means and standard deviations are within DESIGN.md's."""
    assert (found.name, found.variables, found.units) == (
        expected.name,
        expected.variables,
        expected.units,
    )
    assert [lag for lag, _ in found.differences] == [lag for lag, _ in expected.differences]
    pairs = [(found.values, expected.values)]
    pairs += [
        (one, other)
        for (_, one), (_, other) in zip(found.differences, expected.differences, strict=True)
    ]
    for one, other in pairs:
        for name in ("count", "missing", "min", "max", "constant"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
        np.testing.assert_allclose(one.std, other.std, rtol=TOLERANCE, atol=0)
        np.testing.assert_array_equal(np.isnan(one.mean), other.count == 0)
        error = np.abs(one.mean - other.mean)
        allowed = TOLERANCE * np.maximum(np.abs(other.mean), other.std)
        assert (error <= allowed)[other.count > 0].all(), (one.mean, other.mean)
        np.testing.assert_array_equal(one.std[one.constant], 0)


def bits(statistics):
    """Every number of a result, as bytes."""
    return [
        getattr(summary, name).tobytes()
        for group in statistics.groups
        for summary in (group.values, *(each for _, each in group.differences))
        for name in ("count", "missing", "mean", "std", "min", "max", "constant")
    ]


# Real data


@needs_shared
@pytest.mark.parametrize(
    ("path", "split", "steps"),
    [
        pytest.param(EDA, "train", (10, 4), id="eda train"),
        pytest.param(HOURLY, "train", (5, 65), id="hourly train"),
        pytest.param(HOURLY, "val", (1, 65), id="hourly val"),
        pytest.param(HOURLY, "test", (2, 65), id="hourly test"),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 1_000_000], ids=["a block a file", "small blocks"])
def test_real_values_against_numpy(two_pass, path, split, steps, block_bytes):
    lags = (1, 2, 3, 24, 64)  # longer than some trajectories, or all
    samples = fields(load(path, split, "nwp_*_mbr*.npy"))
    features = [f"feature_{index}" for index in range(samples[0].shape[-1])]
    expected = two_pass.group("state", samples, lags, features)

    found = run(path, split, lags, block_bytes=block_bytes)
    (group,) = found.groups
    assert_agree(group, expected)
    files, length = steps
    assert (found.source.trajectories, found.source.steps) == (files, files * length)
    points = samples[0].shape[1]
    assert group.values.count.tolist() == [files * length * points] * len(features)
    for lag, summary in group.differences:
        pairs = files * max(length - lag, 0) * points
        assert summary.count.tolist() == [pairs] * len(features)
        assert np.isfinite(summary.mean).all() == (pairs > 0)


@needs_shared
@pytest.mark.parametrize("path", [EDA, HOURLY], ids=lambda path: path.name)
def test_real_values_against_exact_sums(path):
    truth = json.loads((SHARED / "truth.json").read_text())[path.name]
    (group,) = run(path, "train", (1, 3)).groups
    assert list(group.variables) == list(truth)
    for variable, exact in enumerate(truth.values()):
        wanted = [exact, *exact["differences"]]
        summaries = [group.values, *(summary for _, summary in group.differences)]
        assert [difference["lag"] for difference in exact["differences"]] == [1, 3]
        for summary, numbers in zip(summaries, wanted, strict=True):
            for name in ("count", "min", "max"):
                assert getattr(summary, name)[variable] == numbers[name]
            assert summary.missing[variable] == 0
            assert summary.std[variable] == pytest.approx(numbers["std"], rel=TOLERANCE, abs=0)
            scale = max(abs(numbers["mean"]), numbers["std"])
            assert summary.mean[variable] == pytest.approx(
                numbers["mean"], rel=0, abs=TOLERANCE * scale
            )


@needs_shared
@pytest.mark.parametrize("path", [EDA, HOURLY], ids=lambda path: path.name)
def test_real_values_in_any_pieces_have_the_same_bits(path):
    expected = bits(run(path, "train", (1, 3)))
    for piece_steps, workers in ((1, 1), (2, 3), (3, 2), (64, 2)):
        found = run(path, "train", (1, 3), piece_steps=piece_steps, workers=workers)
        assert bits(found) == expected


# The example


def expected_example(two_pass, split, lags, region="all"):
    """Groups of the example store, by the oracle."""
    border = np.load(EXAMPLE / "static" / "border_mask.npy")
    kept = None if region == "all" else ~border.ravel()
    config = yaml.safe_load((EXAMPLE / "data_config.yaml").read_text())["dataset"]
    names, units = config["var_names"], config["var_units"]
    used = np.delete(np.arange(18), config["remove_state_features_with_index"])

    samples = [array[..., used] for array in load(EXAMPLE, split, "nwp_*_mbr*.npy")]
    fluxes = [array[..., np.newaxis] for array in load(EXAMPLE, split, "nwp_toa_*.npy")]
    static = {
        "wtr": np.stack(load(EXAMPLE, split, "wtr_*.npy")),
        "nwp_x": np.load(EXAMPLE / "static" / "nwp_xy.npy")[:1],
        "nwp_y": np.load(EXAMPLE / "static" / "nwp_xy.npy")[1:],
        "surface_geopotential": np.load(EXAMPLE / "static" / "surface_geopotential.npy")[None],
        "border_mask": border[None],
    }
    flux = "toa_downwelling_shortwave_flux"
    return [
        two_pass.group("state", fields(samples, kept), lags, names, units),
        two_pass.group("flux", fields(fluxes, kept), lags, [flux], ["W/m**2"]),
        *(
            two_pass.group("static", fields([array[..., None]], kept), (), [name])
            for name, array in static.items()
        ),
    ]


def each_variable(group):
    """A group as groups of one variable."""
    for index, name in enumerate(group.variables):
        values = {
            field: getattr(group.values, field)[[index]]
            for field in ("count", "missing", "mean", "std", "min", "max", "constant")
        }
        yield type(group)(
            group.name, (name,), (group.units[index],), type(group.values)(**values), ()
        )


@pytest.mark.parametrize("region", ["all", "interior"])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_example_against_numpy(two_pass, split, region):
    lags = (3, 1, 70)
    expected = expected_example(two_pass, split, lags, region)
    found = run(EXAMPLE, split, lags, region=region)
    assert [group.name for group in found.groups] == ["state", "flux", "static"]
    state, flux, static = found.groups
    # The static group's variables have files, and so counts, of their own.
    parts = [state, flux, *each_variable(static)]
    assert len(parts) == len(expected)
    for part, wanted in zip(parts, expected, strict=True):
        assert_agree(part, wanted)
    assert np.isnan(state.differences[2][1].mean).all()  # no pair is 70 steps apart


@pytest.mark.parametrize("block_bytes", [1, 2_000_000, 64_000_000])
def test_example_in_any_pieces_has_the_same_bits(block_bytes):
    expected = bits(run(EXAMPLE, "train", (1, 3), block_bytes=block_bytes))
    for piece_steps, workers in ((1, 2), (7, 1), (64, 2), (65, 1)):
        found = run(
            EXAMPLE,
            "train",
            (1, 3),
            block_bytes=block_bytes,
            piece_steps=piece_steps,
            workers=workers,
        )
        assert bits(found) == expected
