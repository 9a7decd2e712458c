"""The command's entry: quick help, versions, and names that are nearly right."""

import subprocess
import sys

import pytest

from neural_prep.cli import main
from neural_prep.engine.command import run_stats


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from neural_prep.cli import main; status = main(['--help']); "
        "heavy = {'torch', 'lightning', 'numpy', 'numba', 'zarr', 'xarray'} & set(sys.modules); "
        "sys.exit(status or ', '.join(heavy) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "stats       compute the training statistics of a store" in done.stdout
    assert "plan        show what that takes, without reading data" in done.stdout
    assert "check       check sharded layers against their serial twins" in done.stdout


@pytest.mark.parametrize(
    ("args", "status", "out", "err"),
    [
        (["--version"], 0, "neural-prep 0.1.0\n", ""),
        ([], 2, "usage: neural-prep COMMAND", ""),
        (["stat"], 2, "", "'stat' is no command; the nearest is stats"),
    ],
    ids=["version", "nothing", "misspelt"],
)
def test_entry(capsys, args, status, out, err):
    assert main(args) == status
    said = capsys.readouterr()
    assert out in said.out
    assert err in said.err


def test_options_of_stats(capsys):
    assert run_stats(["--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--data.path", "--model.lags", "--output.dir", "--trainer.num_nodes"):
        assert option in text
    for option in ("--optimizer", "--lr_scheduler", "--ckpt_path"):
        assert option not in text
    assert "Distances of the two ends of a difference, in steps" in text
