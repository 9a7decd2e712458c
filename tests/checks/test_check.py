"""What a check finds: in distributed tests, where every rank raises the same."""

import re

import pytest
import torch

from neural_prep.checks import check_case, load_cases
from neural_prep.checks.check import Outcome, Part, run_case, unwritten_memory_as_nan
from neural_prep.checks.compare import Tolerance, compare, digest
from neural_prep.checks.verdict import DIES, DIFFERS, HANGS, HOLDS, RAISES, Fate, judge

on_two = pytest.mark.multigpu_static(ranks=[2])
on_any = pytest.mark.multigpu_static
CONDITION = {"values": {"tensor": [True, False, True]}}


@on_any
@pytest.mark.parametrize(
    "case",
    [
        {"function": "right"},
        {"function": "torch.clone", "inputs": [{"shape": [4, 3]}]},
        {"function": "torch.add", "inputs": [{"shape": [4]}, {"shape": [4], "plain": True}]},
        {"function": "torch.clone", "inputs": [{"shape": [4, 3], "contiguous": False}]},
        {"function": "torch.clone", "inputs": [{"shape": [4], "dtype": "complex128"}]},
        {"function": "torch.clone", "inputs": [{"values": {"tensor": [1, 2]}, "dtype": "int64"}]},
        {"function": "torch.add", "inputs": [{"shape": [3]}, {"shape": [3], "name": "other"}]},
        {"function": "torch.cat", "inputs": [[{"shape": [2]}, {"shape": [3]}]]},
        {"function": "torch.where", "inputs": [CONDITION, {"shape": [3]}, {"value": 7.0}]},
        {"function": "torch.einsum", "inputs": [{"value": "ij->i"}, {"shape": [3, 2]}]},
        {"function": "torch.var_mean", "kwargs": {"dim": 0}, "inputs": [{"shape": [3, 2]}]},
        {"function": "right", "inputs": [{"shape": [5], "plain": True}]},
        {
            "module": {"class_path": "torch.nn.BatchNorm1d", "init_args": {"num_features": 3}},
            "inputs": [{"shape": [4, 3]}],
        },
        {
            "function": "torch.nn.functional.embedding",
            "inputs": [{"shape": [6], "values": {"integers": [0, 5]}}, {"shape": [5, 2]}],
        },
        {
            "function": "torch.linalg.svd",
            "raises": "NotImplementedError",
            "inputs": [{"shape": [4, 3], "cut": {"domain": 0}}],
        },
    ],
    ids=lambda case: case.get("function", "module"),
)
def test_holds(make_cases, world, case):
    for each in load_cases(make_cases({**case, "ranks": [1, 2, 3, 4]})):
        check_case(each, world)


@on_two
@pytest.mark.parametrize(
    ("case", "lines"),
    [
        ("wrong_value", [r"rank 1: output differs by 1.0e-03 at \[2, 1\]: found .*, expected .*"]),
        ("wrong_gradient", [r"ranks 0, 1: gradient of input 0 differs by .*; 12 of 12 values .*"]),
        ("wrong_layout", [r"ranks 0, 1: output has shape \[2, 3\], expected \[4, 3\].*"]),
        (
            "wrong_piece",
            [
                r"rank 0: output has a piece of \[1, 3\], expected \[2, 3\]: it is cut dim 0 .*",
                r"rank 1: output has a piece of \[0, 3\], expected \[2, 3\]: it is cut dim 0 .*",
            ],
        ),
        ("wrong_dtype", [r"ranks 0, 1: output is of torch.float32, expected torch.float64"]),
        ("no_gradient", [r"ranks 0, 1: output has no gradient, unlike its serial twin"]),
        (
            "unwritten",
            [
                r"rank 0: output differs by inf at \[0, 0\]: found nan, .*; 3 of 6 .*",
                r"rank 1: output differs by inf at \[2, 0\]: found nan, .*; 3 of 6 .*",
            ],
        ),
        ("plain", [r"ranks 0, 1: output is an ordinary tensor, expected a ShardTensor"]),
        ("one_more", [r"ranks 0, 1: has output, expected output\[0\], output\[1\]"]),
        ("serial_raises", [r"ranks 0, 1: the serial twin raises ValueError: not serial"]),
    ],
)
def test_differs(make_cases, world, case, lines):
    with pytest.raises(AssertionError) as failed:
        check_case(load_cases(make_cases({"function": case}))[0], world)
    said = [line for line in str(failed.value).splitlines() if not line.startswith("    ")]
    assert re.fullmatch(r"a (differs|raises)", said[0])
    for line in lines:
        assert any(re.fullmatch(line, found) for found in said), str(failed.value)


@on_two
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("WrongBuffer", "ranks 0, 1: buffer calls differs by 1.0e+00 at []: found 2, expected 1"),
        ("WrongParameter", "ranks 0, 1: gradient of parameter weight differs by"),
    ],
)
def test_modules_differ(make_cases, world, name, line):
    case = {"module": {"class_path": f"wrong_layers.{name}"}, "inputs": [{"shape": [4, 3]}]}
    with pytest.raises(AssertionError) as failed:
        check_case(load_cases(make_cases(case))[0], world)
    assert line in str(failed.value)


