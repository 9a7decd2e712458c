"""Files of cases: what is read from them, and the one line that says what is wrong."""

import time
from pathlib import Path

import pytest
import torch

from neural_prep.checks import in_float32, load_cases
from neural_prep.checks.cases import Case, Constant, Input, ModuleSpec
from neural_prep.checks.twins import build_module
from neural_prep.errors import InputError

SHIPPED = Path(__file__).parents[2] / "configs" / "sharded_layers.yaml"
CONV = {"in_channels": 3, "out_channels": 4, "kernel_size": 3}
X = {"shape": [6], "cut": {"domain": 0}}


def module(path, **init_args):
    return {"module": {"class_path": path, "init_args": init_args}}


def given(**keys):
    return {"inputs": [{**X, **keys}]}


def test_shipped_file():
    cases = load_cases(SHIPPED)
    assert len({case.name for case in cases}) == len(cases) >= 300


def test_every_key(make_cases):
    path = make_cases(
        {
            "name": "every-key",
            "module": {"class_path": "torch.nn.Conv2d", "init_args": CONV},
            "mesh": {"y": 2, "x": 2},
            "dtype": "float32",
            "atol": 1e-3,
            "training": False,
            "kwargs": {"scale": 2},
            "inputs": [
                {
                    "shape": [2, 4, 5],
                    "cut": {"x": -1, "y": 0},
                    "sizes": {4: [[2, 3], [0, 2]]},
                    "grad": False,
                    "dtype": "float64",
                    "values": {"mean": 1e5, "std": 1.0},
                    "contiguous": False,
                },
                [{"shape": [2], "plain": True}, {"value": "ij->i"}],
                {"values": {"tensor": [True, False]}, "name": "mask"},
            ],
        },
        rtol=1e-6,
    )
    assert load_cases(path) == [
        Case(
            name="every-key",
            module=ModuleSpec("torch.nn.Conv2d", CONV),
            mesh={"y": 2, "x": 2},
            ranks=(4,),
            dtype="float32",
            has_own_dtype=True,
            rtol=1e-6,
            atol=1e-3,
            training=False,
            kwargs={"scale": 2},
            inputs=(
                Input(
                    shape=(2, 4, 5),
                    cut={"x": -1, "y": 0},
                    sizes={4: ((2, 3), (0, 2))},
                    grad=False,
                    dtype="float64",
                    values={"mean": 1e5, "std": 1.0},
                    contiguous=False,
                ),
                (Input(shape=(2,), plain=True), Constant("ij->i")),
                Input(values={"tensor": [True, False]}, name="mask"),
            ),
        )
    ]


def test_modules_are_built_when_a_case_runs(make_cases):
    layer = {
        "class_path": "torch.nn.TransformerEncoderLayer",
        "init_args": {"d_model": 4, "nhead": 2, "batch_first": True},
    }
    (case,) = load_cases(
        make_cases(module("torch.nn.TransformerEncoder", encoder_layer=layer, num_layers=1))
    )
    assert case.module.init_args["encoder_layer"] == layer
    assert isinstance(build_module(case.module).layers[0], torch.nn.TransformerEncoderLayer)


def test_float32(make_cases):
    cases = load_cases(
        make_cases({"name": "a", "rtol": 1e-9}, {"name": "large-mean", "dtype": "float64"})
    )
    (case,) = in_float32(cases)
    assert (str(case), case.dtype, case.rtol, case.atol) == ("a-float32", "float32", 1e-5, 1e-5)


