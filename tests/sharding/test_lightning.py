"""README's domain-parallel LightningModule: trained on two ranks, gone on with on three."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[2] / "README.md"
TRAIN = """
import sys

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from example import DomainParallel

ranks, epochs, before, after = sys.argv[1:]
torch.manual_seed(0)
layers = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.Conv2d(8, 3, 3)]
net = nn.Sequential(*layers)
fields = torch.randn(9, 3, 13, 8, dtype=torch.float64)
batches = DataLoader(TensorDataset(fields[:-1], fields[1:, :, 1:-1, 1:-1]), batch_size=4)
trainer = Trainer(
    accelerator="cpu",
    devices=int(ranks),
    strategy="ddp",
    use_distributed_sampler=False,
    gradient_clip_val=0.5,
    max_epochs=int(epochs),
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(DomainParallel(net.double()), batches, ckpt_path=before or None)
trainer.save_checkpoint(after)
"""


@pytest.fixture(scope="module")
def example():
    """The example's text."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if "class DomainParallel" in block]
    return found


@pytest.fixture
def folder(tmp_path, example):
    (tmp_path / "example.py").write_text(example)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def run(folder, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, timeout=120, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_example_itself_trains(folder):
    done = run(folder, "example.py")
    assert "`Trainer.fit` stopped: `max_epochs=3` reached." in done.stderr
    assert list(folder.glob("lightning_logs/version_0/checkpoints/*.ckpt"))


def test_a_checkpoint_of_two_ranks_goes_on_with_three(folder):
    run(folder, "train.py", "2", "2", "", "two.ckpt")
    run(folder, "train.py", "3", "4", "two.ckpt", "three.ckpt")
    run(folder, "train.py", "1", "4", "", "one.ckpt")
    found, expected = (
        torch.load(folder / f"{name}.ckpt", weights_only=False) for name in ("three", "one")
    )
    assert found["epoch"] == expected["epoch"] == 4
    for state in ("state_dict", "optimizer_states", "lr_schedulers"):
        torch.testing.assert_close(found[state], expected[state], rtol=1e-10, atol=1e-10)
