"""Writes the example data set: synthetic forecasts in the MEPS layout, a few megabytes.

A few plane waves travel across the domain. Geopotential, temperature and moisture follow them,
winds are their geostrophic winds, and the sun adds a day. Members of one analysis are the same
waves, slightly out of tune. Offsets, ranges and units are those of real fields; the weather is
invented.

    python tests/data/make_meps_example.py [FOLDER]

Legend: W waves, T hourly steps, Y and X the grid.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float64]

SEED = 20220401
STEPS, ROWS, COLUMNS = 65, 10, 9
SPACING = 250e3  # m
CENTRE_LAT, CENTRE_LON = np.deg2rad([63.3, 15.0])
EARTH_RADIUS = 6.371e6  # m
CORIOLIS = 1.3e-4  # 1/s
GRAVITY = 9.81  # m/s2
GAS_CONSTANT = 287.0  # J/(kg K), of dry air
SOLAR_CONSTANT = 1361.0  # W/m2

# Split -> analysis -> how many members it has.
ANALYSES = {
    "train": {"2022040100": 2, "2022040712": 2, "2022041500": 2, "2022042312": 1},
    "val": {"2022060500": 1},
    "test": {"2022090112": 1},
}

# Name, unit and long name, in the order on disk. Users drop the one at DROPPED.
FEATURES = [
    ("pres_0g", "Pa", "pres_heightAboveGround_0_instant"),
    ("pres_0s", "Pa", "pres_heightAboveSea_0_instant"),
    ("nlwrs_0", "W/m**2", "nlwrs_heightAboveGround_0_accum"),
    ("nswrs_0", "W/m**2", "nswrs_heightAboveGround_0_accum"),
    ("r_2", "", "r_heightAboveGround_2_instant"),
    ("r_65", "", "r_hybrid_65_instant"),
    ("t_2", "K", "t_heightAboveGround_2_instant"),
    ("t_65", "K", "t_hybrid_65_instant"),
    ("t_500", "K", "t_isobaricInhPa_500_instant"),
    ("t_850", "K", "t_isobaricInhPa_850_instant"),
    ("u_65", "m/s", "u_hybrid_65_instant"),
    ("u_850", "m/s", "u_isobaricInhPa_850_instant"),
    ("v_65", "m/s", "v_hybrid_65_instant"),
    ("v_850", "m/s", "v_isobaricInhPa_850_instant"),
    ("wvint_0", "kg/m**2", "wvint_entireAtmosphere_0_instant"),
    ("z_0", "m**2/s**2", "z_heightAboveGround_0_instant"),
    ("z_1000", "m**2/s**2", "z_isobaricInhPa_1000_instant"),
    ("z_500", "m**2/s**2", "z_isobaricInhPa_500_instant"),
]
DROPPED = 15

CONFIG = """\
# The store's description in neural-lam's form.
# The data are synthetic: tests/data/make_meps_example.py writes them.
dataset:
  name: meps_example
  num_forcing_features: 16
  var_names:
{names}
  var_units:
{units}
  var_longnames:
{longnames}
  num_timesteps: {steps}
  num_ensemble_members: 1  # that every analysis has; three of them have two
  step_length: 1
  remove_state_features_with_index: [{dropped}]
grid_shape_state: [{rows}, {columns}]
projection:
  class_name: LambertConformal
  kwargs:
    central_longitude: 15.0
    central_latitude: 63.3
    standard_parallels: [63.3, 63.3]
"""


@dataclass(frozen=True, slots=True)
class Land:
    """What does not change with time, `(Y, X)` each: coordinates in m and radians, surface."""

    x: Field
    y: Field
    lat: Field
    lon: Field
    sea: Field
    lake: Field
    geopotential: Field

    @property
    def dry(self) -> Field:
        """Fraction of each point that is land."""
        return 1 - np.maximum(self.sea, self.lake)


@dataclass(frozen=True, slots=True)
class Waves:
    """Plane waves with variance 1 in sum; `(W,)` each, in rad/m, rad/s, rad and 1."""

    east: Field
    north: Field
    frequency: Field
    phase: Field
    amplitude: Field

    def angles(self, seconds: Field, land: Land, shift: float) -> Field:
        """Phase of every wave at every step and point, `shift` radians ahead."""
        place = np.multiply.outer(self.east, land.x) + np.multiply.outer(self.north, land.y)
        time = np.multiply.outer(self.frequency, seconds)  # (W, T)
        start = (self.phase + shift)[:, None, None, None]
        return place[:, None] - time[:, :, None, None] + start  # (W, T, Y, X)

    def value(self, seconds: Field, land: Land, shift: float = 0.0) -> Field:
        """The waves' sum, `(T, Y, X)`."""
        return np.tensordot(self.amplitude, np.cos(self.angles(seconds, land, shift)), axes=1)

    def slopes(self, seconds: Field, land: Land, shift: float = 0.0) -> tuple[Field, Field]:
        """Derivatives of `value` to the east and to the north, `(T, Y, X)` each, in 1/m."""
        sines = -np.sin(self.angles(seconds, land, shift))
        east = np.tensordot(self.amplitude * self.east, sines, axes=1)
        return east, np.tensordot(self.amplitude * self.north, sines, axes=1)


