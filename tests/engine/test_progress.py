"""Progress: a bar with rate and time left on a terminal, plain lines where there is none."""

import os
import pty
import re
import subprocess
import sys
import time

import pytest

from neural_prep.engine.command import run_stats
from neural_prep.engine.progress import ReadingProgress


@pytest.fixture
def big_enough(write_samples, tmp_path):
    root, _ = write_samples(tmp_path / "store", 4, steps=400, grid=(50, 60), features=6)
    return ["--data.path", str(root), "--data.split", "train", "--data.piece_steps", "1"]


def test_lines_without_a_terminal(big_enough, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("neural_prep.engine.progress._EVERY", 0.05)
    assert run_stats([*big_enough, "--output.dir", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().err.splitlines()
    form = r"\d+\.\d [kM]B of 115\.2 MB \(\d+ %\), [\d.]+ [kM]B/s, \d+ s left"
    assert [line for line in lines if re.fullmatch(form, line)]
    assert lines[-1].startswith("wrote statistics.json in ")


def test_bar_on_a_terminal(big_enough, tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "neural_prep.cli", "stats", *big_enough]
    process = subprocess.Popen(
        [*command, "--output.dir", str(tmp_path / "out"), "--trainer.devices", "2"],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    text = _read_all(ours)
    assert process.wait(timeout=60) == 0
    os.close(ours)
    assert "reading" in text
    assert "115.2/115.2 MB" in text
    assert text.count("wrote statistics.json") == 1


def _read_all(descriptor):
    parts = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # what Linux says where the other side has closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode(errors="replace")


def test_other_ranks_are_silent():
    class Elsewhere:
        is_global_zero = False

    ReadingProgress().on_waiting(Elsewhere(), None)  # nothing of the module is touched
