"""Every case of configs/sharded_layers.yaml, in the dtype that it has and in float32."""

from pathlib import Path

import pytest

from neural_prep.checks import check_case, in_float32, load_cases

CASES = load_cases(Path(__file__).parents[2] / "configs" / "sharded_layers.yaml")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=pytest.mark.multigpu_static(ranks=list(case.ranks)))
        for case in [*CASES, *in_float32(CASES)]
    ],
)
def test_layer(case, world):
    check_case(case, world)
