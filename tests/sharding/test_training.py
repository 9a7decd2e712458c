"""Training with sharded tensors: what tells wrong gradient conventions apart, and Lightning."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.checkpoint import checkpoint

from neural_prep.sharding import ShardTensor

pytestmark = pytest.mark.multigpu_static

SHAPE, CUT = (2, 3, 7), {"domain": 2}


def whole():
    return torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Head(nn.Module):
    """A cut layer, then a linear head on the mean over the cut dimension, which is replicated."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layer = nn.Conv1d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)
        self.double()

    def forward(self, x):
        return self.head(self.layer(x).mean(2)).square().mean()


def all_on_the_last(mesh):
    """Empty pieces on all other ranks."""
    return [0] * (mesh.size() - 1) + [SHAPE[2]]


@pytest.mark.parametrize("sizes", [None, all_on_the_last], ids=["even", "empty pieces"])
@pytest.mark.parametrize("run", [None, True, False], ids=["plain", "reentrant", "not reentrant"])
def test_a_head_on_the_mean_over_the_cut_dimension(distributed_mesh, run, sizes):
    serial, sharded = Head(), Head()
    one, other = whole().requires_grad_(), whole().requires_grad_()
    serial(one).backward()
    x = ShardTensor.scatter(other, distributed_mesh, CUT, sizes and [sizes(distributed_mesh)])
    loss = sharded(x) if run is None else checkpoint(sharded, x, use_reentrant=run)
    loss.backward()
    pairs = [(other, one), *zip(sharded.parameters(), serial.parameters(), strict=True)]
    for found, expected in pairs:
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-12, atol=1e-12)


class Training(LightningModule):
    """Trains the head on a batch that is cut, or not."""

    def __init__(self, mesh=None):
        super().__init__()
        self.mesh, self.net = mesh, Head()

    def training_step(self, batch, index):
        if self.mesh is not None:
            batch = ShardTensor.scatter(batch, self.mesh, CUT)
        return self.net(batch)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(whole(), batch_size=2)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice
def test_lightning_takes_a_sharded_loss(distributed_mesh, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)  # each rank has a trainer of its own
    modules = Training(distributed_mesh), Training()
    for module in modules:
        Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=3,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module)
    initial = Head()
    for found, expected, before in zip(*(m.parameters() for m in (*modules, initial)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert not torch.equal(expected, before)
