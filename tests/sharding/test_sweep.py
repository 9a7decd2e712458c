"""Every module and function of torch.nn, its inputs cut along every dimension: right or refused."""

import re
from pathlib import Path

import pytest
import torch

from neural_prep.checks.coverage import Survey, torch_version
from neural_prep.checks.in_tests import find_verdict
from neural_prep.checks.samples import load_samples
from neural_prep.checks.verdict import HOLDS, REFUSES
from neural_prep.sharding import ShardTensor

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
SAMPLES = load_samples(ROOT / "configs" / "coverage.yaml")
SURVEY = Survey.of(SAMPLES, 2)
TARGETS = list(dict.fromkeys(trial.target for trial in SURVEY.trials.values()))


@pytest.mark.multigpu_static(ranks=[2])
@pytest.mark.filterwarnings("ignore")  # of what is deprecated, or asks for another shape
@pytest.mark.parametrize("target", TARGETS)
def test_right_or_refused(target, world):
    verdicts = {}
    for trial in SURVEY.trials_of(target):
        verdict = find_verdict(trial.case, world)
        said = "\n".join([f"{trial.case} {verdict.word}", *verdict.lines])
        assert verdict.word in (HOLDS, REFUSES), said
        verdicts[trial.case.name] = verdict
    if f"of torch {torch_version()}.\n" in PAGE:
        row = str(SURVEY.row(target, verdicts))
        assert row in PAGE.splitlines(), f"{row}\nrun neural-prep check --coverage docs/coverage.md"


LAZY = {
    "LazyLinear": {"out_features": 3},
    **{
        f"LazyConv{dims}d": {"out_channels": 3, "kernel_size": 3, "padding": 1}
        for dims in (1, 2, 3)
    },
    **{f"LazyConvTranspose{dims}d": {"out_channels": 3, "kernel_size": 2} for dims in (1, 2, 3)},
    **{f"LazyBatchNorm{dims}d": {} for dims in (1, 2, 3)},
    **{f"LazyInstanceNorm{dims}d": {"affine": True} for dims in (1, 2, 3)},
}


@pytest.mark.multigpu_static(ranks=[2])
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("name", LAZY)
def test_lazy_modules_look_at_the_whole_input(distributed_mesh, name):
    dims = int(name[-2]) if name[-2].isdigit() else 1
    full = torch.randn(4, 5, *range(6, 6 + dims), generator=torch.Generator().manual_seed(1))

    def run(cut):
        torch.manual_seed(2)
        layer = getattr(torch.nn, name)(**LAZY[name])
        y = layer(full if cut is None else ShardTensor.scatter(full, distributed_mesh, cut))
        y.square().sum().backward()
        y = y if cut is None else y.full()
        return [y, *layer.parameters(), *(each.grad for each in layer.parameters())]

    expected = run(None)
    for dim in range(full.ndim):
        torch.testing.assert_close(run({"domain": dim}), expected, rtol=1e-4, atol=1e-4)


def test_the_page_lists_all_there_is():
    """Those of this version of torch, if that is the page's."""
    if f"of torch {torch_version()}.\n" not in PAGE:
        pytest.skip(f"the page is of another torch than {torch_version()}")
    found = [row.target.rpartition(".")[2] for row in _untried_rows()]
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert listed == found


def test_nothing_is_wrong():
    words = set(re.findall(r"^\| `\w+` \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert words <= {"right", "in part", "refused", "not tried"}


def _untried_rows():
    """The rows of the page without what trials find."""
    bare = Survey(SAMPLES, 2, {})
    return [row for table in bare.rows({}).values() for row in table]
