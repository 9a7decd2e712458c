"""The page of what works: what is on it, what is wrong, and how the command ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neural_prep.checks.cases import Case
from neural_prep.checks.check import Outcome
from neural_prep.checks.command import run_check
from neural_prep.checks.coverage import Survey, public_functions, public_modules
from neural_prep.checks.samples import load_samples
from neural_prep.checks.sweep import trials_of
from neural_prep.checks.verdict import DIFFERS, HOLDS, RAISES, REFUSES, Verdict, judge
from neural_prep.errors import InputError
from neural_prep.world.environment import clean

FOLDER = Path(__file__).parent
REFUSAL = (
    "ranks 0, 1: raises NotImplementedError: sort of a tensor that is cut dim 0 along domain has "
    "no sharded version; redistribute it, or compute with x.full()"
)


@pytest.fixture
def make_samples(tmp_path):
    """Reads samples that are given as mappings."""

    def make(*cases, **keys):
        path = tmp_path / "samples.yaml"
        path.write_text(json.dumps({"cases": cases, **keys}))
        return load_samples(path)

    return make


def sample(function, *shapes):
    return {"function": function, "inputs": [{"shape": list(shape)} for shape in shapes]}


def cuts_of(case: Case):
    return [(part.cut.get("domain"), part.sizes.get(2)) for part in case.tensors()]


def test_one_input_is_cut_along_each_dimension(make_samples):
    (relu,) = make_samples(sample("torch.relu", [5, 1])).cases
    trials = list(trials_of(relu, 2))
    assert [(trial.argument, trial.dim, trial.division) for trial in trials] == [
        ("", 0, "even"),
        ("", 0, "uneven"),
        ("", 0, "empty"),
        ("", 1, "even"),
        ("", 1, "empty"),
    ]
    assert [cuts_of(trial.case) for trial in trials] == [
        [(0, ((3, 2),))],
        [(0, ((4, 1),))],
        [(0, ((0, 5),))],
        [(1, ((1, 0),))],
        [(1, ((0, 1),))],
    ]


def test_several_inputs_are_cut_together_and_alone(make_samples):
    (linear,) = make_samples(sample("torch.nn.functional.mse_loss", [4, 2], [4, 2])).cases
    trials = [trial for trial in trials_of(linear, 2) if (trial.dim, trial.division) == (0, "even")]
    assert [(trial.argument, cuts_of(trial.case)) for trial in trials] == [
        ("all", [(0, ((2, 2),)), (0, ((2, 2),))]),
        ("input", [(0, ((2, 2),)), (None, None)]),
        ("target", [(None, None), (0, ((2, 2),))]),
    ]


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ([HOLDS] * 4, "| `relu` | right | 0, 1 |  |  |  |"),
        ([REFUSES] * 4, "| `relu` | refused |  | 0, 1 | sort has no sharded version |  |"),
        (
            [HOLDS] * 2 + [REFUSES] * 2,
            "| `relu` | in part | 0 | 1 | sort has no sharded version |  |",
        ),
        (
            [HOLDS, REFUSES, HOLDS, HOLDS],
            "| `relu` | in part | 1 | 0 in part | sort has no sharded version |  |",
        ),
        ([HOLDS, HOLDS, DIFFERS, HOLDS], "| `relu` | WRONG | 0 |  |  |  |"),
        (
            [RAISES, HOLDS, REFUSES, REFUSES],
            "| `relu` | WRONG |  | 1 | sort has no sharded version |  |",
        ),
    ],
    ids=["right", "refused", "in part", "by sizes", "wrong", "raises"],
)
def test_rows(make_samples, words, row):
    survey = Survey.of(make_samples(sample("torch.nn.functional.relu", [2, 2])), 2)
    verdicts = {
        name: Verdict(word, lines=(REFUSAL,) if word == REFUSES else ())
        for name, word in zip(survey.trials, words, strict=True)
    }
    assert str(survey.row("torch.nn.functional.relu", verdicts)) == row


def test_what_has_no_sample_says_why(make_samples):
    samples = make_samples(sample("torch.relu", [2]), untried={"torch.nn.Module": "a base class"})
    survey = Survey.of(samples, 2)
    assert (
        str(survey.row("torch.nn.Module", {})) == "| `Module` | not tried |  |  | a base class |  |"
    )
    assert str(survey.row("torch.nn.ELU", {})) == "| `ELU` | not tried |  |  | no sample |  |"


def test_every_public_name_is_on_the_page(make_samples):
    survey = Survey.of(make_samples(sample("torch.relu", [2])), 2)
    rows = survey.rows(dict.fromkeys(survey.trials, Verdict()))
    assert [row.target for row in rows["torch.nn"]] == list(public_modules())
    assert [row.target for row in rows["torch.nn.functional"]] == list(public_functions())
    assert [str(row) for row in rows["others"]] == ["| `relu` | right | 0 |  |  |  |"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"untried": {"torch.nn.Module": 1}}, "untried: found {'torch.nn.Module': 1}, expected a"),
        ({"checked_in": 3}, "checked_in: found 3, expected a file of cases"),
        ({"untied": {}}, "untied is not a known key; the nearest is untried"),
    ],
)
def test_wrong_samples(make_samples, keys, message):
    with pytest.raises(InputError) as refused:
        make_samples(sample("torch.relu", [2]), **keys)
    assert message in str(refused.value)


def test_samples_are_not_cut(make_samples):
    case = {"function": "torch.relu", "inputs": [{"shape": [2], "cut": {"domain": 0}}]}
    with pytest.raises(InputError, match="case relu: a sample is not cut; leave out cut"):
        make_samples(case)


@pytest.mark.parametrize(
    ("outcomes", "word"),
    [
        ([Outcome(raised="no", refused=True)] * 2, REFUSES),
        ([Outcome(raised="no", refused=True), Outcome()], RAISES),
        ([Outcome(raised="no", refused=True), Outcome(raised="not so", refused=True)], RAISES),
        ([Outcome(raised="no", refused=True, differences=["output"])] * 2, RAISES),
        ([Outcome(raised="no")] * 2, RAISES),
    ],
    ids=["alike", "one alone", "other words", "after a difference", "no refusal"],
)
def test_a_refusal_is_that_of_all_ranks(outcomes, word):
    assert judge(dict(enumerate(outcomes)), {}).word == word


def test_what_is_wrong_is_named(tmp_path):
    """And the page is written all the same, with status 1."""
    path, page = tmp_path / "samples.yaml", tmp_path / "page.md"
    functions = ("wrong_layers.right", "wrong_layers.wrong_value", "torch.linalg.svd")
    path.write_text(json.dumps({"cases": [sample(name, [4, 3]) for name in functions]}))
    command = [sys.executable, "-m", "neural_prep.cli", "check", "--config", str(path)]
    command += ["--coverage", str(page), "--nproc-per-node", "2"]
    done = subprocess.run(
        command, cwd=FOLDER, env=clean(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "wrong_value-0-even differs\n  rank 1: output differs by 1.0e-03" in done.stderr
    rows = page.read_text(encoding="utf-8").splitlines()
    assert "| `right` | right | 0, 1 |  |  |  |" in rows
    assert "| `svd` | refused |  | 0, 1 | linalg_svd has no sharded version |  |" in rows
    (wrong,) = (row for row in rows if row.startswith("| `wrong_value` |"))
    assert wrong.startswith("| `wrong_value` | WRONG |")
    assert done.stdout.startswith(f"wrote {page}: 1 right, 0 in part, 1 refused, ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--coverage", "--only", "a"], "--only: --coverage is of all samples as they are; leave"),
        (["--coverage", "--dtype", "float32"], "--dtype: --coverage is of all samples as they are"),
        (["--coverage", "none/page.md"], "--coverage: none is no folder; make it, or give another"),
        (["--coverage", "--config", "none.yaml"], "none.yaml cannot be read"),
    ],
    ids=["only", "dtype", "folder", "no-file"],
)
def test_wrong_input(capsys, monkeypatch, args, message):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert run_check(args) == 2
    assert capsys.readouterr().err.startswith(f"neural-prep: {message}")