def logistic(x: Field) -> Field:
    """A smooth step from 0 to 1."""
    return 1 / (1 + np.exp(-x))


def make_land() -> Land:
    """A sea in the west, mountains along its coast and a gulf behind them."""
    x, y = np.meshgrid(
        SPACING * (np.arange(COLUMNS) - (COLUMNS - 1) / 2),
        SPACING * (np.arange(ROWS) - (ROWS - 1) / 2),
    )
    lat, lon = to_lat_lon(x, y)
    inland = (x - 0.45 * y) / 1e3 + 350  # km from the coast
    sea, lake = logistic(-inland / 80), 0.9 * np.exp(-(((inland - 700) / 130) ** 2))
    height = 150 + 650 * np.exp(-(((inland - 200) / 250) ** 2))  # m
    geopotential = GRAVITY * height * (1 - np.maximum(sea, lake))
    return Land(x, y, lat, lon, sea, lake, geopotential)


def to_lat_lon(x: Field, y: Field) -> tuple[Field, Field]:
    """Latitude and longitude in radians: the inverse Lambert conformal projection of a sphere.

    J. P. Snyder, Map Projections: A Working Manual, 1987, chapter 15.
    """
    cone = np.sin(CENTRE_LAT)
    south = EARTH_RADIUS / np.tan(CENTRE_LAT)
    radius = np.hypot(x, south - y)
    lon = CENTRE_LON + np.arctan2(x, south - y) / cone
    stretch = np.tan(np.pi / 4 + CENTRE_LAT / 2) * (south / radius) ** (1 / cone)
    return 2 * np.arctan(stretch) - np.pi / 2, lon


def make_waves(random: np.random.RandomState, count: int = 4) -> Waves:
    """Waves of 2000 to 4500 km that travel east at 6 to 16 m/s."""
    east = 2 * np.pi / random.uniform(2.0e6, 4.5e6, count)
    north = 2 * np.pi / random.uniform(3.0e6, 8.0e6, count) * random.choice([-1.0, 1.0], count)
    amplitude = random.uniform(0.6, 1.0, count)
    amplitude *= np.sqrt(2 / np.sum(amplitude**2))
    frequency = east * random.uniform(6.0, 16.0, count)
    return Waves(east, north, frequency, random.uniform(0, 2 * np.pi, count), amplitude)


def detune(waves: Waves, random: np.random.RandomState) -> Waves:
    """One member's version of its analysis' waves, which drifts away from the others with time."""
    count = waves.phase.size
    return replace(
        waves,
        phase=waves.phase + random.uniform(-0.1, 0.1, count),
        frequency=waves.frequency * random.uniform(0.9, 1.1, count),
        amplitude=waves.amplitude * random.uniform(0.95, 1.05, count),
    )


def day_of_year(analysis: str) -> tuple[int, int]:
    """Day of the year (1: first of January) and hour (UTC) of an analysis."""
    time = datetime.strptime(analysis, "%Y%m%d%H").replace(tzinfo=UTC)
    return time.timetuple().tm_yday, time.hour


def season(analysis: str) -> float:
    """How much warmer than the year's mean it is at 850 hPa, in K."""
    return float(-9 * np.cos(2 * np.pi * (day_of_year(analysis)[0] - 25) / 365))


def solar_flux(analysis: str, land: Land, delay: float = 0.0) -> Field:
    """Short-wave flux at the atmosphere's top `delay` hours ago, `(T, Y, X)` in W/m2."""
    day, hour = day_of_year(analysis)
    hours = hour + np.arange(STEPS) - delay
    declination = -np.deg2rad(23.44) * np.cos(2 * np.pi * (day + hours / 24 + 10) / 365)
    angle = np.deg2rad(15 * (hours - 12))[:, None, None] + land.lon  # (T, Y, X)
    declination = declination[:, None, None]
    height = np.sin(land.lat) * np.sin(declination)
    height = height + np.cos(land.lat) * np.cos(declination) * np.cos(angle)
    flux: Field = SOLAR_CONSTANT * np.maximum(height, 0)
    return flux


def open_water(analysis: str, land: Land) -> Field:
    """Fraction of open water, `(Y, X)`: the gulf's north freezes in the cold half of the year."""
    ice = np.clip(-season(analysis) / 5, 0, 1) * logistic(land.y / 3e5)
    water: Field = np.maximum(land.sea, land.lake * (1 - ice))
    return water


