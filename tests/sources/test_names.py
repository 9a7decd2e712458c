"""Names, units and dropped features: where they come from, how they fit, what is refused."""

import os

import pytest

from neural_prep.data.names import FeatureNames, find_names
from neural_prep.data.source import StoreOptions
from neural_prep.errors import InputError

CONFIG = """\
dataset:
  var_names: [t_2, u_65, v_65]
  var_units: [K, m/s, m/s]
  remove_state_features_with_index: [1]
"""


def columns(root, features, *, variables=None, drop=None):
    """Names, units and columns of a store."""
    found = find_names(root, StoreOptions(str(root), variables=variables, drop=drop))
    chosen, positions = found.columns(features)
    return [each.name for each in chosen], [each.unit for each in chosen], list(positions)


def message_of(call, *args, **how):
    with pytest.raises(InputError) as caught:
        call(*args, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "given", "features", "expected"),
    [
        pytest.param(
            None,
            {},
            2,
            (["feature_0", "feature_1"], [None, None], [0, 1]),
            id="nothing is known",
        ),
        pytest.param(
            None, {"drop": (0, 2)}, 3, (["feature_1"], [None], [-1, 0, -1]), id="drop alone"
        ),
        pytest.param(
            None, {"drop": (1, 1)}, 2, (["feature_0"], [None], [0, -1]), id="dropped twice"
        ),
        pytest.param(
            None, {"variables": ("a", "b")}, 2, (["a", "b"], [None, None], [0, 1]), id="given"
        ),
        pytest.param(
            "data_config.yaml",
            {},
            4,
            (["t_2", "u_65", "v_65"], ["K", "m/s", "m/s"], [0, -1, 1, 2]),
            id="file names what is kept",
        ),
        pytest.param(
            "data_config.yaml",
            {},
            3,
            (["t_2", "v_65"], ["K", "m/s"], [0, -1, 1]),
            id="file names all features",
        ),
        pytest.param(
            "meps.datastore.yaml",
            {},
            4,
            (["t_2", "u_65", "v_65"], ["K", "m/s", "m/s"], [0, -1, 1, 2]),
            id="neural-lam's newer name",
        ),
        pytest.param(
            "data_config.yaml",
            {"variables": ("a", "b")},
            3,
            (["a", "b"], [None, None], [0, -1, 1]),
            id="given names, the file's drop",
        ),
        pytest.param(
            "data_config.yaml",
            {"drop": (0,)},
            4,
            (["t_2", "u_65", "v_65"], ["K", "m/s", "m/s"], [-1, 0, 1, 2]),
            id="the file's names, given drop",
        ),
        pytest.param(
            "data_config.yaml",
            {"drop": ()},
            3,
            (["t_2", "u_65", "v_65"], ["K", "m/s", "m/s"], [0, 1, 2]),
            id="nothing is dropped after all",
        ),
    ],
)
def test_columns(tmp_path, name, given, features, expected):
    if name:
        (tmp_path / name).write_text(CONFIG)
    assert columns(tmp_path, features, **given) == expected


@pytest.mark.parametrize(
    "text",
    ["", "# nothing yet\n", "name: meps\n", "dataset:\n", "dataset: {}\n"],
    ids=["empty", "comment", "no dataset", "dataset without value", "empty dataset"],
)
def test_a_file_that_says_nothing_of_features(tmp_path, text):
    (tmp_path / "data_config.yaml").write_text(text)
    assert columns(tmp_path, 1) == (["feature_0"], [None], [0])


def test_units_may_be_blank(tmp_path):
    (tmp_path / "data_config.yaml").write_text(
        "dataset:\n  var_names: [r_2, t_2, c]\n  var_units: ['', K, null]\n"
    )
    assert columns(tmp_path, 3)[1] == ["", "K", None]


def test_our_file_goes_before_theirs(tmp_path):
    for name in ("data_config.yaml", "a.datastore.yaml", "b.datastore.yaml"):
        (tmp_path / name).write_text(f"dataset: {{var_names: [{name[0]}]}}")
    assert columns(tmp_path, 1)[0] == ["d"]


