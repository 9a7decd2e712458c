"""What `neural-prep plan` says is what `neural-prep stats` then does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from neural_prep.data.layouts import open_source
from neural_prep.data.source import StoreOptions
from neural_prep.engine.command import run_stats
from neural_prep.engine.forecast import forecast
from neural_prep.engine.plan import Plan
from neural_prep.engine.planning import run_plan
from neural_prep.engine.reading import PieceReader


@pytest.fixture
def plan_of(capsys):
    """The document of `neural-prep plan --json`."""

    def run(*args):
        assert run_plan([*map(str, args), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """50 steps with a gap after 30, three levels, one of them read for nothing; and a field."""
    steps = np.array([*range(30), *range(40, 60)])
    generator = np.random.default_rng(0)
    dataset = xr.Dataset(
        {
            "t": (("time", "level", "lat"), generator.random((50, 3, 40), np.float32)),
            "orography": (("lat",), np.arange(40.0)),
        },
        coords={
            "time": np.datetime64("2020-01-01", "ns") + steps * np.timedelta64(6, "h"),
            "level": ("level", [1000, 500, 100], {"units": "hPa"}),
        },
    )
    path = tmp_path_factory.mktemp("plan") / "store.zarr"
    encoding = {"t": {"chunks": (2, 2, 16)}}
    dataset.to_zarr(path, zarr_format=3, consolidated=False, encoding=encoding)
    return path


OPTIONS = ("--data.block_bytes", "1000", "--model.lags", "[1,5]", "--data.workers", "2")


def test_document(plan_of, store):
    document = plan_of("--data.path", store, *OPTIONS, "--trainer.devices", "2", "--rate", "1kB/s")
    memory, ranks = document.pop("memory"), document.pop("ranks")
    assert memory.pop("total") == sum(memory.values())
    again = document["total"]["again"]
    seconds = (ranks["bytes"]["max"] + again) / 1000
    assert document == {
        "schema": "neural-prep/plan/1",
        "source": {"path": str(store), "layout": "cf", "split": None},
        "lags": [1, 5],
        "groups": {
            "state": {
                "variables": 3,
                "steps": 50,
                "trajectories": 2,
                "bytes": 50 * 3 * 40 * 4,
                # A row of chunks has 640 bytes of the first two levels, and 320 of the third.
                "blocks": 25 + 9,
                "pieces": 25 + 9,
                "objects": 25 * 2 * 3,
            },
            "static": {
                "variables": 1,
                "steps": 1,
                "trajectories": 1,
                "bytes": 40 * 8,
                "blocks": 1,
                "pieces": 1,
                "objects": 1,
            },
        },
        "total": {"bytes": 24_320, "blocks": 35, "pieces": 35, "objects": 151, "again": again},
        "gathered": document["gathered"],
        "time": {"rate": 1000, "seconds": seconds},
    }
    assert (ranks["count"], ranks["nodes"], ranks["threads"]) == (2, 1, 2)
    assert sum(ranks["blocks"].values()) == 35
    assert sum(ranks["bytes"].values()) == 24_320
    # The second rank begins inside the first series, where five steps were another rank's.
    assert ranks["again"] == {"min": 0, "max": again}
    assert again == 5 * 2 * 40 * 4


def test_tables(example, capsys):
    args = ["--data.path", str(example), "--data.split", "train", "--model.lags", "[3]"]
    assert run_plan([*args, "--data.workers", "1", "--trainer.devices", "2"]) == 0
    lines = capsys.readouterr().out.replace(str(example), "EXAMPLE").splitlines()
    assert lines == [
        "EXAMPLE: layout meps, split train",
        "group   variables  steps  trajectories  blocks  pieces  objects    bytes",
        "────────────────────────────────────────────────────────────────────────",
        "state          17    455             7       1       7        7   2.9 MB",
        "flux            1    260             4       1       4        4  93.6 kB",
        "static          5      1             1       4       7        7   2.6 kB",
        "",
        "2 ranks on 1 node, 1 thread each",
        "of a rank                  least     most",
        "─────────────────────────────────────────",
        "blocks                         1        5",
        "bytes                    96.2 kB   2.9 MB",
        "read again for lags      0 bytes  0 bytes",
        "records sent at the end        1        5",
        "",
        lines[15],
        "time: under 1 s at 400.0 MB/s a rank (assumed: --rate says what a rank of yours does)",
    ]
    assert lines[15].startswith("memory: at most 46")


def test_a_run_does_what_the_plan_said(plan_of, run_job, store, tmp_path):
    args = ("--data.path", store, *OPTIONS)
    document = plan_of(*args, "--trainer.devices", 2)
    done = run_job(*args, "--output.dir", tmp_path, ranks=2)
    assert done.status == 0, done.err
    written = json.loads((tmp_path / "statistics.json").read_text())
    total, run = document["total"], written["run"]
    assert (run["ranks"], run["blocks"]) == (document["ranks"]["count"], total["blocks"])
    assert run["bytes"] == total["bytes"] + total["again"]
    for name, group in document["groups"].items():
        assert group["variables"] == len(written["groups"][name]["variables"])
    state = document["groups"]["state"]
    assert (state["steps"], state["trajectories"]) == (50, 2)
    assert written["source"]["steps"] == 50
    assert written["source"]["trajectories"] == 2


@pytest.mark.parametrize("ranks", [1, 2, 7, 60, 200])
@pytest.mark.parametrize("piece_steps", [None, 1, 3])
@pytest.mark.parametrize("block_bytes", [1, 1000, 5000, 10**6])
def test_shares_are_what_ranks_read(store, ranks, piece_steps, block_bytes):
    source = open_source("auto", StoreOptions(str(store), block_bytes=block_bytes))
    plan = Plan(source, (1, 5), "fail", block_bytes)
    found = forecast(plan, ranks=ranks, nodes=1, threads=1, piece_steps=piece_steps)
    blocks, nbytes, again, pieces = [], [], [], 0
    for rank in range(ranks):
        runs = plan.runs(rank, ranks)
        reader = PieceReader(plan, runs, piece_steps=piece_steps, workers=1)
        spans = [piece.request.span for piece in reader if piece.request.span is not None]
        blocks.append(sum(len(run.blocks) for run in runs))
        nbytes.append(sum(span.nbytes for span in spans if not span.context))
        again.append(sum(span.nbytes for span in spans if span.context))
        pieces += sum(not span.context for span in spans)
    shares = found.shares
    assert (shares.blocks.min, shares.blocks.max) == (min(blocks), max(blocks))
    assert (shares.bytes.min, shares.bytes.max) == (min(nbytes), max(nbytes))
    assert (shares.again.min, shares.again.max) == (min(again), max(again))
    assert found.again == sum(again)
    assert sum(group.pieces for group in found.groups) == pieces


def test_a_run_s_configuration(plan_of, capsys, example, tmp_path):
    """Whatever `stats` takes may be there; what doesn't matter for the plan changes nothing."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "seed_everything: 7\n"
        "trainer: {devices: 3, num_nodes: 2, accelerator: cpu, logger: false}\n"
        "model: {lags: [3], parameter_weights: {2: 1.0}}\n"
        f"data: {{path: {example}, split: train, step: }}\n"
        "output: {dir: somewhere, formats: [json], resume: never}\n"
    )
    document = plan_of("--config", config)
    assert document["ranks"]["count"] == 6
    assert document["ranks"]["nodes"] == 2
    args = ["--output.dir=elsewhere", "--trainer.max_epochs", "-1", "--seed_everything", "1"]
    args += ["--trainer.devices", "4", "--trainer.fast_dev_run", "--model.lags=[1,2]"]
    changed = plan_of("-c", config, *args, "--output.formats+=neural_lam")
    assert changed["ranks"]["count"] == 8
    assert changed["lags"] == [1, 2]


