"""Real ranks, started by the command itself and by torchrun: the same bits as one process."""

import json
import os

import numpy as np
import torch

LAGS = ("--model.lags", "[3,1]", "--data.block_bytes", "400000")


def test_example_is_the_same_on_any_number_of_ranks(run_job, read_result, example, tmp_path):
    results = {}
    for name, ranks, torchrun in [("one", 1, False), ("four", 4, False), ("torchrun", 3, True)]:
        args = ("--data.path", example, "--data.split", "train", *LAGS)
        done = run_job(*args, "--output.dir", tmp_path / name, ranks=ranks, torchrun=torchrun)
        assert done.status == 0, done.err
        results[name] = read_result(tmp_path / name)
        run = json.loads((tmp_path / name / "statistics.json").read_text())["run"]
        assert (run["ranks"], run["blocks"]) == (ranks, 12)
        assert run["bytes"] == 3_044_610  # every sample, flux, water and static value, once
    assert results["one"] == results["four"] == results["torchrun"]


def test_configured_run_writes_what_neural_lam_reads(run_job, read_result, tmp_path):
    done = run_job("--config", "configs/meps.yaml", "--output.dir", tmp_path, ranks=2)
    assert done.status == 0, done.err
    state = read_result(tmp_path)["groups"]["state"]
    flux = read_result(tmp_path)["groups"]["flux"]
    load = {
        name: torch.load(tmp_path / f"{name}.pt", weights_only=True).numpy()
        for name in ("parameter_mean", "parameter_std", "diff_mean", "diff_std", "flux_stats")
    }
    difference = state["differences"][0]
    assert difference["lag"] == 3
    expected = {
        "parameter_mean": state["mean"],
        "parameter_std": state["std"],
        "diff_mean": np.array(difference["mean"]) / state["std"],
        "diff_std": np.array(difference["std"]) / state["std"],
        "flux_stats": [flux["mean"][0], flux["std"][0]],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(load[name], np.float32(values), err_msg=name)
    weights = np.load(tmp_path / "parameter_weights.npy")
    assert weights.shape == (17,)
    assert weights[:2].tolist() == [np.float32(0.1)] * 2
    noise = [line for line in done.err.splitlines() if not line.startswith(("tests/data", "wrote"))]
    assert noise == []
    assert "toa_downwelling_shortwave_flux" in done.out


def test_tasks_of_slurm_are_ranks(start_job, read_result, example, tmp_path):
    args = ("--data.path", example, "--data.split", "train", *LAGS, "--trainer.num_nodes", "1")
    jobs = [
        start_job(*args, "--output.dir", tmp_path / "out", ranks=2, environment=slurm_task(task))
        for task in range(2)
    ]
    ended = [job.wait() for job in jobs]
    assert [done.status for done in ended] == [0, 0], ended
    assert ended[1].out == ended[1].err == ""  # rank 0 speaks
    state = read_result(tmp_path / "out")["groups"]["state"]
    assert state["count"] == [40_950] * 17


def test_tasks_of_slurm_that_are_not_the_ranks(run_job, example, tmp_path):
    args = ("--data.path", example, "--data.split", "train", "--output.dir", tmp_path / "out")
    done = run_job(*args, ranks=3, environment=slurm_task(0))
    (line,) = done.err.splitlines()
    assert done.status == 2
    assert line.startswith("neural-prep: trainer.devices: 3 ranks on 1 node, but srun started 2")


def slurm_task(task):
    """What srun tells a task of two on one node."""
    numbers = {"JOB_ID": os.getpid(), "STEP_ID": 0, "NTASKS": 2, "NNODES": 1, "NODEID": 0}
    numbers |= {"PROCID": task, "LOCALID": task, "STEP_NUM_TASKS": 2, "STEP_TASKS_PER_NODE": 2}
    texts = {"JOB_NAME": "statistics", "STEP_NODELIST": "localhost"}
    return {f"SLURM_{name}": str(value) for name, value in (numbers | texts).items()}