@on_two
@pytest.mark.parametrize(
    ("function", "raises", "line"),
    [
        ("right", "ValueError", "ranks 0, 1: raises nothing, expected ValueError"),
        ("torch.linalg.svd", "ValueError", "ranks 0, 1: raises NotImplementedError: linalg_svd of"),
    ],
)
def test_other_exception(make_cases, world, function, raises, line):
    case = {"function": function, "raises": raises}
    with pytest.raises(AssertionError) as failed:
        check_case(load_cases(make_cases(case))[0], world)
    assert line in str(failed.value)


@on_any
def test_bfloat16_beside_float32(make_cases, world):
    """Both twins have the same rounded values, so that what rounds nothing is exact."""
    keys = {"dtype": "bfloat16", "rtol": 0.0, "atol": 0.0, "ranks": [1, 2, 3, 4]}
    (case,) = load_cases(make_cases({"function": "right", **keys}))
    check_case(case, world)
    (sums,) = load_cases(make_cases({"function": "torch.cos", **keys}))
    with pytest.raises(AssertionError, match=r"output differs by \d\.\de-03 .* allowed 0\.0e\+00"):
        check_case(sums, world)


@on_two
def test_bfloat16_stays_bfloat16(make_cases, world):
    (case,) = load_cases(make_cases({"function": "wrong_dtype", "dtype": "bfloat16"}))
    with pytest.raises(AssertionError, match=r"is of torch\.float32, expected torch\.bfloat16"):
        check_case(case, world)


@on_two
def test_replicated_values_are_the_same_on_all_ranks(make_cases, world):
    case = {"function": "unequal", "inputs": [{"shape": [3]}]}
    with pytest.raises(AssertionError, match="output is not the same on ranks 0 and 1"):
        check_case(load_cases(make_cases(case))[0], world)


@on_two
def test_one_failing_rank_leaves_the_others_in_step(make_cases, world):
    wrong, right = load_cases(make_cases({"function": "wrong_value"}, {"name": "b"}))
    with pytest.raises(AssertionError):
        check_case(wrong, world)
    check_case(right, world)


@on_any
def test_settings_are_restored(make_cases, world):
    before = (torch.are_deterministic_algorithms_enabled(), torch.initial_seed())
    run_case(load_cases(make_cases({"ranks": [1, 2, 3, 4]}))[0], world)
    assert torch.are_deterministic_algorithms_enabled() == before[0]
    with unwritten_memory_as_nan():
        assert torch.empty(3).isnan().all()


@pytest.mark.parametrize(
    ("serial", "found", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 4.0], [1.5, 4.0], 0.125),
        ([0.5, 0.25], [0.5, 0.5], 0.25),
        ([float("nan"), float("inf")], [float("nan"), float("inf")], 0.0),
        ([1.0, float("inf")], [1.0, 2.0], float("inf")),
        ([1.0, 2.0], [float("nan"), 2.0], float("inf")),
    ],
)
def test_errors(serial, found, error):
    result = compare(torch.tensor(serial), torch.tensor(found), Tolerance(1e-6, 1e-6))
    assert (result.error, bool(result.text)) == (error, error > 0)


def test_digest_knows_one_zero_and_one_nan():
    assert digest(torch.tensor([0.0, float("nan")])) == digest(torch.tensor([-0.0, -float("nan")]))
    assert digest(torch.tensor([1.0])) != digest(torch.tensor([1.0000001]))
    for dtype in (torch.bool, torch.int8, torch.bfloat16, torch.complex64):
        assert digest(torch.ones(3, dtype=dtype)) == digest(torch.ones(6, dtype=dtype)[::2])


def outcome(**keys):
    return Outcome(**{"errors": {Part.OUTPUT: 0.0}, **keys})


@pytest.mark.parametrize(
    ("outcomes", "fates", "word", "in_step", "lines"),
    [
        ([outcome(), outcome()], {}, HOLDS, True, []),
        (
            [outcome(), outcome(differences=["output is wrong"])],
            {},
            DIFFERS,
            True,
            ["rank 1: output is wrong"],
        ),
        (
            [outcome(layouts={"output": "replicated"}), outcome(layouts={"output": "cut"})],
            {},
            DIFFERS,
            True,
            ["output is replicated on rank 0, cut on rank 1"],
        ),
        (
            [outcome(position={"group 0": 2}), outcome(position={"group 0": 1})],
            {},
            DIFFERS,
            False,
            [
                "the ranks left the case at different points: group 0: 2 collectives on rank 0, 1 "
                "on rank 1"
            ],
        ),
        ([outcome()], {1: Fate("was still running")}, HANGS, False, ["rank 1: was still running"]),
        (
            [outcome(raised="raises ValueError: no")],
            {1: Fate("was still running")},
            RAISES,
            False,
            ["rank 0: raises ValueError: no", "rank 1: was still running"],
        ),
        (
            [outcome(raised="raises RuntimeError: Connection reset by peer", trace="  far away")],
            {1: Fate("was killed by SIGKILL", "no space left", dead=True)},
            DIES,
            False,
            [
                "rank 1: was killed by SIGKILL\nno space left",
                "rank 0: raises RuntimeError: Connection reset by peer",
            ],
        ),
    ],
    ids=["holds", "differs", "layouts", "apart", "hangs", "raises", "dies"],
)
def test_verdicts(outcomes, fates, word, in_step, lines):
    verdict = judge(dict(enumerate(outcomes)), fates)
    assert (verdict.word, verdict.in_step, list(verdict.lines)) == (word, in_step, lines)