def test_hidden_files_are_passed_over(tmp_path):
    (tmp_path / "._a.datastore.yaml").write_bytes(b"\x00\x05\x16\x07")
    (tmp_path / "a.datastore.yaml").write_text("dataset: {var_names: [a]}")
    assert columns(tmp_path, 1)[0] == ["a"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param("dataset: [", ["cannot be read as YAML (", "line 1"], id="broken"),
        pytest.param("dataset:\n\tx: 1", ["cannot be read as YAML"], id="tab"),
        pytest.param("since: 2022-13-45", ["cannot be read as YAML", "month"], id="no such date"),
        pytest.param("[" * 9999, ["cannot be read as YAML"], id="nested too deep"),
        pytest.param("- dataset", [" holds ['dataset'] (list); expected keys"], id="list"),
        pytest.param("t_2", [" holds 't_2' (str); expected keys"], id="text"),
        pytest.param(
            "dataset: meps",
            [": dataset is 'meps' (str); expected keys below"],
            id="dataset is text",
        ),
        pytest.param(
            "dataset: {var_names: t_2}",
            [": dataset.var_names is 't_2' (str); expected a list of texts such as [t_2, z_500]"],
            id="names are text",
        ),
        pytest.param(
            "dataset: {var_names: {t_2: K}}",
            [": dataset.var_names is {'t_2': 'K'} (dict); expected a list"],
            id="names are keys",
        ),
        pytest.param(
            "dataset: {var_names: [t_2, no]}",
            [": dataset.var_names has the entry False (bool); expected", "put it in quotes"],
            id="a name that YAML takes for False",
        ),
        pytest.param(
            "dataset: {var_names: [1000]}",
            [": dataset.var_names has the entry 1000 (int)", "put it in quotes"],
            id="number as name",
        ),
        pytest.param(
            "dataset: {var_names: [a], var_units: [1]}",
            [": dataset.var_units has the entry 1 (int)", "put it in quotes"],
            id="number as unit",
        ),
        pytest.param(
            "dataset: {var_names: [a, b], var_units: [K]}",
            [": dataset.var_units has 1 entries, dataset.var_names 2; give one unit for each name"],
            id="fewer units",
        ),
        pytest.param(
            "dataset: {remove_state_features_with_index: ['15']}",
            [": dataset.remove_state_features_with_index has the entry '15' (str)", "such as [15]"],
            id="indices are texts",
        ),
        pytest.param(
            "dataset: {remove_state_features_with_index: [true]}",
            ["has the entry True (bool); expected a list of indices"],
            id="index is true",
        ),
        pytest.param(
            "dataset: {remove_state_features_with_index: 15}",
            ["with_index is 15 (int); expected a list of indices such as [15]"],
            id="one index",
        ),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, parts):
    path = tmp_path / "data_config.yaml"
    path.write_text(text)
    message = message_of(columns, tmp_path, 4)
    assert message.startswith(str(path))
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        pytest.param(
            lambda path: path.write_bytes(b"dataset: \xff"), ["as YAML (", "utf-8"], id="no UTF-8"
        ),
        pytest.param(lambda path: path.mkdir(), ["Is a directory"], id="folder"),
        pytest.param(
            lambda path: path.symlink_to("nowhere"), ["No such file"], id="link that leads nowhere"
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, make, parts):
    path = tmp_path / "data_config.yaml"
    make(path)
    message = message_of(columns, tmp_path, 4)
    assert message.startswith(f"{path} cannot be read as YAML (")
    for part in parts:
        assert part in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file_is_named(tmp_path):
    path = tmp_path / "data_config.yaml"
    path.write_text(CONFIG)
    path.chmod(0)
    assert f"{path} cannot be read as YAML (" in message_of(columns, tmp_path, 4)


def test_several_files_of_theirs(tmp_path):
    for name in ("b.datastore.yaml", "a.datastore.yaml"):
        (tmp_path / name).write_text(CONFIG)
    assert message_of(columns, tmp_path, 4) == (
        f"{tmp_path} has several descriptions (a.datastore.yaml, b.datastore.yaml); keep one, or "
        "add data_config.yaml"
    )


@pytest.mark.parametrize(
    ("names", "features", "message"),
    [
        pytest.param(
            FeatureNames(names=("a", "b", "c")),
            2,
            "data.variables gives 3 names, but the samples have 2 features; give 2 names",
            id="more names",
        ),
        pytest.param(
            FeatureNames(names=("a", "b"), names_origin="x.yaml"),
            3,
            "x.yaml gives 2 names, but the samples have 3 features; give 3 names",
            id="fewer names",
        ),
        pytest.param(
            FeatureNames(names=("a",), drop=(0, 0)),
            3,
            "data.variables gives 1 names, but the samples have 3 features of which 1 dropped; "
            "give 2 names",
            id="fewer names than are kept",
        ),
        pytest.param(
            FeatureNames(names=()),
            1,
            "data.variables gives 0 names, but the samples have 1 features; give 1 names",
            id="no name",
        ),
        pytest.param(
            FeatureNames(names=("a", "b"), drop=(2,), drop_origin="x.yaml"),
            2,
            "x.yaml: feature 2 is to be dropped, but the samples have 2 features (0 to 1); correct "
            "the index",
            id="index too large",
        ),
        pytest.param(
            FeatureNames(drop=(-1,)),
            2,
            "data.drop: feature -1 is to be dropped, but the samples have 2 features (0 to 1); "
            "correct the index",
            id="negative index",
        ),
        pytest.param(
            FeatureNames(drop=(0, 1)),
            2,
            "data.drop: all 2 features are dropped; keep one",
            id="all dropped",
        ),
        pytest.param(
            FeatureNames(names=("a", "b", "a")),
            3,
            "data.variables names 'a' more than once; give each variable its own name",
            id="repeated name",
        ),
        pytest.param(
            FeatureNames(names=("a", " ")),
            2,
            "data.variables has an empty name; give each variable its own name",
            id="empty name",
        ),
    ],
)
def test_what_does_not_fit_the_features(names, features, message):
    assert message_of(names.columns, features) == message


def test_features_that_are_dropped_may_share_a_name():
    names = FeatureNames(names=("unused", "t_2", "unused"), drop=(0, 2))
    assert [variable.name for variable in names.columns(3)[0]] == ["t_2"]
