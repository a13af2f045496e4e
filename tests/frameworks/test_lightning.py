"""Thinwire in a real Lightning Trainer: two ranks on CPUs, 30 steps, a checkpoint at step 15, resumed bit for bit."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import equal_everywhere, flat, said, same
from ranks import on_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import thinwire as tw

pytest.importorskip("lightning", reason="lightning is not installed; `make test-frameworks` installs it")
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


RESUMED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("ecq-sgd", {}, {}),
    ("dgc:ratio=0.1", {}, {"gradient_clip_val": 0.1, "accumulate_grad_batches": 3}),
    ("ef-signsgd", {"manual": True}, {}),
    ("powersgd", {"adam": True}, {"precision": "bf16-mixed"}),
    ("diloco:every=4,compressor=(topk:ratio=0.1)", {"adam": True, "norm": True}, {}),
    ("sparse-loco:every=4", {"adam": True}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
    ("local-sgd:every=4", {}, {}),
    ("deepsqueeze", {}, {}),
]


def resumed(folder: str) -> list[dict[str, Any]]:
    """By method: a run of 30 steps, and one that begins at its checkpoint of step 15."""
    prepare()
    found = []
    for number, (name, how, more) in enumerate(RESUMED):
        place, method = f"{folder}/{number}", tw.method(name)
        whole, seen = learner(**how), observer()
        trainer(place, thinwire(method), seen, keeping(place), enable_checkpointing=True, **more).fit(whole, loader())
        again, looked = learner(**how), observer()
        trainer(place, thinwire(method), looked, **more).fit(again, loader(), ckpt_path=f"{place}/epoch=0.ckpt")
        begun = learner(**how)
        trainer(place, thinwire(method), **more).fit(begun, loader())
        found.append({
            "name": name,
            "model": torch.equal(flat(whole), flat(again)),
            "buffers": all(torch.equal(a, b) for a, b in zip(whole.buffers(), again.buffers(), strict=True)),
            "memories": same(seen.state, looked.state),
            "moved": not torch.equal(flat(whole), flat(learner(**how))),
            "repeats": torch.equal(flat(whole), flat(begun)),
            "equal": equal_everywhere(flat(whole)),
            "models": method.sync.of.models,
            "rounds": seen.stats["rounds"],
            "ratio": seen.stats["ratio"],
        })  # fmt: skip
    return found


@pytest.mark.timeout(600)
def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    for found in on_ranks(resumed, 2, str(tmp_path), timeout=500.0):
        for one in found:
            assert all(one[what] for what in ("model", "buffers", "memories", "moved", "repeats")), one
            assert one["equal"] or one["models"], one
    files = sorted(path.name for path in (tmp_path / "0" / "thinwire").iterdir())
    assert files == ["epoch=0.ckpt.rank0", "epoch=0.ckpt.rank1", "epoch=1.ckpt.rank0", "epoch=1.ckpt.rank1"]
