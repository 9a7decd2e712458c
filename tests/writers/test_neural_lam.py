import re

import numpy as np
import pytest
import torch

from neural_prep.errors import InputError
from neural_prep.writers.formats import FormatOptions, find_format, write_formats

neural_lam = find_format("neural_lam")

MEAN_STD = ["parameter_mean.pt", "parameter_std.pt"]
DIFF = ["diff_mean.pt", "diff_std.pt"]
NEUTRAL_DIFFERENCE = "its difference's mean is written as 0, its std as 1"
NAN = np.nan


def read(folder, name):
    return torch.load(folder / name, weights_only=True)


def field(*columns: list[float]) -> np.ndarray:
    """`(T, 1, V)` of each variable's values in time order."""
    return np.array(columns, np.float64).T[:, np.newaxis]


def write(two_pass, folder, *groups, options=None):
    statistics = two_pass.statistics(*groups)
    return write_formats(["neural_lam"], statistics, folder, options or FormatOptions())


def test_agrees_with_the_published_definitions(two_pass, neural_lam_oracle, tmp_path):
    """On data where those are exact: equal batches, steps a multiple of the lag, steady flux."""
    rng = np.random.default_rng(1)
    lag, members = 3, 2
    offset, spread = np.array([1e5, 280.0, 5e-3]), np.array([1e3, 10.0, 1e-3])
    samples = [
        offset + spread * (rng.normal(size=(12, 20, 3)) + 0.1 * np.arange(12)[:, None, None])
        for _ in range(6)
    ]
    night_and_day = np.maximum(0.0, rng.normal(300.0, 400.0, size=(3, 20)))
    fluxes = [rng.permuted(np.tile(analysis, (12, 1)), axis=1) for analysis in night_and_day]
    of_members = [flux for flux in fluxes for _ in range(members)]
    for steps in (slice(2, None), slice(None, -2)):
        expected = neural_lam_oracle.published_results(
            samples, lag, of_members, batch_size=2, flux_steps=steps
        )
        write(
            two_pass,
            tmp_path,
            two_pass.group("state", samples, [lag, 1]),
            two_pass.group("flux", [flux[..., np.newaxis] for flux in fluxes], [lag, 1]),
        )
        for name in (*MEAN_STD, *DIFF, "flux_stats.pt"):
            # float32 rounds to 6e-8; differences of means near 0 are in units of the std, so near 1
            np.testing.assert_allclose(
                read(tmp_path, name), getattr(expected, name[:-3]), rtol=1e-5, atol=1e-6
            )


def test_files_types_and_shapes(two_pass, tmp_path):
    state = two_pass.group(
        "state", [np.random.default_rng(0).normal(size=(4, 5, 2))], [1], ["t_2", "z_500"]
    )
    flux = two_pass.group("flux", [np.arange(6.0).reshape(2, 3, 1)], [1])
    static = two_pass.group("static", [np.ones((1, 5, 3))])
    paths = write(
        two_pass, tmp_path, state, flux, static, options=FormatOptions({2: 1.0, 500: 0.03})
    )
    names = [*MEAN_STD, *DIFF, "flux_stats.pt", "parameter_weights.npy"]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for name in names[:-1]:
        tensor = read(tmp_path, name)
        assert (tensor.shape, tensor.dtype) == ((2,), torch.float32)
    weights = np.load(tmp_path / "parameter_weights.npy", allow_pickle=False)
    assert (weights.tolist(), weights.dtype) == (np.float32([1.0, 0.03]).tolist(), np.float32)


def test_differences_are_of_the_first_lag_in_units_of_the_std(two_pass, tmp_path):
    trajectory = field([0, 1, 4, 9])
    write(two_pass, tmp_path, two_pass.group("state", [trajectory], [2, 1]))
    std = np.std([0, 1, 4, 9])
    assert read(tmp_path, "diff_mean.pt").item() == pytest.approx(6 / std, rel=1e-6)
    assert read(tmp_path, "diff_std.pt").item() == pytest.approx(2 / std, rel=1e-6)


