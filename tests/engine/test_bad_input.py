"""A user's mistake ends with status 2 and one line that names it, before any rank starts."""

import json
import os

import numpy as np
import pytest
import torch
import yaml

from neural_prep.engine.command import run_stats


@pytest.fixture
def run_config(example, tmp_path, capsys):
    """Runs a configuration in this process; returns status, what was said, and the folder."""

    def run(changes, *args):
        sections = {
            "model": {"lags": [3]},
            "data": {"path": str(example), "split": "train"},
            "output": {"dir": str(tmp_path / "out")},
        }
        for name, value in changes.items():
            section, _, key = name.partition(".")
            if key:
                sections.setdefault(section, {})[key] = value
            else:
                sections[section] = value
        config = tmp_path / "run.yaml"
        config.write_text(yaml.safe_dump(sections))
        status = run_stats(["--config", str(config), *args])
        return status, capsys.readouterr().err

    return run


@pytest.fixture
def refused(run_config):
    """Runs a wrong configuration and returns the one line."""

    def run(changes, *args):
        status, err = run_config(changes, *args)
        assert status == 2, err
        (line,) = err.splitlines()
        assert line.startswith("neural-prep: ")
        return line

    return run


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data.path": "/not/there"}, "data.path: /not/there is not there"),
        ({"data.split": None}, "data.split is not set; "),
        ({"data.split": None}, "has the splits test, train, val"),
        ({"data.split": "tain"}, "data.split: 'tain' is no split of"),
        ({"data.layout": "mesp"}, "data.layout: 'mesp' is no layout; use meps"),
        ({"data.pth": "x"}, "data.pth is not a known key; the nearest is data.path"),
        ({"data.pth": None}, "data.pth is not a known key; the nearest is data.path"),
        ({"dta": {"path": "x"}}, "dta is not a known key; the nearest is data"),
        ({"dta": None}, "dta is not a known key; the nearest is data"),
        ({"trainer.device": 2}, "trainer.device is not a known key; the nearest is trainer.dev"),
        ({"model": 3}, "model is 3; expected a section with keys such as model."),
        ({"model.lags": [0]}, "model.lags: 0 is no lag; expected whole numbers from 1 to"),
        ({"model.lags": [1, -2]}, "model.lags: -2 is no lag"),
        ({"model.lags": [10**22]}, "is no lag; expected whole numbers from 1 to 2147483647"),
        ({"model.lags": [1, 1]}, "model.lags: 1 is given more than once"),
        ({"model.lags": ["x"]}, "model.lags: Expected int. Got value: x"),
        ({"model.parameter_weights": {"two": 1.0}}, "model.parameter_weights: "),
        ({"trainer.limit_predict_batches": 2}, "trainer.limit_predict_batches: 2"),
        ({"trainer.limit_predict_batches": 1}, "trainer.limit_predict_batches: 1"),
        ({"trainer.fast_dev_run": True}, "trainer.fast_dev_run: True would change"),
        ({"trainer.overfit_batches": 1}, "trainer.overfit_batches: 1 would change"),
        ({"trainer.precision": "16-mixed"}, "trainer.precision: '16-mixed' would change"),
        ({"trainer.strategy": "fsdp"}, "trainer.strategy: 'fsdp' cannot be used"),
        (
            {"trainer.accelerator": "tpu"},
            "trainer.accelerator: 'tpu' cannot be used; expected auto",
        ),
        ({"trainer.devices": 0}, "trainer.devices: 0 is no number of ranks; expected 1 to"),
        ({"trainer.devices": "many"}, "trainer.devices: 'many' is no number of ranks; expected"),
        ({"output": None}, "output.dir is not given"),
        ({"output.formats": ["jsn"]}, "output.formats: 'jsn' is not a format; use one of json"),
        ({"data.variables": ["v"] * 17}, "data.variables names 'v' more than once"),
        ({"data.variables": [f"v{i}" for i in range(20)]}, "gives 20 names"),
        ({"data.block_bytes": 0}, "data.block_bytes: 0 is too small"),
        ({"data.piece_steps": 0}, "data.piece_steps: 0 is too small"),
        ({"data.workers": -1}, "data.workers: -1 is too small"),
        ({"data.infinite": "drop"}, "data.infinite: Expected one of 'fail', 'missing'"),
        ({"data.start": "yesterday"}, "data.start: 'yesterday' is no date"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_wrong_values(refused, changes, said):
    assert said in refused(changes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data: {path: a, path: b}\n", "line 1: key 'path' is given twice; keep one"),
        ("data:\n  path: a\nmodel:\ndata:\n  path: b\n", "line 4: key 'data' is given twice"),
        ("data: [\n", "is no YAML: while parsing"),
        ("- data\n", "holds list, not sections"),
        ("model: {lags: [1]}\n", "data.path is not given; set it in the YAML file or with --data"),
    ],
    ids=["repeated key", "repeated section", "no YAML", "a list", "no path"],
)
def test_wrong_files(tmp_path, capsys, text, said):
    config = tmp_path / "run.yaml"
    config.write_text(text)
    assert run_stats(["--config", str(config), "--output.dir", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--data.pth", "x"], "--data.pth is not a known key; the nearest is data.path"),
        (["--optimizer", "Adam"], "--optimizer is not a known key"),
        (["--lr_scheduler", "StepLR"], "--lr_scheduler is not a known key"),
        (["--config", "/not/there.yaml"], "--config: /not/there.yaml cannot be read"),
        (["stray"], "unrecognized arguments: stray"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_arguments(refused, args, said):
    assert said in refused({}, *args)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path: a\npath: b\n", "line 2: key 'path' is given twice; keep one"),
        ("pth:\n", "data.pth is not a known key; the nearest is data.path"),
        ("[1]\n", "data is [1]; expected a section with keys such as data."),
    ],
    ids=["repeated key", "unknown key", "a list"],
)
def test_wrong_section_files(refused, tmp_path, text, said):
    (tmp_path / "section.yaml").write_text(text)
    assert said in refused({}, "--data", str(tmp_path / "section.yaml"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--config"], "--config: the file after it is missing"),
        (["--data", "--model.lags", "[1]"], "--data: the file after it is missing"),
        (["--seed_everything", "-1"], "seed_everything: -1 is no seed; expected 0 to"),
        (["--data.path="], "data.path is empty"),
        (["--trainer.devices", "[0,1]"], "trainer.devices: [0, 1] is a list, as of GPUs; on CPUs"),
        (["--trainer.devices", "2,3"], "trainer.devices: '2,3' is a list, as of GPUs; on CPUs"),
        (["--trainer.devices", "null"], "trainer.devices: 'null' is no number of ranks; expected"),
        (["--trainer.num_nodes", "0"], "trainer.num_nodes: 0 is no number of nodes; expected at"),
        (["--trainer.num_nodes", "2", "--trainer.devices", "2"], "nothing says where the other"),
        (
            ["--trainer.plugins", "{class_path: lightning.pytorch.plugins.DoublePrecision}"],
            "trainer.plugins: DoublePrecision would change the precision",
        ),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_options_that_cannot_be_followed(refused, args, said):
    assert said in refused({}, *args)


@pytest.mark.parametrize(
    ("built", "why"),
    [
        pytest.param("12.8", "no GPU is found", id="no GPU"),
        pytest.param(None, f"torch {torch.__version__} is built without CUDA", id="no CUDA"),
    ],
)
@pytest.mark.parametrize("accelerator", ["gpu", "cuda"])
def test_a_gpu_that_is_not_there(refused, monkeypatch, accelerator, built, why):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    line = refused({"trainer.accelerator": accelerator})
    assert f"trainer.accelerator: '{accelerator}' needs a GPU, but {why}; " in line
    assert line.endswith("leave it out, or set trainer.accelerator: cpu")


def test_weights_name_each_variable_without_one(refused):
    changes = {"model.parameter_weights": {0: 0.1, 2: 1.0}, "output.formats": ["neural_lam"]}
    line = refused(changes)
    assert "no weight for r_65 (level 65)" in line
    assert "pres_0g" not in line


def test_an_output_folder_that_cannot_be_written(refused, tmp_path):
    (tmp_path / "file").write_text("")
    line = refused({"output.dir": str(tmp_path / "file" / "out")})
    assert f"output.dir: {tmp_path}/file/out cannot be written to (Not a directory)" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_without_permission(refused, tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    assert "cannot be written to (Permission denied)" in refused({})


def test_samples_whose_grids_differ(refused, write_samples, tmp_path):
    root, _ = write_samples(tmp_path / "store", 1)
    other = root / "samples/train/nwp_2022020100_mbr000.npy"
    np.save(other, np.zeros((13, 4, 6, 3), np.float32))
    line = refused({"data.path": str(root)})
    assert "mbr000.npy has shape (13, 4, 5, 3)" in line
    assert f"{other} (13, 4, 6, 3)" in line


def test_a_truncated_sample(refused, write_samples, tmp_path):
    root, _ = write_samples(tmp_path / "store", 2)
    path = root / "samples/train/nwp_2022010100_mbr001.npy"
    path.write_bytes(path.read_bytes()[:-40])
    line = refused({"data.path": str(root)})
    assert f"{path} of " in line
    assert "is cut off: its header announces more" in line
    assert line.endswith("or count its steps as missing with data.corrupt: missing")


def test_empty_sections_mean_their_defaults(run_config, tmp_path, read_result):
    status, err = run_config({"model": None, "trainer": None})
    assert status == 0, err
    differences = read_result(tmp_path / "out")["groups"]["state"]["differences"]
    assert [difference["lag"] for difference in differences] == [1]


def test_a_lag_longer_than_every_trajectory_is_null(run_config, tmp_path, read_result):
    status, err = run_config({"model.lags": [1000]})
    assert status == 0, err
    (difference,) = read_result(tmp_path / "out")["groups"]["state"]["differences"]
    assert (difference["count"][0], difference["mean"][0], difference["std"][0]) == (0, None, None)
    document = (tmp_path / "out" / "statistics.json").read_text()
    assert "NaN" not in document
    assert json.loads(document)


def test_infinities_counted_as_missing(run_config, write_samples, tmp_path, read_result):
    def spoil(number, values):
        values[3, 0, 0, 1] = np.inf

    root, _ = write_samples(tmp_path / "store", 2, spoil=spoil)
    status, err = run_config({"data.path": str(root), "data.infinite": "missing"})
    assert status == 0, err
    state = read_result(tmp_path / "out")["groups"]["state"]
    assert state["missing"] == [0, 2, 0]
    # Its step is the first end of one pair and the second of another, in each of two samples.
    assert state["differences"][0]["missing"] == [0, 4, 0]
