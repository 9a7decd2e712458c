"""The MEPS layout: which files are read as what, in which order, and what is refused."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from neural_prep.data import layouts, meps
from neural_prep.data.source import StoreOptions, Variable
from neural_prep.errors import InputError

FLUX = "nwp_toa_downwelling_shortwave_flux_{}.npy"
GRID = (3, 4)
BORDER = np.ones(GRID, bool)
BORDER[1:-1, 1:-1] = False
# An analysis, its members, and how many steps its forecasts have.
ANALYSES = {"2022010100": (2, 4), "2022010112": (1, 3), "2022020100": (1, 5)}


def field(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(280, 10, shape).astype(dtype)


def sample(steps=3, *, grid=GRID, features=2, seed=0, dtype="float32"):
    return field(steps, *grid, features, seed=seed, dtype=dtype)


def save(root, arrays):
    for name, array in arrays.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    return root


@pytest.fixture
def arrays():
    """A whole store: `{path below its root: array}`."""
    seeds = iter(range(1000))
    made = {}
    for analysis, (members, steps) in ANALYSES.items():
        for member in range(members):
            name = f"samples/train/nwp_{analysis}_mbr{member:03d}.npy"
            made[name] = sample(steps, seed=next(seeds))
        made[f"samples/train/{FLUX.format(analysis)}"] = field(steps, *GRID, seed=next(seeds))
        made[f"samples/train/wtr_{analysis}.npy"] = field(*GRID, seed=next(seeds))
    made["samples/val/nwp_2022030100_mbr000.npy"] = sample(2, seed=next(seeds))
    made["static/nwp_xy.npy"] = field(2, *GRID, seed=next(seeds))
    made["static/surface_geopotential.npy"] = field(*GRID, seed=next(seeds))
    made["static/border_mask.npy"] = BORDER
    return made


@pytest.fixture
def store(tmp_path, arrays):
    return save(tmp_path, arrays)


def open_store(root, split="train", **how):
    return meps.open_source(StoreOptions(str(root), split=split, **how))


def message_of(root, split="train", **how):
    """The one line that is said of a store that cannot be used; by way of the layouts' door."""
    with pytest.raises(InputError) as caught:
        layouts.open_source("meps", StoreOptions(str(root), split=split, **how))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def values_of(source, walk, **how):
    """`{(group, variable): [values of each step ...]}` in the order in which they are counted."""
    found = {}
    for series in source.series:
        group = next(group for group in source.groups if group.name == series.group)
        for (_, column), (values,) in sorted(walk(series, **how)[0].items()):
            found.setdefault((group.name, group.variables[column].name), []).append(values)
    return found


def file_names(source):
    return [Path(name).name for name, *_ in source.extent["files"]]


# What is read


def test_groups(store):
    source = open_store(store)
    assert [(g.name, g.steps, g.trajectories) for g in source.groups] == [
        ("state", 4 + 4 + 3 + 5, 4),
        ("flux", 4 + 3 + 5, 3),
        ("static", 1, 1),
    ]
    state, flux, static = (group.variables for group in source.groups)
    assert state == (Variable("feature_0"), Variable("feature_1"))
    assert flux == (Variable("toa_downwelling_shortwave_flux", "W/m**2"),)
    assert [variable.name for variable in static] == [
        "wtr",
        "nwp_x",
        "nwp_y",
        "surface_geopotential",
        "border_mask",
    ]
    assert (source.path, source.layout, source.warnings) == (str(store), "meps", ())


@pytest.mark.parametrize("how", [{}, {"piece_steps": 1}, {"piece_steps": 3, "lag": 2}], ids=str)
@pytest.mark.parametrize("block_bytes", [1, 500, 10**9])
def test_every_value_is_read_once(store, arrays, walk, block_bytes, how):
    found = values_of(open_store(store, block_bytes=block_bytes), walk, **how)

    def stacked(part):
        chosen = [arrays[name] for name in sorted(arrays) if part in name]
        return np.concatenate([each.reshape(-1, *each.shape[each.ndim - 2 :]) for each in chosen])

    samples = np.concatenate([arrays[n] for n in sorted(arrays) if "train" in n and "mbr" in n])
    expected = {
        ("state", "feature_0"): samples[..., 0],
        ("state", "feature_1"): samples[..., 1],
        # Once for each analysis, though two members share the first.
        ("flux", "toa_downwelling_shortwave_flux"): stacked("shortwave_flux"),
        ("static", "wtr"): stacked("wtr"),
        ("static", "nwp_x"): arrays["static/nwp_xy.npy"][:1],
        ("static", "nwp_y"): arrays["static/nwp_xy.npy"][1:],
        ("static", "surface_geopotential"): stacked("surface_geopotential"),
        ("static", "border_mask"): stacked("border_mask"),
    }
    assert found.keys() == expected.keys()
    for key, fields in expected.items():
        np.testing.assert_array_equal(np.stack(found[key]), fields.reshape(len(fields), -1))