def test_sections_of_a_run_s_configuration(plan_of, example, tmp_path):
    data, trainer = tmp_path / "data.yaml", tmp_path / "trainer.yaml"
    data.write_text(f"path: {example}\nsplit: train\n")
    trainer.write_text("devices: 3\nlogger: false\n")
    args = ("--data", data, "--model", "{lags: [2]}", "--output", "{dir: somewhere}")
    assert plan_of(*args, "--trainer", trainer)["ranks"]["count"] == 3
    inline = plan_of(*args, "--trainer", "{devices: 2, logger: false}", "--output=null")
    assert (inline["ranks"]["count"], inline["lags"]) == (2, [2])


def test_a_reader_that_has_seen_enough(example, tmp_path):
    """`neural-prep plan | head -1`: neither an error nor a traceback."""
    command = ["-m", "neural_prep.cli", "plan", "--data.split", "train", "--data.path"]
    for extra in ([], ["--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [sys.executable, *command, str(example), *extra],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        os.close(writing)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data.path": "nowhere"}, "data.path: nowhere is not there; the nearest folder"),
        ({"data.path": ""}, "data.path is empty; say which store to read"),
        ({"data.layout": "zar"}, "data.layout: 'zar' is no layout; use"),
        ({"data.block_bytes": 0}, "data.block_bytes: 0 is too small; expected at least 1"),
        ({"data.pth": "x"}, "--data.pth is not a known key; the nearest is data.path"),
        ({"data.region": "sea"}, "data.region: Expected one of 'all', 'interior'"),
        ({"model.lags": "[0]"}, "model.lags: 0 is no lag; expected whole numbers"),
        ({"model.lags": "[1,1]"}, "model.lags: 1 is given more than once"),
        ({"model.lag": "[1]"}, "--model.lag is not a known key; the nearest is model.lags"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_mistakes_are_said_as_by_a_run(capsys, example, tmp_path, changes, said):
    options = {"data.path": str(example), "data.split": "train"} | changes
    args = [f"--{name}={value}" for name, value in options.items()]
    assert run_plan(args) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"neural-prep: {said}")
    assert run_stats([*args, f"--output.dir={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "data.path is not given; set it in the YAML file or with --data.path"),
        (["--rate", "fast"], "--rate: 'fast' is no rate; expected one such as 2GB/s or 500MB/s"),
        (["--rate", "0MB/s"], "--rate: '0MB/s' is no rate"),
        (["--rte", "1GB/s"], "--rte is not a known key; the nearest is rate"),
        (["--trainer.devices", "-1"], "trainer.devices: -1 is no number of ranks; expected 1"),
        (["--trainer.devices", "two"], "trainer.devices: 'two' is no number of ranks; expected 1"),
        (["--trainer", "{devices: "], "trainer: Unable to load config '{devices: '"),
        (
            ["--trainer.num_nodes", "0"],
            "trainer.num_nodes: 0 of 1 ranks each is no number of",
        ),
        (["--trainer.devices", "99999999"], "trainer.devices: 99999999 is no number of ranks"),
        (["--trainer.num_nodes", "9999999"], "trainer.num_nodes: 9999999 of 1 ranks each is"),
        (["--trainer.num_nodes", "two"], "trainer.num_nodes: Expected int. Got value: two"),
        (["--config", "none.yaml"], "--config: none.yaml cannot be read"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_mistakes_of_a_plan(capsys, example, args, said):
    data = ["--data.path", str(example), "--data.split", "train"] if args else []
    assert run_plan([*data, *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"neural-prep: {said}")


ARCHIVE = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from neural_prep.cli import main
status = main(["plan", "--json", *sys.argv[1:]])
with open("/proc/self/status") as file:  # of this program alone, unlike getrusage's
    peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
json.dump({"status": status, "peak": peak, "opened": opened, "modules": [*sys.modules]}, sys.stderr)
"""


@pytest.fixture
def plan_archive():
    """What a fresh process says of a store and its ranks: its plan, and what that took."""

    def run(path, *args):
        done = subprocess.run(
            [sys.executable, "-c", ARCHIVE, "--data.path", str(path), *args],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        took = json.loads(done.stderr.splitlines()[-1])  # after warnings
        assert took["status"] == 0
        return json.loads(done.stdout), took

    return run


KINDS = ["cf", "cf of zarr 2", "mllam", "many objects", "many arrays"]


@pytest.fixture(scope="module", params=KINDS)
def archive(request, tmp_path_factory, archives):
    """A store of terabytes, as metadata alone: its folder, bytes, objects and arrays."""
    path = tmp_path_factory.mktemp("archive") / "store"
    hours, globe = archives.HOURS, 721 * 1440
    if request.param.startswith("cf"):
        zarr_format = 2 if "zarr 2" in request.param else 3
        archives.write_cf(path, arrays=4, steps=hours, zarr_format=zarr_format)
        return path, 4 * hours * globe * 4, 4 * hours, 4
    if request.param == "many arrays":
        archives.write_cf(path, arrays=300, steps=33_334)
        return path, 300 * 33_334 * globe * 4, 300 * 33_334, 300
    chunk = 63_784 if request.param == "mllam" else 2_774
    archives.write_mllam(path, steps=hours, points=63_784, features=63, chunk=chunk)
    return path, hours * 63_784 * 63 * 4, hours * -(-63_784 // chunk), 1


@pytest.mark.parametrize("ranks", [("1", "1"), ("32", "128")], ids=["alone", "4096"])
def test_a_plan_of_terabytes_opens_metadata_alone(plan_archive, archive, ranks):
    path, nbytes, objects, arrays = archive
    per_node, nodes = ranks
    args = ("--trainer.devices", per_node, "--trainer.num_nodes", nodes, "--model.lags", "[1,4]")
    document, took = plan_archive(path, *args)
    assert document["total"]["bytes"] == nbytes > 7e12
    assert document["total"]["objects"] == objects
    assert took["peak"] < 200e6
    heavy = {"torch", "lightning", "numba", "xarray", "pandas", "dask"}
    assert heavy.isdisjoint(took["modules"])
    opened = [Path(name).relative_to(path) for name in took["opened"] if name.startswith(str(path))]
    metadata = {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}
    values = [file for file in opened if file.name not in metadata]
    assert {file.parts[0] for file in values} <= {"time", "state_feature"}
    assert len(values) <= 2
    assert len(opened) < 10 * (arrays + 3)