def make_state(analysis: str, member: int, land: Land) -> dict[str, Field]:
    """All features of one member's forecast, `(T, Y, X)` each, in the units of FEATURES."""
    # RandomState's numbers never change between NumPy releases; those of default_rng may.
    shared = np.random.RandomState([SEED, int(analysis)])
    own = np.random.RandomState([SEED, int(analysis), member])
    flow, moisture = (detune(make_waves(shared), own) for _ in range(2))
    seconds = 3600 * np.arange(STEPS, dtype=np.float64)
    state = make_upper_air(flow, seconds, land, season(analysis))
    moist = moisture.value(seconds, land)
    state |= make_surface(state, moist, solar_flux(analysis, land), land)
    warmth = solar_flux(analysis, land, delay=3) / SOLAR_CONSTANT - 0.2
    state |= make_warmth(state, warmth * land.dry, moist, land)
    state["pres_0s"] = 1e5 + 1.25 * state["z_1000"]  # density of air near the ground, kg/m3
    state["pres_0g"] = state["pres_0s"] * np.exp(-land.geopotential / GAS_CONSTANT / state["t_2"])
    state["z_0"] = np.zeros_like(moist)
    return state


def make_upper_air(flow: Waves, seconds: Field, land: Land, warm: float) -> dict[str, Field]:
    """Geopotential, its geostrophic wind and temperature; lower levels lead the upper ones."""
    low = 0.7  # rad
    east, north = flow.slopes(seconds, land, low)
    u, v = 5 - 600 / CORIOLIS * north, 600 / CORIOLIS * east
    turn = np.deg2rad(20)  # friction turns the wind near the ground towards low pressure
    return {
        "z_500": 53600 + 80 * warm - CORIOLIS * 12 * land.y + 900 * flow.value(seconds, land),
        "z_1000": 900 - CORIOLIS * 5 * land.y + 600 * flow.value(seconds, land, low),
        "t_500": 249 + 0.6 * warm - 4e-6 * land.y + 2.5 * flow.value(seconds, land, -0.2),
        "t_850": 271 + warm - 5e-6 * land.y + 4.0 * flow.value(seconds, land, -0.5),
        "u_850": u,
        "v_850": v,
        "u_65": 0.55 * (np.cos(turn) * u - np.sin(turn) * v),
        "v_65": 0.55 * (np.sin(turn) * u + np.cos(turn) * v),
    }


def make_surface(
    state: dict[str, Field], moist: Field, flux: Field, land: Land
) -> dict[str, Field]:
    """Net radiation at the ground and the water vapour above it; clouds follow the moisture."""
    cloud = logistic(1.5 * moist)
    absorbed = 0.92 - 0.12 * land.dry
    return {
        "nswrs_0": flux * (0.75 - 0.5 * cloud) * absorbed,
        "nlwrs_0": -20 - 75 * (1 - cloud) - 0.3 * (state["t_850"] - 271),
        "wvint_0": 14 * np.exp(0.065 * (state["t_850"] - 271)) * (0.5 + cloud),
    }


def make_warmth(
    state: dict[str, Field], warmth: Field, moist: Field, land: Land
) -> dict[str, Field]:
    """Temperature and relative humidity near the ground, with a day that only land feels."""
    base = state["t_850"] + 7 - 0.0065 / GRAVITY * land.geopotential
    return {
        "t_2": base + 12 * warmth,
        "t_65": base - 0.3 + 9 * warmth,
        "r_2": logistic(1.3 + 0.8 * moist - 2.5 * warmth),
        "r_65": logistic(1.2 + 0.8 * moist - 2.0 * warmth),
    }


def make_config() -> str:
    """Text of `data_config.yaml`: what is on disk, without the dropped feature."""
    kept = [feature for index, feature in enumerate(FEATURES) if index != DROPPED]
    names, units, longnames = (
        "\n".join("    - " + (text or "''") for text in column)
        for column in zip(*kept, strict=True)
    )
    return CONFIG.format(
        names=names,
        units=units,
        longnames=longnames,
        steps=STEPS,
        dropped=DROPPED,
        rows=ROWS,
        columns=COLUMNS,
    )


def make_arrays() -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Every file of the store but its description: path below the store's root, and array."""
    land = make_land()
    border = np.ones((ROWS, COLUMNS), dtype=bool)
    border[1:-1, 1:-1] = False
    yield "static/border_mask.npy", border
    yield "static/nwp_xy.npy", np.stack([land.x, land.y]).astype("<f4")
    yield "static/surface_geopotential.npy", land.geopotential.astype("<f4")
    for split, analyses in ANALYSES.items():
        for analysis, members in analyses.items():
            flux = solar_flux(analysis, land).astype("<f4")
            yield f"samples/{split}/nwp_toa_downwelling_shortwave_flux_{analysis}.npy", flux
            yield f"samples/{split}/wtr_{analysis}.npy", open_water(analysis, land).astype("<f4")
            for member in range(members):
                state = make_state(analysis, member, land)
                sample = np.stack([state[name] for name, _, _ in FEATURES], axis=-1)
                yield f"samples/{split}/nwp_{analysis}_mbr{member:03d}.npy", sample.astype("<f4")


def main(folder: Path) -> None:
    """Writes the store into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data_config.yaml").write_text(make_config(), encoding="utf-8")
    for name, array in make_arrays():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"wrote {len(files)} files of {size / 1e6:.2f} MB in all to {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("meps_example"))