def test_a_store_of_samples_alone(store, walk):
    source = open_store(store, "val")
    assert [group.name for group in source.groups] == ["state", "static"]
    source = open_store(save(store / "other", {"samples/x/nwp_2022010100_mbr0.npy": sample()}), "x")
    assert [group.name for group in source.groups] == ["state"]
    assert len(values_of(source, walk)["state", "feature_1"]) == 3


def test_order_is_by_name(tmp_path, monkeypatch):
    names = [
        "nwp_2022010112_mbr000.npy",
        "nwp_2022010100_mbr10.npy",
        "nwp_2021123118_mbr001.npy",
        "nwp_2022010100_mbr2.npy",
        "nwp_2022010100_mbr000.npy",
    ]
    save(tmp_path, {f"samples/train/{name}": sample(1) for name in names})
    listed = Path.iterdir
    for reverse in (False, True):  # in whatever order the folder gives them
        monkeypatch.setattr(
            Path, "iterdir", lambda path, r=reverse: iter(sorted(listed(path), reverse=r))
        )
        assert file_names(open_store(tmp_path)) == [
            "nwp_2021123118_mbr001.npy",
            "nwp_2022010100_mbr000.npy",
            "nwp_2022010100_mbr10.npy",
            "nwp_2022010100_mbr2.npy",
            "nwp_2022010112_mbr000.npy",
        ]


def test_nothing_else_is_read(store, arrays):
    before = open_store(store)
    others = {
        "static/nwp_lat_lon.npy": field(2, 5, 5),
        "static/grid_features.npy": field(7),
        "static/diff_mean.npy": field(2),
        "samples/nwp_2022010106_mbr000.npy": sample(9),
        "samples/train/old/nwp_2022010106_mbr000.npy": sample(9),
        "samples/train/.nwp_2022010106_mbr000.npy": sample(9),
        "nwp_2022010106_mbr000.npy": sample(9),
    }
    save(store, others)
    (store / "static/parameter_mean.pt").write_bytes(b"")
    (store / "samples/train/README.txt").write_text("nwp_2022010106_mbr000.npy")
    (store / "samples/train/._nwp_2022010100_mbr000.npy").write_bytes(b"\x00\x05\x16\x07")
    assert open_store(store).groups == before.groups
    assert open_store(store).identity == before.identity
    assert open_store(store).warnings == ()


def test_other_npy_files_of_the_split_are_told(store):
    strangers = ["nwp_2022010100_mbr001_old.npy", "nwp_20220101_mbr000.npy", "wtr.npy"]
    save(store, {f"samples/train/{name}": field(1) for name in strangers})
    assert open_store(store).warnings == (
        f"{store}/samples/train: 3 .npy files are neither samples nor flux nor water and were "
        "left out, the first nwp_2022010100_mbr001_old.npy",
    )


def test_flux_and_samples_that_do_not_match_are_told(store):
    (store / "samples/train" / FLUX.format("2022010112")).unlink()
    save(store, {f"samples/train/{FLUX.format('2022050100')}": field(2, *GRID)})
    source = open_store(store)
    assert source.warnings == (
        f"{store}/samples/train: 1 of 3 analyses have no flux file, the first 2022010112",
        f"{store}/samples/train: 1 of 3 flux files are of an analysis without samples, the first "
        "2022050100; they are counted all the same",
    )
    assert (source.groups[1].steps, source.groups[1].trajectories) == (4 + 5 + 2, 3)


def test_links_are_followed(store, tmp_path_factory):
    other = tmp_path_factory.mktemp("links")
    (other / "static").symlink_to(store / "static")
    (other / "samples/train").mkdir(parents=True)
    for path in (store / "samples/train").iterdir():
        (other / "samples/train" / path.name).symlink_to(path)
    assert open_store(other).identity == open_store(store).identity


def test_types_of_groups_may_differ(tmp_path, walk):
    stored = {
        "samples/train/nwp_2022010100_mbr000.npy": sample(dtype=">f8"),
        f"samples/train/{FLUX.format('2022010100')}": field(3, *GRID, dtype="int16"),
        "samples/train/wtr_2022010100.npy": field(*GRID, dtype="float16"),
    }
    found = values_of(open_store(save(tmp_path, stored)), walk)
    for (_, values), array in zip(list(found.items())[1:], stored.values(), strict=True):
        expected = array[..., 1] if array.ndim == 4 else array
        np.testing.assert_array_equal(np.ravel(values), expected.ravel())


