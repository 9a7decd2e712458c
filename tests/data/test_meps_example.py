"""The example data set: it is what its script writes, it is small, and it looks like weather."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

HERE = Path(__file__).parent
STORE = HERE / "meps_example"
STATES = sorted(STORE.glob("samples/*/nwp_*_mbr*.npy"))
FLUXES = sorted(STORE.glob("samples/*/nwp_toa_downwelling_shortwave_flux_*.npy"))


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rewritten")
    script = HERE / "make_meps_example.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True)
    return folder


def test_script_writes_the_same_files(rewritten: Path) -> None:
    assert files_below(rewritten) == files_below(STORE)


@pytest.mark.parametrize("name", files_below(STORE))
def test_script_writes_the_same_contents(rewritten: Path, name: str) -> None:
    if not name.endswith(".npy"):
        assert (rewritten / name).read_bytes() == (STORE / name).read_bytes()
        return
    found, committed = np.load(rewritten / name), np.load(STORE / name)
    assert (found.dtype, found.shape) == (committed.dtype, committed.shape)
    # A sine's last bit differs between processors, and so, rarely, a float32's: 6e-8 of a term.
    atol = 1e-6 * np.abs(committed).max()
    np.testing.assert_allclose(found, committed, rtol=0, atol=atol)


def test_store_is_small() -> None:
    assert sum(path.stat().st_size for path in STORE.rglob("*") if path.is_file()) < 4_000_000


@pytest.mark.parametrize(
    ("pattern", "count", "dtype", "shape"),
    [
        ("samples/train/nwp_*_mbr*.npy", 7, "<f4", (65, 10, 9, 18)),
        ("samples/val/nwp_*_mbr*.npy", 1, "<f4", (65, 10, 9, 18)),
        ("samples/test/nwp_*_mbr*.npy", 1, "<f4", (65, 10, 9, 18)),
        ("samples/*/nwp_toa_downwelling_shortwave_flux_*.npy", 6, "<f4", (65, 10, 9)),
        ("samples/*/wtr_*.npy", 6, "<f4", (10, 9)),
        ("static/nwp_xy.npy", 1, "<f4", (2, 10, 9)),
        ("static/surface_geopotential.npy", 1, "<f4", (10, 9)),
        ("static/border_mask.npy", 1, "|b1", (10, 9)),
    ],
)
def test_layout(pattern: str, count: int, dtype: str, shape: tuple[int, ...]) -> None:
    arrays = [np.load(path) for path in STORE.glob(pattern)]
    assert len(arrays) == count
    assert {(array.dtype.str, array.shape) for array in arrays} == {(dtype, shape)}


@pytest.mark.parametrize(
    ("index", "low", "high"),
    [
        pytest.param(0, 8.5e4, 1.06e5, id="pres_0g"),
        pytest.param(1, 9.5e4, 1.06e5, id="pres_0s"),
        pytest.param(2, -150, 20, id="nlwrs_0"),
        pytest.param(3, 0, 900, id="nswrs_0"),
        pytest.param(4, 0, 1, id="r_2"),
        pytest.param(5, 0, 1, id="r_65"),
        pytest.param(6, 240, 310, id="t_2"),
        pytest.param(7, 240, 310, id="t_65"),
        pytest.param(8, 225, 265, id="t_500"),
        pytest.param(9, 245, 295, id="t_850"),
        pytest.param(10, -30, 30, id="u_65"),
        pytest.param(11, -50, 50, id="u_850"),
        pytest.param(12, -30, 30, id="v_65"),
        pytest.param(13, -50, 50, id="v_850"),
        pytest.param(14, 0, 60, id="wvint_0"),
        pytest.param(15, 0, 0, id="dropped"),
        pytest.param(16, -3000, 4000, id="z_1000"),
        pytest.param(17, 4.7e4, 5.9e4, id="z_500"),
    ],
)
def test_values_are_plausible(index: int, low: float, high: float) -> None:
    values = np.stack([np.load(path)[..., index] for path in STATES])
    assert low <= values.min() <= values.max() <= high


def test_flux_has_days_and_nights() -> None:
    for path in FLUXES:
        flux = np.load(path)
        assert flux.min() == 0
        assert 800 < flux.max() < 1361


def test_members_differ_and_nights_are_dark() -> None:
    first, second = (np.load(STORE / f"samples/train/nwp_2022040100_mbr00{m}.npy") for m in (0, 1))
    flux = np.load(STORE / "samples/train/nwp_toa_downwelling_shortwave_flux_2022040100.npy")
    assert not np.any(np.isclose(first[..., 9], second[..., 9], rtol=0, atol=1e-4).all(axis=(1, 2)))
    for member in (first, second):
        np.testing.assert_array_equal(member[..., 3] == 0, flux == 0)


def test_description_names_what_is_kept() -> None:
    dataset = yaml.safe_load((STORE / "data_config.yaml").read_text(encoding="utf-8"))["dataset"]
    assert dataset["name"] == "meps_example"
    assert dataset["remove_state_features_with_index"] == [15]
    assert " ".join(dataset["var_names"]) == (
        "pres_0g pres_0s nlwrs_0 nswrs_0 r_2 r_65 t_2 t_65 t_500 t_850 u_65 u_850 v_65 v_850 "
        "wvint_0 z_1000 z_500"
    )
    assert len(dataset["var_units"]) == len(dataset["var_longnames"]) == 17


def test_border_mask_is_the_outermost_ring() -> None:
    mask = np.load(STORE / "static/border_mask.npy")
    assert not mask[1:-1, 1:-1].any()
    assert mask.sum() == 10 * 9 - 8 * 7
