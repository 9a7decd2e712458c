import json
import re
from datetime import UTC, datetime

import numpy as np
import pytest

import neural_prep
from neural_prep.writers.formats import FormatOptions, find_format, write_formats

NAN = np.nan


@pytest.fixture
def statistics(two_pass):
    state = np.array([[[0.1, NAN, 5.0]], [[0.2, NAN, 5.0]], [[0.4, NAN, 5.0]]])  # (3, 1, 3)
    return two_pass.statistics(
        two_pass.group("state", [state], [1, 3], ["t_2", "gap", "level"], ["K", None, "m"]),
        two_pass.group("static", [np.ones((1, 4, 1))], variables=["border_mask"]),
    )


def write(statistics, folder):
    (path,) = write_formats(["json"], statistics, folder, FormatOptions())
    return path


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def test_every_number(statistics, tmp_path):
    path = write(statistics, tmp_path)
    read = json.loads(path.read_text("utf-8"), parse_constant=refuse)
    created = read.pop("created")
    assert path == tmp_path / "statistics.json"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds() < 60
    fields = np.array([0.1, 0.2, 0.4])
    pairs = np.array([0.2 - 0.1, 0.4 - 0.2])
    assert read == {
        "schema": "neural-prep/statistics/1",
        "neural_prep": neural_prep.__version__,
        "source": {
            "path": "stores/meps",
            "layout": "meps",
            "split": "train",
            "steps": 520,
            "trajectories": 8,
            "fingerprint": "sha256:0123",
        },
        "run": {"ranks": 2, "blocks": 12, "bytes": 123456789, "seconds": 1.23},
        "groups": {
            "state": {
                "variables": ["t_2", "gap", "level"],
                "units": ["K", None, "m"],
                "count": [3, 0, 3],
                "missing": [0, 3, 0],
                "mean": [fields.mean(), None, 5.0],
                "std": [fields.std(), None, 0.0],
                "min": [0.1, None, 5.0],
                "max": [0.4, None, 5.0],
                "constant": [False, False, True],
                "differences": [
                    {
                        "lag": 1,
                        "count": [2, 0, 2],
                        "missing": [0, 2, 0],
                        "mean": [pairs.mean(), None, 0.0],
                        "std": [pairs.std(), None, 0.0],
                        "min": [pairs.min(), None, 0.0],
                        "max": [pairs.max(), None, 0.0],
                        "constant": [False, False, True],
                    },
                    {
                        "lag": 3,
                        "count": [0, 0, 0],
                        "missing": [0, 0, 0],
                        "mean": [None, None, None],
                        "std": [None, None, None],
                        "min": [None, None, None],
                        "max": [None, None, None],
                        "constant": [False, False, False],
                    },
                ],
            },
            "static": {
                "variables": ["border_mask"],
                "units": [None],
                "count": [4],
                "missing": [0],
                "mean": [1.0],
                "std": [0.0],
                "min": [1.0],
                "max": [1.0],
                "constant": [True],
                "differences": [],
            },
        },
    }


def test_keys_keep_their_order(statistics, tmp_path):
    read = json.loads(write(statistics, tmp_path).read_text())
    numbers = ["count", "missing", "mean", "std", "min", "max", "constant"]
    assert list(read) == ["schema", "neural_prep", "created", "source", "run", "groups"]
    state = read["groups"]["state"]
    assert list(state) == ["variables", "units", *numbers, "differences"]
    assert list(state["differences"][0]) == ["lag", *numbers]


def test_each_list_is_one_line(statistics, tmp_path):
    text = write(statistics, tmp_path).read_text()
    assert '      "variables": ["t_2", "gap", "level"],\n' in text
    assert '      "count": [3, 0, 3],\n' in text
    assert '      "differences": [\n        {\n          "lag": 1,\n' in text
    assert '      "differences": []\n' in text
    assert text.endswith("}\n")


@pytest.mark.parametrize("value", [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 1e16, -2.5e-6])
def test_numbers_read_back_to_the_same_float64(two_pass, tmp_path, value):
    statistics = two_pass.statistics(two_pass.group("state", [np.full((1, 1, 1), value)]))
    read = json.loads(write(statistics, tmp_path).read_text())
    assert read["groups"]["state"]["min"] == [value]


def test_counts_are_integers_however_large(two_pass, tmp_path):
    group = two_pass.group("state", [np.zeros((1, 1, 1))])
    group.values.count[0] = 2**53 - 1
    text = write(two_pass.statistics(group), tmp_path).read_text()
    assert '"count": [9007199254740991],' in text


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_std_beyond_float64_is_null(two_pass, tmp_path):
    group = two_pass.group("state", [np.array([[[1e200], [-1e200]]])])
    read = json.loads(
        write(two_pass.statistics(group), tmp_path).read_text(), parse_constant=refuse
    )
    assert read["groups"]["state"]["std"] == [None]


def test_any_name_can_be_written(two_pass, tmp_path):
    names = ['say "hi"', "t\u00b0\nback\\slash", "\udcff"]  # the last from a path that is no UTF-8
    statistics = two_pass.statistics(
        two_pass.group("state", [np.zeros((1, 1, 3))], variables=names)
    )
    read = json.loads(write(statistics, tmp_path).read_text("utf-8"))
    assert read["groups"]["state"]["variables"] == names


def test_an_old_file_is_replaced_and_nothing_left(statistics, tmp_path):
    (tmp_path / "statistics.json").write_text("old")
    write(statistics, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["statistics.json"]
    assert json.loads((tmp_path / "statistics.json").read_text())["run"]["ranks"] == 2


def test_nothing_to_check():
    find_format("json").check({}, [], FormatOptions())