# Names


def test_names_and_dropped_features(store):
    (store / "data_config.yaml").write_text(
        "dataset:\n  var_names: [t_2]\n  var_units: [K]\n  remove_state_features_with_index: [0]\n"
    )
    source = open_store(store)
    assert source.groups[0].variables == (Variable("t_2", "K"),)
    assert source.series[0].columns == (-1, 0)
    source = open_store(store, variables=("a", "b"), drop=())
    assert source.groups[0].variables == (Variable("a"), Variable("b"))
    assert source.series[0].columns == (0, 1)


def test_static_variables_have_columns_of_their_own(store):
    source = open_store(store)
    columns = [series.columns for series in source.series if series.group == "static"]
    assert columns == [(0,), (1, 2), (3,), (4,)]
    for path in (store / "samples/train").glob("wtr*"):
        path.unlink()
    (store / "static/nwp_xy.npy").unlink()
    source = open_store(store)
    assert [series.columns for series in source.series[2:]] == [(0,), (1,)]
    assert [each.name for each in source.groups[2].variables] == [
        "surface_geopotential",
        "border_mask",
    ]


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ({"variables": ("a", "b", "c")}, "gives 3 names, but the samples have 2 features"),
        ({"variables": ("a",)}, "gives 1 names, but the samples have 2 features"),
        ({"drop": (2,)}, "data.drop: feature 2 is to be dropped"),
        ({"drop": (0, 1)}, "all 2 features are dropped"),
        ({"variables": ("a", "a")}, "names 'a' more than once"),
    ],
    ids=str,
)
def test_names_that_do_not_fit(store, how, part):
    assert part in message_of(store, **how)


# Analysis times


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(None, None, [0, 0, 1, 2], id="all"),
        pytest.param("2022-01-01T12", None, [1, 2], id="start is inclusive"),
        pytest.param("2022-01-01T12:01", None, [2], id="just after"),
        pytest.param(None, "2022-01-01T00:00", [0, 0], id="end is inclusive"),
        pytest.param(None, "2022-01-01", [0, 0, 1], id="the end's whole day"),
        pytest.param("2022-01-01", "2022-01", [0, 0, 1], id="the end's whole month"),
        pytest.param("2022-02", "2022", [2], id="from a month's first moment"),
        pytest.param("2022-01-01T12", "2022-01-01T12", [1], id="one"),
    ],
)
def test_start_and_end_are_of_the_analysis(store, start, end, expected):
    analyses = [list(ANALYSES)[index] for index in expected]
    names = file_names(open_store(store, start=start, end=end))
    assert [name[4:14] for name in names if "mbr" in name] == analyses
    unique = sorted(set(analyses))
    assert [name[-14:-4] for name in names if "flux" in name] == unique
    assert [name[4:14] for name in names if "wtr" in name] == unique


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ({"start": "2023"}, "from 2023 to its last"),
        ({"end": "2021-12-31"}, "from its first to 2021-12-31"),
        ({"start": "2022-01-02", "end": "2022-01-01"}, "from 2022-01-02 to 2022-01-01"),
    ],
    ids=str,
)
def test_no_analysis_in_between(store, how, ending):
    assert message_of(store, **how) == (
        f"{store}/samples/train has no samples {ending}, but 4 of the analyses 2022010100 to "
        "2022020100; correct data.start or data.end"
    )


def test_bounds_and_names_that_are_no_dates(store):
    assert "data.end: 'soon' is no date" in message_of(store, end="soon")
    save(store, {"samples/train/nwp_2022133100_mbr000.npy": sample()})
    assert open_store(store).groups[0].trajectories == 5
    assert message_of(store, start="2022") == (
        f"{store}/samples/train/nwp_2022133100_mbr000.npy is of analysis 2022133100, no date and "
        "hour (YYYYMMDDHH) that data.start and data.end could be compared with; rename it"
    )


# Region


@pytest.mark.parametrize("dtype", ["bool", "float32", ">f8", "uint8"])
def test_interior_leaves_out_the_border_of_every_group(store, arrays, walk, dtype):
    save(store, {"static/border_mask.npy": BORDER.astype(dtype)})
    whole = values_of(open_store(store), walk)
    inside = values_of(open_store(store, region="interior"), walk, piece_steps=2)
    assert inside.keys() == whole.keys()
    for key, steps in whole.items():
        expected = [step[~BORDER.ravel()] for step in steps]
        np.testing.assert_array_equal(np.stack(inside[key]), np.stack(expected))


