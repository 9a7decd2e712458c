"""Every shipped configuration of a run is understood; only its placeholder path is wrong."""

from pathlib import Path

import pytest

from neural_prep.engine.command import run_stats

FOLDER = Path(__file__).parents[2] / "configs"
CASES = {"sharded_layers.yaml", "coverage.yaml"}  # of `neural-prep check`; its own tests read them
CONFIGS = sorted(path for path in FOLDER.glob("*.yaml") if path.name not in CASES)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_shipped_configuration(config, tmp_path, capsys):
    args = ["--config", str(config), "--data.path", str(tmp_path / "none")]
    assert run_stats([*args, "--output.dir", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"neural-prep: data.path: {tmp_path / 'none'} is not there")


def test_there_are_configurations():
    assert {path.name for path in CONFIGS} >= {"meps.yaml", "mllam.yaml", "cf.yaml"}
