"""`neural-prep check`: its table, its exit status, and cases that fail without stopping others."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from neural_prep.checks.command import run_check
from neural_prep.world.environment import clean

FOLDER = Path(__file__).parent
SHIPPED = FOLDER.parents[1] / "configs" / "sharded_layers.yaml"
TORCHRUN = ("-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
INPUTS = "inputs: [{shape: [4, 3], cut: {domain: 0}}]"


@dataclass(frozen=True)
class Checked:
    """What the command has written, and how it ended."""

    status: int
    out: str
    err: str

    @property
    def verdicts(self):
        """Each case's verdict."""
        rows = re.findall(r"^(\S+) +\d+ .* (\w+) +\d+\.\d{3}$", self.out, re.MULTILINE)
        return dict(rows)

    def details(self, name):
        """What is said of a case below the table."""
        found = re.search(rf"^{name} \w+\n((?:  .*\n)+)", self.out, re.MULTILINE)
        return found[1] if found else ""


@pytest.fixture(scope="module")
def check(new_traces):
    """Runs the command in this folder, and sees to it that no process is left."""

    def run(*args, launcher=(), timeout=120):
        traces = new_traces()
        command = [sys.executable, *launcher, "-m", "neural_prep.cli", "check", *map(str, args)]
        environment = {**clean(os.environ), traces.NAME: traces.mark, "COLUMNS": "300"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(
            command, cwd=FOLDER, env=environment, timeout=timeout, check=False, **pipes
        )
        assert traces.none_left(), "processes are left"
        return Checked(done.returncode, done.stdout, done.stderr)

    return run


def write(folder, *functions, ranks=2):
    """A file that checks these functions of wrong_layers.py, and a right one after each."""
    path = folder / "cases.yaml"
    lines = [f"defaults: {{ranks: [{ranks}]}}", "cases:"]
    for name in functions:
        lines.append(f"  - {{name: {name}, function: wrong_layers.{name}, {INPUTS}}}")
        lines.append(f"  - {{name: after-{name}, function: wrong_layers.right, {INPUTS}}}")
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def wrong(check, tmp_path_factory):
    """A run in which everything that can go wrong does, in turn."""
    names = ("wrong_value", "raises", "out_of_step", "hangs", "sleeps", "dies")
    path = write(tmp_path_factory.mktemp("wrong"), *names)
    return check("--config", path, "--nproc-per-node", 2, "--timeout", 4)


def test_verdicts(wrong):
    found = {name: word for name, word in wrong.verdicts.items() if not name.startswith("after")}
    assert found == {
        "wrong_value": "differs",
        "raises": "raises",
        "out_of_step": "differs",
        "hangs": "hangs",
        "sleeps": "hangs",
        "dies": "dies",
    }
    assert (wrong.status, wrong.err) == (1, "")


def test_no_failing_case_stops_another(wrong):
    after = {name: word for name, word in wrong.verdicts.items() if name.startswith("after")}
    assert len(after) == 6
    assert set(after.values()) == {"holds"}
    assert re.fullmatch(r"6 of 12 cases hold on 2 ranks, in \d+\.\d s", wrong.out.splitlines()[-1])


def test_what_is_said_of_wrong_values(wrong):
    assert re.fullmatch(
        r"  rank 1: output differs by 1\.0e-03 at \[2, 1\]: found \S+, expected \S+; "
        r"allowed \S+; 1 of 6 values differ\n",
        wrong.details("wrong_value"),
    )


def test_what_is_said_of_an_exception(wrong):
    said = wrong.details("raises")
    assert said.startswith("  rank 1: raises RuntimeError: not on one\n")
    assert 'raise RuntimeError("not on one")' in said
    assert re.search(r"rank 0: was still running after \d s, at wrong_layers.py:\d+ in _rais", said)


def test_what_is_said_of_ranks_that_are_out_of_step(wrong):
    assert "different points: groups made: 1 on rank 0, 0 on rank 1" in wrong.details("out_of_step")


def test_what_is_said_of_a_hang(wrong):
    said = wrong.details("hangs")
    assert re.match(r"  rank 0: was still running after 4 s, at wrong_layers.py:\d+ in _hang", said)
    assert "rank 0: was still running after 4 s" in wrong.details("sleeps")
    assert "time.sleep(1000" in wrong.details("sleeps")


def test_what_is_said_of_a_death(wrong):
    said = wrong.details("dies")
    assert said.startswith("  rank 1: ended with exit code 3\n  no space left\n")


def test_torchrun(check, tmp_path):
    path = write(tmp_path, "wrong_value", "raises", "sleeps")
    done = check(*("--config", path, "--timeout", 3), launcher=(*TORCHRUN, "--nproc-per-node", "2"))
    assert done.status == 1
    assert done.verdicts == {
        "wrong_value": "differs",
        "after-wrong_value": "holds",
        "raises": "raises",
        "after-raises": "holds",
        "sleeps": "hangs",
    }
    assert re.search(r"rank 0: was still running after 3 s, at \S+ in _sleep", done.out)
    assert (
        "the run ended in sleeps: ranks that a launcher has started cannot be replaced; "
        "1 case did not run\n" in done.out
    )


def test_launched_ranks_with_a_wrong_file(capsys, monkeypatch):
    monkeypatch.setattr("neural_prep.checks.command._TURN", 0.0)
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK"):
        monkeypatch.setenv(name, "1")
    assert run_check(["--config", "none.yaml"]) == 2
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    assert run_check(["--config", "none.yaml"]) == 2
    assert capsys.readouterr().err.startswith("neural-prep: none.yaml cannot be read")


def test_cases_that_hold(check, tmp_path):
    path = tmp_path / "cases.yaml"
    path.write_text(
        f"cases:\n- {{name: a, function: wrong_layers.right, {INPUTS}}}\n"
        f"- {{name: own, function: wrong_layers.right, dtype: float64, {INPUTS}}}\n"
        f"- {{name: for-four, function: wrong_layers.right, ranks: [4], {INPUTS}}}"
    )
    done = check("--config", path, "--nproc-per-node", 1, "--dtype", "float32")
    assert (done.status, done.err, done.verdicts) == (0, "", {"a-float32": "holds"})
    header = " ".join(done.out.split("─")[0].split())
    assert header == (
        "output input gradient parameter case ranks error error gradient error verdict seconds"
    )
    last = done.out.splitlines()[-1]
    assert re.fullmatch(r"1 case holds on 1 rank, in \d+\.\d s; 2 left out", last)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--config", "none.yaml"], "none.yaml cannot be read (No such file or directory); give"),
        ([], "--config: not given, expected a file of cases"),
        (
            ["--config", SHIPPED, "--only", "clone-eve"],
            f"--only: no case of {SHIPPED} has a name like clone-eve; the nearest is clone-even",
        ),
        (
            ["--config", SHIPPED, "--nproc-per-node", "0"],
            "--nproc-per-node: found 0, expected a whole number above 0",
        ),
        (
            ["--config", SHIPPED, "--timeout", "-1"],
            "--timeout: found -1, expected a number above 0",
        ),
        (
            ["--config", SHIPPED, "--dtype", "float16"],
            "--dtype: Expected a one of ['float64', 'float32']",
        ),
        (
            ["--config", SHIPPED, "--nproc", "2"],
            "--nproc is not a known option; the nearest is --nproc-per-node",
        ),
    ],
    ids=["no-file", "nothing", "only", "ranks", "timeout", "dtype", "unknown"],
)
def test_wrong_input(capsys, monkeypatch, args, message):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert run_check(list(map(str, args))) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("neural-prep: ")
    assert message in said.err
    assert said.err.count("\n") == 1


def test_help(capsys):
    assert run_check(["--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--config", "--nproc-per-node", "--only", "--dtype", "--timeout", "--coverage"):
        assert option in text