def test_a_mask_of_no_border_keeps_all(store, walk):
    save(store, {"static/border_mask.npy": np.zeros(GRID, bool)})
    source = open_store(store, region="interior")
    assert all(series.kept is None for series in source.series)
    assert {len(values[0]) for values in values_of(source, walk).values()} == {12}


@pytest.mark.parametrize(
    ("mask", "parts"),
    [
        pytest.param(None, ["interior needs ", "which is not there; write it or use all"], id="no"),
        pytest.param(
            np.zeros((4, 4), bool),
            ["border_mask.npy has shape (4, 4), but ", "mbr000.npy (4, 3, 4, 2); the grids (y, x)"],
            id="another grid",
        ),
        pytest.param(np.zeros((1, 3, 4)), ["has shape (1, 3, 4); expected (y, x), each"], id="3-d"),
        pytest.param(
            np.ones(GRID), ["is True everywhere, so nothing is interior"], id="all border"
        ),
        pytest.param(
            np.where(BORDER, np.nan, 0), ["holds nan; expected 1 (or True) on the border"], id="NaN"
        ),
        pytest.param(BORDER * 0.5, ["holds 0.5; expected 1 (or True)"], id="neither"),
    ],
)
def test_a_mask_that_cannot_be_used(store, mask, parts):
    path = store / "static/border_mask.npy"
    path.unlink() if mask is None else np.save(path, mask)
    message = message_of(store, region="interior")
    assert str(path) in message
    for part in parts:
        assert part in message


# What is refused


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (None, "data.split is not set; {0} has the splits train, val: choose one"),
        ("test", "data.split: 'test' is no split of {0}; it has train, val: choose one"),
        ("", "data.split: '' is no split of {0}; it has train, val: choose one"),
        ("../static", "data.split: '../static' is no split of {0}; it has train, val: choose one"),
    ],
)
def test_a_split_that_is_not_there(store, split, message):
    (store / "samples/.ipynb_checkpoints").mkdir()
    (store / "samples/notes.txt").write_text("")
    assert message_of(store, split) == message.format(store)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], "no .npy files"),
        (["a.nc"], "no .npy files"),
        (["b.npy", "a.npy"], "2 other .npy files, the first a.npy"),
        (["wtr_2022010100.npy"], "no .npy files"),
    ],
    ids=str,
)
def test_an_empty_split(tmp_path, names, found):
    folder = tmp_path / "samples/train"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"")
    assert message_of(tmp_path) == (
        f"{folder} has no samples ({found}); expected files nwp_<YYYYMMDDHH>_mbr<MMM>.npy"
    )


def test_a_store_without_splits(tmp_path):
    assert message_of(tmp_path) == (
        f"data.path: {tmp_path} has no folder samples; expected the MEPS layout, "
        "samples/<split>/nwp_<YYYYMMDDHH>_mbr<MMM>.npy"
    )
    save(tmp_path, {"samples/nwp_2022010100_mbr000.npy": sample()})
    assert message_of(tmp_path) == (
        f"data.path: {tmp_path}/samples has no folders; expected one for each split, such as train"
    )


def test_a_step_is_refused(store):
    assert message_of(store, step="1h") == (
        "data.step: '1h' was given, but a MEPS sample is one trajectory whose steps have no times; "
        "leave data.step out"
    )


