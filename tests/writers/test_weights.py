import re

import numpy as np
import pytest

from neural_prep.errors import InputError
from neural_prep.writers.weights import parameter_weights

TABLE = {2: 1.0, 0: 0.1, 65: 0.065, 1000: 0.1, 850: 0.05, 500: 0.03}


def test_the_classic_set():
    """The weights that neural-lam's script gives the 17 MEPS variables."""
    names = [
        "pres_0g", "pres_0s", "nlwrs_0", "nswrs_0", "r_2", "r_65", "t_2", "t_65", "t_500", "t_850",
        "u_65", "u_850", "v_65", "v_850", "wvint_0", "z_1000", "z_500",
    ]  # fmt: skip
    weights = parameter_weights(names, TABLE)
    assert weights.tolist() == [
        0.1, 0.1, 0.1, 0.1, 1.0, 0.065, 1.0, 0.065, 0.03, 0.05, 0.065, 0.05, 0.065, 0.05,
        0.1, 0.1, 0.03,
    ]  # fmt: skip
    assert weights.dtype == np.float64


@pytest.mark.parametrize(
    ("name", "level"),
    [
        pytest.param("t_65", 65, id="number"),
        pytest.param("pres_0g", 0, id="one-letter-after"),
        pytest.param("wind_u_10_850", 850, id="the-last-one"),
        pytest.param("specific_humidity_1000", 1000, id="several-words"),
    ],
)
def test_level(name, level):
    assert parameter_weights([name], {level: 0.5}).tolist() == [0.5]


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        pytest.param("t_700", "t_700 (level 700)", id="level-not-in-table"),
        pytest.param("feature", "feature (no level)", id="no-underscore"),
        pytest.param("t_2mm", "t_2mm (no level)", id="two-letters"),
        pytest.param("t_", "t_ (no level)", id="empty"),
        pytest.param("t_0.5", "t_0.5 (no level)", id="fraction"),
    ],
)
def test_a_variable_without_a_weight(name, lacking):
    message = (
        f"parameter_weights: no weight for {lacking}; the table has levels 2, 0, 65, 1000, 850, "
        "500; add what is lacking or leave the table out"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        parameter_weights(["t_2", name], TABLE)


def test_all_that_lack_a_weight_are_named():
    with pytest.raises(
        InputError, match=r"a_1 \(level 1\), b \(no level\); the table has levels none"
    ):
        parameter_weights(["a_1", "b"], {})


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_a_weight_is_a_number(weight):
    with pytest.raises(
        InputError, match=f"the weight of level 2 is {weight}; give a finite number"
    ):
        parameter_weights(["t_2"], {2: weight})
