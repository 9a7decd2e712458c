"""Checks of sharded layers on Slurm's tasks, which are their ranks."""

import re
from pathlib import Path

CASES = Path(__file__).parents[2] / "configs" / "sharded_layers.yaml"


def test_on_two_nodes(cluster):
    command = '. .venv/bin/activate; exec neural-prep check "$@"'
    run = ("bash", "-c", command, "neural-prep", "--config", CASES, "--only", "clone-*")
    done = cluster.call("srun", "--nodes=2", "--ntasks=2", *run)
    assert done.status == 0, done.said
    assert len(re.findall(r"^clone-.* holds ", done.said, re.MULTILINE)) == 3
    assert len(re.findall("^3 cases hold on 2 ranks", done.said, re.MULTILINE)) == 1
