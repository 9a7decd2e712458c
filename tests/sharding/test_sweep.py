"""Every module and function of torch.nn, its inputs cut along every dimension: right or refused."""

import re
from pathlib import Path

import pytest

from neural_prep.checks.coverage import Survey, torch_version
from neural_prep.checks.in_tests import find_verdict
from neural_prep.checks.samples import load_samples
from neural_prep.checks.verdict import HOLDS, REFUSES

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
