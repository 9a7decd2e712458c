"""`neural-prep stats` on GPUs gives the CPU's result; each kind of device has blocks of its own."""

import numpy as np
import pytest
import torch

from neural_prep.engine import module
from neural_prep.engine.command import run_stats
from neural_prep.engine.journal import Journal
from neural_prep.errors import InputError
from neural_prep.stats.arithmetic import DeviceArithmetic

EXACT = ("variables", "count", "missing", "min", "max", "constant")
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
needs_gpu = pytest.mark.skipif(GPUS < 1, reason="needs a GPU")
needs_gpus = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")


@pytest.fixture
def run_example(run_job, example, read_result, tmp_path):
    """Runs the command on the example data set, and returns its result."""

    def run(accelerator, *args, ranks=1):
        out = tmp_path / f"{accelerator}-{ranks}"
        options = ["--data.path", example, "--data.split", "train", "--data.block_bytes", 500_000]
        options += ["--model.lags", [3, 1], "--trainer.accelerator", accelerator]
        ended = run_job(*options, "--output.dir", out, *args, ranks=ranks)
        assert ended.status == 0, ended.err
        return read_result(out)

    return run


def numbers(statistics, name):
    return np.array(statistics[name], float)  # null, which does not exist, becomes NaN


def assert_accurate(got, expected):
    """As `DESIGN.md` says: counts and ends exact, a std to 1e-12, a mean to 1e-12 of the larger."""
    for name in EXACT:
        assert got.get(name) == expected.get(name), name
    std = numbers(expected, "std")
    np.testing.assert_allclose(numbers(got, "std"), std, rtol=1e-12)
    mean = numbers(expected, "mean")
    off = abs(numbers(got, "mean") - mean)
    assert np.all((off <= 1e-12 * np.maximum(abs(mean), std)) | np.isnan(mean))


@needs_gpu
def test_the_example_on_a_gpu(run_example):
    got, expected = run_example("gpu"), run_example("cpu")
    assert got["source"]["fingerprint"] != expected["source"]["fingerprint"]
    assert got["groups"].keys() == expected["groups"].keys()
    for name, group in expected["groups"].items():
        assert_accurate(got["groups"][name], group)
        pairs = zip(got["groups"][name]["differences"], group["differences"], strict=True)
        for differences, expected_differences in pairs:
            assert_accurate(differences, expected_differences)


@needs_gpu
def test_the_piece_size_changes_no_bit_on_a_gpu(run_example):
    assert run_example("gpu") == run_example("cuda", "--data.piece_steps", 1)


@needs_gpus
def test_two_gpus_give_the_bits_of_one(run_example):
    assert run_example("gpu") == run_example("gpu", ranks=2)


def test_a_run_in_torch_gives_the_bits_of_the_compiled_loop(
    example, tmp_path, read_result, monkeypatch
):
    """On torch's CPU device, which is everywhere, and but for a zero's sign."""
    args = ["--data.path", str(example), "--data.split", "train", "--data.block_bytes", "500000"]
    args += ["--model.lags", "[3, 1]", "--data.piece_steps", "2", "--output.dir"]
    assert run_stats([*args, str(tmp_path / "loop")]) == 0
    used = []

    def in_torch(device, threads):
        used.append(DeviceArithmetic(device))
        return used[0]

    monkeypatch.setattr(module, "arithmetic_on", in_torch)
    assert run_stats([*args, str(tmp_path / "torch")]) == 0
    assert len(used) == 1
    assert read_result(tmp_path / "torch") == read_result(tmp_path / "loop")


def test_blocks_of_another_kind_of_device_are_refused(tmp_path):
    shapes, lengths, record = [(1, 1)], [1], np.zeros((8, 1, 1))
    earlier = Journal(tmp_path, {"device": "cpu"}, shapes, lengths)
    earlier.find()
    earlier.begin(1, rank=0)
    earlier.add((0, 0), bytes(32), record)
    earlier.close()
    with pytest.raises(InputError, match=r"blocks of another run: device was cpu, now gpu; "):
        Journal(tmp_path, {"device": "gpu"}, shapes, lengths).find()
