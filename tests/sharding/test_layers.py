"""Every case of configs/sharded_layers.yaml, and in float32 on one number of ranks."""

from dataclasses import replace
from pathlib import Path

import pytest

from neural_prep.checks import check_case, in_float32, load_cases

CASES = load_cases(Path(__file__).parents[2] / "configs" / "sharded_layers.yaml")
IN_FLOAT32 = [replace(case, ranks=(2,)) if 2 in case.ranks else case for case in in_float32(CASES)]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=pytest.mark.multigpu_static(ranks=list(case.ranks)))
        for case in [*CASES, *IN_FLOAT32]
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's advice on arguments, to both twins
def test_layer(case, world):
    check_case(case, world)
