"""Thinwire in a real Lightning Trainer: two ranks on CPUs, 30 steps, a checkpoint at step 15, resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightnings import EPOCHS, keeping, learner, loader, observer, prepare, thinwire, trainer
from nets import equal_everywhere, flat, said, same
from ranks import on_ranks
from torch.utils.data import DataLoader, DistributedSampler

import thinwire as tw

pytest.importorskip("lightning", reason="lightning is not installed; `make test-frameworks` installs it")
RESUMED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("ecq-sgd", {}, {}),
    ("dgc:ratio=0.1", {}, {"gradient_clip_val": 0.1, "accumulate_grad_batches": 3}),
    ("ef-signsgd", {"manual": True}, {}),
    ("powersgd", {"adam": True}, {"precision": "bf16-mixed"}),
    ("diloco:every=4,compressor=(topk:ratio=0.1)", {"adam": True, "norm": True}, {}),
    ("sparse-loco:every=5", {"adam": True}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
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
            "rounds": seen.stats["rounds"],
            "ratio": seen.stats["ratio"],
        })  # fmt: skip
    return found


@pytest.mark.timeout(600)
def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    for found in on_ranks(resumed, 2, str(tmp_path), timeout=500.0):
        for one in found:
            assert all(one[what] for what in ("model", "buffers", "memories", "moved", "repeats", "equal")), one
            assert one["ratio"] > 3 or one["name"].startswith("local-sgd"), one
    files = sorted(path.name for path in (tmp_path / "0" / "thinwire").iterdir())
    assert files == ["epoch=0.ckpt.rank0", "epoch=0.ckpt.rank1", "epoch=1.ckpt.rank0", "epoch=1.ckpt.rank1"]


def plain(method: tw.Method) -> torch.Tensor:
    """The same training in a loop of one's own, with the sampler that Lightning makes."""
    module, dataset = learner(), loader().dataset
    (optimizer,), (scheduler,) = module.configure_optimizers()
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, dist.get_world_size(), dist.get_rank(), shuffle=True, seed=0
    )
    with tw.attach(module, optimizer, method, min_size=0):
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for x, y in DataLoader(dataset, batch_size=8, sampler=sampler):
                optimizer.zero_grad()
                (module.net(x) - y).square().mean().backward()
                optimizer.step()
            scheduler.step()
    return flat(module)


def beside_a_plain_loop(folder: str) -> list[float]:
    prepare()
    found = []
    for name in ("ecq-sgd", "diloco:every=5"):
        module = learner()
        trainer(folder, thinwire(tw.method(name))).fit(module, loader())
        found.append(float((flat(module) - plain(tw.method(name))).abs().max()))
    return found


@pytest.mark.timeout(600)
def test_lightning_trains_as_a_plain_loop_does(tmp_path: Path) -> None:
    assert on_ranks(beside_a_plain_loop, 2, str(tmp_path), timeout=500.0) == [[0.0, 0.0]] * 2


def uneven(folder: str) -> str:
    """Rank 0 has batches more than rank 1: what is said before the first one."""
    prepare()
    mine = torch.utils.data.Subset(loader().dataset, range(8 * (4 if dist.get_rank() else 7)))
    fitted = trainer(folder, thinwire(tw.method("int4")), use_distributed_sampler=False)
    return said(lambda: fitted.fit(learner(), DataLoader(mine, batch_size=8)))


def test_uneven_epochs_are_refused_before_the_first_batch(tmp_path: Path) -> None:
    for words in on_ranks(uneven, 2, str(tmp_path)):
        assert words.startswith("ValueError: ranks have 7, 4 batches in an epoch, and Lightning itself"), words
