"""A small LightningModule, its data and its trainers, for tests in a world of ranks that is there already."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import thinwire as tw

STEPS, EPOCHS = 15, 2


def prepare() -> None:
    """What torchrun leaves for Lightning to find."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "here", "MASTER_ADDR": socket.gethostname()}
    os.environ |= {"MASTER_PORT": "29500"}  # the process group is there already


def learner(**how: Any) -> Any:
    """A LightningModule of three layers; `how` names what it does differently."""
    from lightning.pytorch import LightningModule  # noqa: PLC0415

    class Learner(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            norm = [nn.BatchNorm1d(24)] if how.get("norm") else []
            self.net = nn.Sequential(
                nn.Linear(16, 24), *norm, nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4)
            )
            self.automatic_optimization = not how.get("manual")
            self.broken = how.get("broken", -1)

        def training_step(self, data: list[Tensor], number: int) -> Tensor:
            x, y = data
            loss: Tensor = (self.net(x) - y).square().mean()
            if self.global_step == self.broken and self.trainer.global_rank == 1:
                loss = loss * float("nan")
            if not self.automatic_optimization:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            if how.get("adam"):
                return torch.optim.AdamW(self.parameters(), lr=0.01)
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    return Learner()


def loader(steps: int = STEPS) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2 * 8 * steps, 16, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :4].sin()), batch_size=8, shuffle=False)


def trainer(folder: str, *callbacks: Any, epochs: int = EPOCHS, **more: Any) -> Any:
    from lightning.pytorch import Trainer  # noqa: PLC0415

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    basic = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "max_epochs": epochs, "default_root_dir": folder}
    return Trainer(**{**basic, **quiet, "enable_checkpointing": False, "callbacks": [*callbacks], **more})


def thinwire(method: tw.Method, **more: Any) -> Any:
    return tw.integrations.lightning.Thinwire(method, min_size=0, **more)


def keeping(folder: str, **more: Any) -> Any:
    from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: PLC0415

    return ModelCheckpoint(folder, "{epoch}", save_top_k=-1, **more)


def observer() -> Any:
    """A callback that looks at the wire when training ends."""
    from lightning.pytorch import Callback  # noqa: PLC0415

    class Observer(Callback):  # type: ignore[misc]
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            thin = next(one for one in trainer.callbacks if type(one).__name__ == "Thinwire")
            self.state, self.stats = thin.wire.state_dict(), thin.wire.stats()

    return Observer()
