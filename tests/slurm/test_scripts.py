"""Batch scripts are short, and Bash can read them."""

import subprocess
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "slurm").glob("*.sbatch"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_batch_scripts(script):
    text = script.read_text()
    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) <= 100
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stderr) == (0, "")
    code = text.find("\nset -")  # sbatch reads no directive after the first command
    assert 0 <= text.rfind("#SBATCH") < code
