"""The numbers of docs/scale.md follow from `neural-prep plan` and from the rates on the page."""

import json
import re
from pathlib import Path

import pytest
from rich.filesize import decimal

from neural_prep.engine.forecast_report import duration
from neural_prep.engine.planning import run_plan
from neural_prep.engine.reading import READ_AHEAD

PAGE = (Path(__file__).parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")
NODES, CORES = (1, 16, 128), 32
SETTINGS = [("25 Gbit/s", "zstd"), ("100 Gbit/s", "zstd"), ("100 Gbit/s", "lz4")]


@pytest.fixture(scope="module")
def plans(tmp_path_factory, archives):
    """The plan of each number of nodes, of a store that is metadata alone."""
    path = archives.write_cf(tmp_path_factory.mktemp("scale") / "era5", arrays=300, steps=80_266)
    found = {}
    for nodes in NODES:
        args = ["--data.path", str(path), "--model.lags", "[6]", "--data.workers", "1", "--json"]
        args += ["--trainer.devices", str(CORES), "--trainer.num_nodes", str(nodes)]
        with pytest.MonkeyPatch.context() as patch:
            written = []
            patch.setattr("sys.stdout.write", written.append)
            assert run_plan(args) == 0
        found[nodes] = json.loads("".join(written))
    return found


def rate(what):
    """Bytes a second, or a plain number, from the page's table of rates."""
    number, unit = re.search(rf"^\| {what} \| ([\d.]+)( GB/s|) \|", PAGE, re.MULTILINE).groups()
    return float(number) * (1e9 if unit else 1)


def limits(plan, network, codec):
    """Seconds that each limit alone would take."""
    of_rank, of_all = plan["ranks"]["bytes"]["max"], plan["total"]["bytes"]
    return {
        "network": CORES * of_rank / rate("compression") / rate(f"network of a node, {network}"),
        "store": of_all / rate("compression") / rate("store, for all nodes together"),
        "decompression": of_rank / rate(f"decompression of {codec}, a core"),
        "arithmetic": of_rank / rate("arithmetic, a core"),
    }


def binding(plan, network, codec):
    """The limit that binds, and the seconds that it takes: a core decompresses and sums in turn."""
    alone = limits(plan, network, codec)
    alone["decompression"] += alone.pop("arithmetic")
    name = max(alone, key=alone.get)
    return name, alone[name]


def row(*cells):
    return f"| {' | '.join(map(str, cells))} |"


def test_what_is_read(plans):
    total = plans[1]["total"]
    size = f"{total['objects']:,} objects, {decimal(total['bytes'])}, {total['blocks']:,} blocks"
    assert size in PAGE


@pytest.mark.parametrize("nodes", NODES)
def test_shares(plans, nodes):
    ranks, memory = plans[nodes]["ranks"], plans[nodes]["memory"]
    expected = row(
        nodes,
        f"{ranks['count']:,}",
        f"{ranks['blocks']['max']:,}",
        decimal(ranks["bytes"]["max"]),
        decimal(plans[nodes]["total"]["again"]),
        ranks["records"]["max"],
        decimal(plans[nodes]["gathered"]),
        decimal(memory["total"]),
    )
    assert expected in PAGE


@pytest.mark.parametrize("nodes", NODES)
def test_limits(plans, nodes):
    slow, fast = (limits(plans[nodes], f"{gigabits} Gbit/s", "zstd") for gigabits in (25, 100))
    lz4 = limits(plans[nodes], "25 Gbit/s", "lz4")
    seconds = [slow["network"], fast["network"], slow["store"], slow["decompression"]]
    seconds += [lz4["decompression"], slow["arithmetic"]]
    assert row(nodes, *map(duration, seconds)) in PAGE


@pytest.mark.parametrize("nodes", NODES)
def test_what_binds(plans, nodes):
    found = [binding(plans[nodes], *setting) for setting in SETTINGS]
    cells = [f"{name}, {duration(seconds)}" for name, seconds in found]
    requests = plans[nodes]["total"]["objects"] / found[0][1]
    in_flight = requests * 0.05 / plans[nodes]["ranks"]["count"]
    assert row(nodes, *cells, f"{requests:,.0f}", f"{in_flight:.1f}") in PAGE
    ahead = READ_AHEAD // (721 * 1440 * 4)
    assert f"reads {decimal(READ_AHEAD)} ahead, {ahead} objects, where three would do" in PAGE
    assert in_flight < 3


def test_ten_times_that(plans):
    steps = 10 * 80_266
    steps_of_a_block = 64_000_000 // (721 * 1440 * 4)
    blocks = 300 * -(-steps // steps_of_a_block)
    assert f"{10 * plans[1]['total']['objects']:,} objects, {blocks:,} blocks" in PAGE
    assert f"15 steps of a variable, {decimal(15 * 721 * 1440 * 4)}" in PAGE
    assert steps_of_a_block == 15
    assert -(-80_266 // 15) == 5352
