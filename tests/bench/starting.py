"""What starting takes: the help, and the example's statistics beside bare Lightning."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

from outcome import Section
from running import COMMAND, environment, take_turns
from stores import Shelf

HELP, TIMES_LIGHTNING = 1.0, 1.5
_ROOT = Path(__file__).parents[2]
_BARE = """\
from lightning.pytorch import LightningModule, Trainer

class Nothing(LightningModule):
    def predict_step(self, batch):
        pass

if __name__ == "__main__":
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = Trainer(accelerator="cpu", strategy="ddp", devices=2, **quiet)
    trainer.predict(Nothing(), [0, 0], return_predictions=False)
"""


def measure(shelf: Shelf, args: Namespace) -> list[Section]:
    """Wall times of whole processes, the best of all rounds."""
    section = Section("Starting: seconds of the best round")
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(_BARE)
        example = ["stats", "--config", "configs/meps.yaml", "--output.dir", f"{folder}/out"]
        contenders = {
            "neural-prep --help": partial(_run, *COMMAND, "--help"),
            "import torch and Lightning": partial(_run, "-c", "import torch, lightning.pytorch"),
            "Lightning, 2 ranks that do nothing": partial(_run, str(bare)),
            "stats of the example, 2 ranks": partial(_run, *COMMAND, *example),
        }
        contenders["stats of the example, 2 ranks"]()  # compiles where that is still to be done
        seconds = {who: min(found) for who, found in take_turns(contenders, args.repeat).items()}
    section.rows += [{"what": who, "s": found} for who, found in seconds.items()]
    shown, _, lightning, example_seconds = seconds.values()
    section.hold("seconds of --help", HELP, "neural-prep", shown, least=False)
    times = example_seconds / lightning
    section.hold("example, times bare Lightning", TIMES_LIGHTNING, "stats", times, least=False)
    return [section]


def _run(*command: str) -> float:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=_ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {done.stderr}")
    return time.monotonic() - begun