def test_without_flux_and_table_there_are_four_files(two_pass, tmp_path):
    paths = write(two_pass, tmp_path, two_pass.group("state", [field([1, 2])], [1]))
    assert [path.name for path in paths] == [*MEAN_STD, *DIFF]


@pytest.mark.parametrize(
    ("trajectory", "lag", "numbers", "warnings"),
    [
        pytest.param(
            field([1, 3], [7, 7]),
            1,
            ([2, 7], [1, 0], [2, 0], [0, 0]),
            ["v_1 is constant; its difference's mean is written as 0, its std as 0"],
            id="constant",
        ),
        pytest.param(
            field([1, 3], [2, 6]),
            5,
            ([2, 4], [1, 2], [0, 0], [1, 1]),
            [
                f"v_0 has no difference over lag 5; {NEUTRAL_DIFFERENCE}",
                f"v_1 has no difference over lag 5; {NEUTRAL_DIFFERENCE}",
            ],
            id="lag-without-pairs",
        ),
        pytest.param(
            field([1, 3], [NAN, NAN]),
            1,
            ([2, 0], [1, 1], [2, 0], [0, 1]),
            [
                "v_1 has no value; its mean is written as 0, its std as 1",
                f"v_1 has no difference over lag 1; {NEUTRAL_DIFFERENCE}",
            ],
            id="all-missing",
        ),
    ],
)
def test_what_does_not_exist_is_neutral_and_warned_of(
    two_pass, tmp_path, caplog, trajectory, lag, numbers, warnings
):
    write(two_pass, tmp_path, two_pass.group("state", [trajectory], [lag]))
    assert tuple(read(tmp_path, name).tolist() for name in (*MEAN_STD, *DIFF)) == numbers
    assert caplog.messages == [f"neural_lam: {warning}" for warning in warnings]


def test_flux_without_values(two_pass, tmp_path, caplog):
    state = two_pass.group("state", [field([1, 3])], [1])
    flux = two_pass.group("flux", [field([NAN, NAN])], [1], ["toa_flux"])
    write(two_pass, tmp_path, state, flux)
    assert read(tmp_path, "flux_stats.pt").tolist() == [0.0, 1.0]
    assert caplog.messages == [
        "neural_lam: toa_flux has no value; its mean is written as 0, its std as 1"
    ]


def test_old_files_stay_whole_when_a_new_one_cannot_be_written(two_pass, tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    (tmp_path / "parameter_mean.pt").write_bytes(b"old")
    monkeypatch.setattr(neural_lam.np, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        write(
            two_pass,
            tmp_path,
            two_pass.group("state", [field([1, 2])], [1], ["t_2"]),
            options=FormatOptions({2: 1.0}),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["parameter_mean.pt"]
    assert (tmp_path / "parameter_mean.pt").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("groups", "lags", "table", "message"),
    [
        pytest.param(
            {"static": ["x"]},
            [1],
            None,
            "output.formats: neural_lam is made from group 'state', and the store has static; "
            "leave neural_lam out",
            id="no-state",
        ),
        pytest.param(
            {"state": ["t_2"]},
            [],
            None,
            "model.lags: [] gives neural_lam no difference to write; name at least one lag, such "
            "as [1], or leave neural_lam out of output.formats",
            id="no-lag",
        ),
        pytest.param(
            {"state": ["t_2", "t_700"]},
            [1],
            {2: 1.0},
            "parameter_weights: no weight for t_700 (level 700); the table has levels 2; "
            "add what is lacking or leave the table out",
            id="no-weight",
        ),
    ],
)
def test_what_is_refused_before_the_work(groups, lags, table, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        neural_lam.check(groups, lags, FormatOptions(table))


@pytest.mark.parametrize("table", [None, {2: 1.0}])
def test_what_is_accepted(table):
    neural_lam.check({"state": ["t_2"], "flux": ["toa"]}, [3, 1], FormatOptions(table))
