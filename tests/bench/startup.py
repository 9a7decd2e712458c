"""Start-up of the commands, beside imports alone and beside a Lightning program that does nothing.

    python tests/bench/startup.py

`neural-prep --help` is to take under 1 s, and `neural-prep stats` on the example under 1.5 times
what importing torch and Lightning takes together with Lightning's start of as many ranks. Rounds
are interleaved, so that a machine that others use slows all alike; the best of each counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from memory import run_watched

BOUND = 1.5
ROOT = Path(__file__).parents[2]
IMPORTS = "import torch, lightning.pytorch"
# What is left of a program when nothing is read or computed: imports, ranks, their rendezvous, and
# an epoch of one batch.
IDLE = """
import sys
import torch
from lightning.pytorch import LightningModule, Trainer

class Idle(LightningModule):
    def predict_step(self, batch, batch_idx):
        return None

ranks = int(sys.argv[1])
trainer = Trainer(
    accelerator="cpu",
    devices=ranks,
    strategy="ddp" if ranks > 1 else "auto",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=False,
)
trainer.predict(Idle(), [0], return_predictions=False)
"""


def commands(folder: Path) -> dict[str, list[str]]:
    """What is timed, by name."""
    idle = folder / "idle.py"
    idle.write_text(IDLE)
    neural_prep = [sys.executable, "-m", "neural_prep.cli"]
    found = {
        "nothing": [sys.executable, "-c", "pass"],
        "neural-prep --help": [*neural_prep, "--help"],
        "imports": [sys.executable, "-c", IMPORTS],
    }
    for ranks in (1, 2):
        stats = [*neural_prep, "stats", "--config", str(ROOT / "configs/meps.yaml")]
        stats += ["--data.path", str(ROOT / "tests/data/meps_example")]
        stats += ["--output.dir", str(folder / "out"), "--trainer.devices", str(ranks)]
        found[f"idle, {ranks} ranks"] = [sys.executable, str(idle), str(ranks)]
        found[f"stats, {ranks} ranks"] = stats
    return found


def main() -> None:
    """Times all commands, then prints seconds, ratios and bounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="rounds, of which the best counts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = commands(Path(temporary))
        seconds: dict[str, list[float]] = {name: [] for name in found}
        for turn in range(args.repeat + 1):
            for name, command in found.items():
                took, _ = run_watched(command, dict(os.environ))
                if turn:  # the first compiles, and fills the page cache
                    seconds[name].append(took)
    for name, each in seconds.items():
        print(f"{name:20} {min(each):6.2f} ({max(each):.2f}) s")
    best = {name: min(each) for name, each in seconds.items()}
    _judge("neural-prep --help", best["neural-prep --help"], "s", 1.0)
    for ranks in (1, 2):
        ratio = best[f"stats, {ranks} ranks"] / best[f"idle, {ranks} ranks"]
        _judge(f"stats beside idle, {ranks} ranks", ratio, "times", BOUND)
    _judge(
        "stats of 1 rank beside imports", best["stats, 1 ranks"] / best["imports"], "times", BOUND
    )


def _judge(what: str, value: float, unit: str, bound: float) -> None:
    print(f"{what}: {value:.2f} {unit}: {'holds' if value < bound else 'misses'} {bound:g}")


if __name__ == "__main__":
    main()