def test_three_hundred_cases_take_less_than_3_s(make_cases):
    shape = {"shape": [2, 3, 18, 7], "cut": {"domain": 2}, "sizes": {3: [[9, 0, 9]]}}
    path = make_cases(
        *({"name": f"conv-{n}", **module("torch.nn.Conv2d", **CONV)} for n in range(150)),
        *(
            {"name": f"sdpa-{n}", "function": "torch.cat", "inputs": [shape] * 3}
            for n in range(150)
        ),
    )
    begun = time.process_time()  # other processes are not the matter
    assert len(load_cases(path)) == 300
    assert time.process_time() - begun < 3


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"name": "left out"}, "case number 1: name: found nothing, expected a name"),
        ({"nme": 3}, "nme is not a known key; the nearest is name"),
        ({"function": "torch.clne"}, "function: torch has no clne; the nearest is clone"),
        ({"function": "troch.clone"}, "function: troch.clone: there is no module troch"),
        ({"function": "torch.pi"}, "function: torch.pi cannot be called"),
        ({"function": "left out"}, "found neither, expected one of module and function"),
        (
            {"function": "torch.clone", **module("torch.nn.ReLU")},
            "found module and function, expected one of module and function",
        ),
        (module("torch.nn.Conv2x"), "module: torch.nn has no Conv2x; the nearest is Conv2d"),
        (module("torch.clone"), "module: torch.clone is no subclass of Module"),
        (
            module("torch.nn.Conv2d", **CONV, strid=2),
            "module: init_args: strid is not a known key; the nearest is stride",
        ),
        (
            module("torch.nn.Conv2d", in_channels=3),
            "module: init_args: out_channels is not given",
        ),
        (
            module("torch.nn.Linear", in_features="x", out_features=2),
            "module: in_features: found 'x', expected int",
        ),
        (
            module("torch.nn.Conv2d", **CONV, padding_mode="zeroes"),
            "module: padding_mode: found 'zeroes', expected one of 'zeros', 'reflect', "
            "'replicate', 'circular'",
        ),
        (given(shpe=[6]), "inputs[0]: shpe is not a known key; the nearest is shape"),
        ({"inputs": []}, "inputs: found [], expected a list"),
        ({"inputs": [{"grad": False}]}, "inputs[0]: shape is not given"),
        (given(shape="x"), "inputs[0]: shape: found 'x', expected a list"),
        (given(cut={"domian": 0}), "inputs[0]: cut: domian is no axis of the mesh; it has domain"),
        (given(cut={"domain": 1}), "inputs[0]: cut: domain: dim 1 of a shape [6]"),
        (
            given(sizes={2: [[3, 4]]}),
            "inputs[0]: sizes: 2: [3, 4] along domain add up to 7, expected 6, the size of dim 0",
        ),
        (
            given(sizes={2: [[6]]}),
            "inputs[0]: sizes: 2: found [6] along domain, expected a size for each of 2 ranks",
        ),
        (
            given(sizes={2: [[3, 3], [6, 0]]}),
            "inputs[0]: sizes: 2: found 2 lists, expected one for each of 1 cuts",
        ),
        (given(dtype="flot32"), "inputs[0]: dtype: flot32 is not a dtype; the nearest is float32"),
        (
            given(values="norml"),
            "inputs[0]: values: found 'norml', expected normal, {mean: , std: }, "
            "{integers: [low, high]} or {tensor: }",
        ),
        (
            given(plain=True),
            "inputs[0]: plain: an ordinary tensor is not cut; leave out plain or cut",
        ),
        ({"inputs": [[X, {**X, "shpe": 1}]]}, "inputs[0][1]: shpe is not a known key"),
        (
            {"inputs": [{**X, "name": "x"}], "kwargs": {"x": 1}},
            "inputs[0]: name: x is given twice; keep one",
        ),
        ({"dtype": "flaot64"}, "dtype: flaot64 is not a dtype; the nearest is float64"),
        ({"ranks": [0]}, "ranks: found [0], expected numbers of ranks"),
        ({"rtol": -1.0}, "rtol: found -1.0, expected a number from 0"),
        (
            {"mesh": {"y": 2}, "ranks": [2, 3]},
            "mesh: {'y': 2} has 2 ranks, but ranks is [2, 3]; expected ranks: [2]",
        ),
        (
            {"mesh": {"y": 2}},
            "inputs[0]: cut: domain is no axis of the mesh; it has y",
        ),
        (
            {"raises": "NotImplemented"},
            "raises: NotImplemented is not an exception; the nearest is NotImplementedError",
        ),
    ],
)
def test_wrong_case(make_cases, case, message):
    path = make_cases(case)
    with pytest.raises(InputError) as refused:
        load_cases(path)
    said = str(refused.value)
    where = "" if case.get("name") == "left out" else "case a: "
    assert said.startswith(f"{path}: {where}{message}")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " holds NoneType; expected defaults: and cases:"),
        ("case: []", ": case is not a known key; the nearest is cases"),
        ("cases: 3", ": cases: found 3, expected a list of cases"),
        ("cases: [3]", ": case number 1: found 3, expected a mapping with a name"),
        ("cases: [}", " is no YAML: "),
        ("cases: [{name: a, name: b}]", ", line 1: key 'name' is given twice; keep one"),
        ("defaults: {dtpe: a}", ": defaults: dtpe is not a known key; the nearest is dtype"),
        ("defaults: {rtol: .inf}", ": defaults: rtol: found inf, expected a number from 0"),
        ("defaults: {dtype: a}", ": defaults: dtype: a is not a dtype; the nearest is "),
        (
            "cases: [{name: a, function: torch.clone, inputs: [{shape: [1]}]}, "
            "{name: a, function: torch.clone, inputs: [{shape: [1]}]}]",
            ": case a: two cases have this name; give each its own",
        ),
    ],
)
def test_wrong_file(tmp_path, text, message):
    path = tmp_path / "cases.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        load_cases(path)
    assert str(refused.value).startswith(f"{path}{message}")


def test_no_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml cannot be read \(No such file"):
        load_cases(tmp_path / "none.yaml")
