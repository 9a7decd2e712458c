"""The same fields in every layout and zarr format give the same statistics."""

import numpy as np
import pytest
import xarray as xr
import zarr

from neural_prep.engine.command import run_stats

EXACT = ("count", "missing", "min", "max", "constant")
NAMES = ("t", "z")
HOURS = 48


@pytest.fixture
def fields():
    """Hourly fields `(T, y, x, V)` of two variables, with NaN at some points."""
    generator = np.random.default_rng(7)
    values = generator.normal((280.0, 54000.0), (5.0, 300.0), (HOURS, 6, 7, 2)).astype(np.float32)
    values[generator.random(values.shape) < 0.03] = np.nan
    return values


def times(steps=HOURS, start="2020-02-27"):
    return np.datetime64(start, "ns") + np.arange(steps) * np.timedelta64(1, "h")


def write_meps(root, fields):
    folder = root / "samples" / "train"
    folder.mkdir(parents=True)
    np.save(folder / "nwp_2020022700_mbr000.npy", fields)
    quoted = ", ".join(NAMES)
    (root / "data_config.yaml").write_text(f"dataset: {{var_names: [{quoted}]}}\n")
    return {"split": "train"}


def write_mllam(root, fields, zarr_format, when=None):
    steps = len(fields)
    flat = fields.reshape(steps, -1, 2).transpose(0, 2, 1)  # (T, V, N)
    store = xr.Dataset(
        {"state": (("time", "state_feature", "grid_index"), flat)},
        coords={
            "time": times() if when is None else when,
            "state_feature": list(NAMES),
            "state_feature_units": ("state_feature", ["K", "m2 s-2"]),
            "grid_index": np.arange(flat.shape[2]),
        },
    )
    chunks = {"state": {"chunks": (5, 1, 20)}}
    store.to_zarr(root, zarr_format=zarr_format, encoding=chunks, consolidated=False)
    return {}


def write_cf(root, fields, zarr_format):
    store = xr.Dataset(
        {
            name: (("latitude", "time", "longitude"), fields[..., number].transpose(1, 0, 2))
            for number, name in enumerate(NAMES)
        },
        coords={"time": times(), "latitude": np.arange(6.0), "longitude": np.arange(7.0)},
    )
    chunks = {"t": {"chunks": (4, 7, 3)}, "z": {"chunks": (6, 48, 7)}}
    store.to_zarr(root, zarr_format=zarr_format, encoding=chunks, consolidated=False)
    return {}


@pytest.fixture
def run(tmp_path, read_result):
    """Runs the command in this process and returns the result less `run` and `created`."""

    def run_on(root, lags=(1, 6), **data):
        args = ["--data.path", str(root), "--model.lags", str(list(lags))]
        for key, value in {"block_bytes": 3000, **data}.items():
            args += [f"--data.{key}", str(value)]
        assert run_stats([*args, "--output.dir", str(tmp_path / "out")]) == 0
        return read_result(tmp_path / "out")

    return run_on


def test_all_layouts_agree(run, fields, tmp_path):
    stores = {
        "meps": write_meps(tmp_path / "meps", fields),
        "mllam2": write_mllam(tmp_path / "mllam2", fields, 2),
        "mllam3": write_mllam(tmp_path / "mllam3", fields, 3),
        "cf2": write_cf(tmp_path / "cf2", fields, 2),
        "cf3": write_cf(tmp_path / "cf3", fields, 3),
    }
    results = {name: run(tmp_path / name, **options) for name, options in stores.items()}
    layouts = [result["source"]["layout"] for result in results.values()]
    assert layouts == ["meps", "mllam", "mllam", "cf", "cf"]
    first = results["meps"]["groups"]["state"]
    assert first["count"] == [int(np.isfinite(fields[..., v]).sum()) for v in range(2)]
    for result in results.values():
        state = result["groups"]["state"]
        assert state["variables"] == list(NAMES)
        compare(state, first)
        for ours, theirs in zip(state["differences"], first["differences"], strict=True):
            compare(ours, theirs)
    # Formats of one layout have the same blocks, and so the same bits.
    assert results["mllam2"]["groups"] == results["mllam3"]["groups"]
    assert results["cf2"]["groups"] == results["cf3"]["groups"]