@pytest.mark.parametrize(
    ("name", "array", "parts"),
    [
        pytest.param(
            "samples/train/nwp_2022010112_mbr000.npy",
            sample(grid=(5, 4)),
            ["mbr000.npy has shape (4, 3, 4, 2) (float32), but ", "(3, 5, 4, 2) (float32); files"],
            id="sample on another grid",
        ),
        pytest.param(
            "samples/train/nwp_2022010112_mbr000.npy",
            sample(features=3),
            ["(4, 3, 4, 2)", "(3, 3, 4, 3)", "must agree in all but the number of steps: write"],
            id="sample of more features",
        ),
        pytest.param(
            "samples/train/nwp_2022010112_mbr000.npy",
            sample(dtype="float64"),
            ["(float32), but ", "(float64); files of one split must agree"],
            id="sample of another type",
        ),
        pytest.param(
            "samples/train/nwp_2022010112_mbr000.npy",
            sample(dtype=">f4"),
            ["(float32), but ", "(>f4); files of one split must agree"],
            id="sample of another byte order",
        ),
        pytest.param(
            "samples/train/nwp_2022010112_mbr000.npy",
            sample()[0],
            ["has shape (3, 4, 2); expected (time, y, x, feature), each at least 1"],
            id="sample without time",
        ),
        pytest.param(
            f"samples/train/{FLUX.format('2022010100')}",
            field(4, 4, 3),
            ["has shape (4, 4, 3), but ", "mbr000.npy (4, 3, 4, 2); the grids (y, x) must agree"],
            id="first flux on another grid",
        ),
        pytest.param(
            f"samples/train/{FLUX.format('2022010112')}",
            field(4, 4, 3),
            ["has shape (4, 4, 3), but ", "mbr000.npy (4, 3, 4, 2); the grids (y, x) must agree"],
            id="other flux on another grid",
        ),
        pytest.param(
            f"samples/train/{FLUX.format('2022010112')}",
            field(4, *GRID, dtype="int16"),
            ["2022010100.npy has shape (4, 3, 4) (float32), but ", "2022010112.npy (4, 3, 4) (int"],
            id="flux of another type",
        ),
        pytest.param(
            f"samples/train/{FLUX.format('2022010112')}",
            field(*GRID),
            ["has shape (3, 4); expected (time, y, x)"],
            id="flux without time",
        ),
        pytest.param(
            "samples/train/wtr_2022010112.npy",
            field(4, 4),
            ["wtr_2022010112.npy has shape (4, 4), but ", "mbr000.npy (4, 3, 4, 2); the grids"],
            id="water on another grid",
        ),
        pytest.param(
            "static/surface_geopotential.npy",
            field(4, 3),
            ["has shape (4, 3), but ", "(4, 3, 4, 2); the grids (y, x) must agree"],
            id="static field on another grid",
        ),
        pytest.param(
            "static/nwp_xy.npy",
            field(3, *GRID),
            ["has shape (3, 3, 4); expected 2 fields (nwp_x, nwp_y): write it again"],
            id="three coordinates",
        ),
        pytest.param(
            "static/nwp_xy.npy", field(*GRID), ["expected (coordinate, y, x)"], id="one coordinate"
        ),
    ],
)
def test_files_that_do_not_agree_are_named(store, name, array, parts):
    save(store, {name: array})
    message = message_of(store)
    assert str(store / name) in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "name",
    [
        "samples/train/nwp_2022020100_mbr000.npy",
        f"samples/train/{FLUX.format('2022020100')}",
        "samples/train/wtr_2022020100.npy",
        "static/border_mask.npy",
    ],
)
@pytest.mark.parametrize(
    ("damage", "part"),
    [
        pytest.param(lambda path: os.truncate(path, path.stat().st_size - 1), "cut off", id="cut"),
        pytest.param(lambda path: path.write_bytes(b""), "of 0 bytes is no whole", id="empty"),
        pytest.param(
            lambda path: (path.unlink(), path.symlink_to("gone")), "No such file", id="dead link"
        ),
    ],
)
def test_every_file_is_checked_when_the_store_is_opened(store, name, damage, part):
    damage(store / name)
    message = message_of(store)
    assert message.startswith(str(store / name))
    assert part in message


def test_a_member_that_is_there_twice(store):
    save(store, {"samples/train/nwp_2022010100_mbr1.npy": sample()})
    assert message_of(store) == (
        f"{store}/samples/train/nwp_2022010100_mbr001.npy and nwp_2022010100_mbr1.npy are both "
        "member 1 of analysis 2022010100; remove or rename one"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
@pytest.mark.parametrize("name", ["samples", "samples/train", "static"])
def test_unreadable_folder_is_named(store, name):
    folder = store / name
    folder.chmod(0)
    try:
        message = message_of(store)
    finally:
        folder.chmod(0o755)
    assert "Permission denied" in message
    assert str(folder) in message


def test_a_folder_that_cannot_be_read_is_no_empty_one(store, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    message = message_of(store)
    assert message.startswith(f"data.path: {store} cannot be read")
    assert "Permission denied" in message


# Identity and auto


def test_identity_follows_what_is_read(store):
    def text(**how):
        return json.dumps(open_store(store, **how).identity, sort_keys=True)

    opened = [
        text(),
        text(split="val"),
        text(start="2022-01-02"),
        text(region="interior"),
        text(drop=(0,)),
        text(variables=("a", "b")),
    ]
    assert len(set(opened)) == len(opened)
    assert text() == opened[0]
    border = BORDER.copy()
    border[1, 1] = True
    save(store, {"static/border_mask.npy": border})
    assert text() == opened[0]
    assert text(region="interior") != opened[3]


def test_auto_recognises_the_layout(store):
    source = layouts.open_source("auto", StoreOptions(str(store), split="val"))
    assert source.layout == "meps"
    assert not meps.recognises(store / "static")