def compare(ours, theirs):
    for name in EXACT:
        assert ours[name] == theirs[name], name
    np.testing.assert_allclose(ours["std"], theirs["std"], rtol=1e-12)
    # A mean is good to 1e-12 of its std, of which it may be a small part.
    error = np.abs(np.subtract(ours["mean"], theirs["mean"]))
    assert (error <= 1e-12 * np.maximum(np.abs(theirs["mean"]), theirs["std"])).all()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_no_pair_crosses_a_missing_day(run, fields, tmp_path, zarr_format):
    kept = np.r_[0:10, 34:HOURS]  # 24 hours are missing
    write_mllam(tmp_path / "store", fields[kept], zarr_format, times()[kept])
    result = run(tmp_path / "store", lags=(1, 6))
    assert result["source"]["trajectories"] == 2
    for difference, lag in zip(result["groups"]["state"]["differences"], (1, 6), strict=True):
        pairs = (10 - lag + 14 - lag) * 6 * 7
        assert [a + b for a, b in zip(difference["count"], difference["missing"], strict=True)] == [
            pairs
        ] * 2
        ends = [
            (t, t - lag) for t in range(len(kept)) if kept[t] - kept[t - lag] == lag and t >= lag
        ]
        expected = np.array([fields[kept[t]] - fields[kept[s]].astype(float) for t, s in ends])
        np.testing.assert_allclose(
            difference["mean"], np.nanmean(expected, axis=(0, 1, 2)), rtol=1e-11
        )


def test_no_pair_reaches_out_of_a_split(run, fields, tmp_path):
    write_mllam(tmp_path / "store", np.nan_to_num(fields), 3)
    splits = [["2020-02-27T00:00", "2020-02-27T19:00"], ["2020-02-27T20:00", "2020-02-28T23:00"]]
    names = np.array(["train", "val"])
    extra = xr.Dataset(
        {"splits": (("split_name", "split_part"), splits)},
        coords={"split_name": names, "split_part": ["start", "end"]},
    )
    extra.to_zarr(tmp_path / "store", mode="a", consolidated=False)
    counts = {
        name: run(tmp_path / "store", lags=(6,), split=name)["groups"]["state"]["differences"][0]
        for name in names
    }
    assert counts["train"]["count"] == [(20 - 6) * 42] * 2
    assert counts["val"]["count"] == [(28 - 6) * 42] * 2


def test_results_equal_neural_lam_where_its_definitions_are_exact(
    run, tmp_path, neural_lam_oracle, write_samples
):
    import torch

    root, arrays = write_samples(tmp_path / "store", 8, steps=12, features=2)
    generator = np.random.default_rng(3)
    flux = generator.uniform(0.0, 1300.0, (4, 5)).astype(np.float32)
    fluxes = []
    for path in sorted((root / "samples/train").glob("nwp_*_mbr000.npy")):
        steps = np.stack([generator.permutation(flux.reshape(-1)).reshape(4, 5) for _ in range(12)])
        np.save(path.with_name(f"nwp_toa_downwelling_shortwave_flux_{path.name[4:14]}.npy"), steps)
        fluxes += [steps.reshape(12, -1)] * 4
    run(root, lags=(3,), split="train", **{"block_bytes": 5000})
    out = tmp_path / "neural_lam"
    args = ["--data.path", str(root), "--data.split", "train", "--model.lags", "[3]"]
    args += ["--output.formats", "[neural_lam]", "--output.dir", str(out)]
    assert run_stats(args) == 0
    samples = [array.reshape(12, -1, 2) for array in arrays]
    expected = neural_lam_oracle.published_results(samples, 3, fluxes)
    for name, values in expected._asdict().items():
        ours = torch.load(out / f"{name}.pt", weights_only=True).numpy()
        # A difference's mean is a small part of its std, to which its error belongs.
        np.testing.assert_allclose(ours, values, rtol=1e-5, atol=1e-5, err_msg=name)


def test_dimensions_that_are_lacking_are_named(tmp_path, capsys):
    group = zarr.open_group(tmp_path / "store", mode="w", zarr_format=3)
    group.create_array("state", shape=(4, 3), dtype="f4", dimension_names=("time", "grid_index"))
    status = run_stats(
        [
            "--data.path",
            str(tmp_path / "store"),
            "--data.layout",
            "mllam",
            "--output.dir",
            str(tmp_path / "out"),
        ]
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert "state" in line
    assert "state_feature" in line
