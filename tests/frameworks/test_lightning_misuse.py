"""What Thinwire refuses in a Lightning Trainer, each with the line to write, and checkpoints in unusual places."""

from __future__ import annotations

import os
import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightnings import keeping, learner, loader, observer, prepare, thinwire, trainer
from nets import equal_everywhere, flat, said, same
from ranks import on_ranks
from torch import Tensor

import thinwire as tw
from thinwire.core.method import METHODS

pytest.importorskip("lightning", reason="lightning is not installed; `make test-frameworks` installs it")


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            "asgd",
            "asgd lets ranks be in different steps, but Lightning's meet in between; write a loop of your own",
        ),
        ("ad-psgd", "ad-psgd lets ranks be in different steps"),
        ("cr-psgd", "cr-psgd says how large batches are, but Lightning does; write a loop of your own"),
    ],
)
def test_methods_for_which_lightning_has_no_room(method: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        thinwire(tw.method(method))


def test_arguments() -> None:
    with pytest.raises(TypeError, match=r"'qsgd' is a string; write Thinwire\(tw.method\('qsgd'\)\)"):
        thinwire("qsgd")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no wire before on_fit_start and after fit"):
        _ = thinwire(tw.methods.qsgd()).wire


def two_optimizers() -> Any:
    class Two(type(learner(manual=True))):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            first, *_, last = self.net
            return [torch.optim.SGD(part.parameters(), lr=0.05) for part in (first, last)]

        def training_step(self, data: list[Tensor], number: int) -> None:
            both = self.optimizers()
            for one in both:
                one.zero_grad()
            self.manual_backward((self.net(data[0]) - data[1]).square().mean())
            for one in both:
                one.step()

    return Two()


def refused(folder: str) -> dict[str, Any]:
    from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy  # noqa: PLC0415
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook  # noqa: PLC0415

    prepare()
    told: dict[str, Any] = {}
    qsgd, loco = tw.methods.qsgd(), tw.methods.diloco(every=2)
    fsdp = object.__new__(FSDPStrategy)  # Lightning refuses to make a Trainer of it without a GPU
    run = trainer(folder, thinwire(qsgd))
    told["fsdp"] = said(lambda: _setup(thinwire(qsgd), fsdp))
    hook = DDPStrategy(ddp_comm_hook=fp16_compress_hook)
    told["hook"] = said(lambda: trainer(folder, thinwire(qsgd), strategy=hook).fit(learner(), loader(2)))
    two = two_optimizers()
    run = trainer(folder, thinwire(qsgd), epochs=1)
    run.fit(two, loader(4))
    told["two optimizers"] = equal_everywhere(flat(two))
    told["two for models"] = said(lambda: trainer(folder, thinwire(loco)).fit(two_optimizers(), loader(2)))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        os.environ["WORLD_SIZE"] = "1"
        alone = learner()
        trainer(folder, thinwire(qsgd), strategy="auto", devices=1, epochs=1).fit(alone, loader(2))
        prepare()
    told["alone"] = [str(one.message) for one in heard if "nothing to exchange" in str(one.message)]
    broken = {}
    for name in ("ecq-sgd", "diloco:every=4"):
        module, seen = learner(broken=3), observer()
        trainer(folder, thinwire(tw.method(name)), seen, epochs=1).fit(module, loader(8))
        broken[name] = bool(flat(module).isfinite().all()) and seen.stats["steps_skipped"]
    told["broken"] = broken
    return told


def _setup(thin: Any, strategy: Any) -> None:
    class Bare:
        pass

    run: Any = Bare()
    run.strategy = strategy
    thin.setup(run, None, "fit")


@pytest.mark.timeout(600)
def test_one_sentence_each(tmp_path: Path) -> None:
    for rank, told in enumerate(on_ranks(refused, 2, str(tmp_path), timeout=500.0)):
        assert (
            'FSDPStrategy is not known to hold them so; write Trainer(strategy="ddp", callbacks=[Thin' in told["fsdp"]
        )
        assert "DDPStrategy has a ddp_comm_hook, and DDP takes one hook; write Trainer(" in told["hook"]
        assert told["two optimizers"]
        assert "configure_optimizers returns 2; write return tw.optim.Joined(first, second)" in told["two for models"]
        assert told["alone"] == ["Trainer runs one process, so that Thinwire has nothing to exchange"]
        # Gradients are broken everywhere, since all ranks see their mean; a rank's own steps only on that rank.
        assert told["broken"] == {"ecq-sgd": 1, "diloco:every=4": rank}


def files(folder: str) -> list[str]:
    dist.barrier()
    return sorted(path.name for path in Path(folder).rglob("*") if not path.is_dir())


def checkpoints(folder: str) -> dict[str, Any]:
    prepare()
    rank, method = dist.get_rank(), tw.methods.ecq_sgd()
    found: dict[str, Any] = {}
    kept = keeping(f"{folder}/kept", save_last="link")
    kept.save_top_k, kept.monitor = 1, None
    whole, seen = learner(), observer()
    run = trainer(folder, thinwire(method), seen, kept, enable_checkpointing=True)
    run.fit(whole, loader())
    found["pruned"] = files(f"{folder}/kept")
    run.save_checkpoint(f"{folder}/after/end.ckpt")
    run.save_checkpoint(f"{folder}/weights/end.ckpt", weights_only=True)
    found["after"], found["weights"] = files(f"{folder}/after"), files(f"{folder}/weights")
    # One more epoch: in the same trainer's words, from the link, and from the checkpoint that was made after fit.
    longer, seen = learner(), observer()
    trainer(folder, thinwire(method), seen, epochs=3).fit(longer, loader())
    for name, path in {"link": "kept/last.ckpt", "end": "after/end.ckpt"}.items():
        again, looked = learner(), observer()
        trainer(folder, thinwire(method), looked, epochs=3).fit(again, loader(), ckpt_path=f"{folder}/{path}")
        found[name] = torch.equal(flat(again), flat(longer)) and same(looked.state, seen.state)

    def resume(path: str, **more: Any) -> Any:
        module = learner()
        trainer(folder, thinwire(method, **more), epochs=3).fit(module, loader(), ckpt_path=f"{folder}/{path}")
        return flat(module)

    if rank == 0:
        shutil.copytree(f"{folder}/after", f"{folder}/lost")
        os.remove(f"{folder}/lost/thinwire/end.ckpt.rank1")
        shutil.copytree(f"{folder}/after", f"{folder}/mixed")
        shutil.copy(f"{folder}/kept/thinwire/epoch=1.ckpt.rank0", f"{folder}/mixed/thinwire/end.ckpt.rank0")
    dist.barrier()
    if rank == 1:
        shutil.copytree(f"{folder}/after", f"{folder}/torn")
        Path(f"{folder}/torn/thinwire/end.ckpt.rank1").write_bytes(b"PK\3\4 half a file")
    dist.barrier()
    found["torn"] = said(lambda: resume("torn/end.ckpt"))
    found["lost"] = said(lambda: resume("lost/end.ckpt"))
    found["mixed"] = said(lambda: resume("mixed/end.ckpt"))
    found["anew"] = equal_everywhere(resume("lost/end.ckpt", strict=False))
    wrong = thinwire(tw.methods.qsgd())
    found["other"] = said(
        lambda: trainer(folder, wrong, epochs=3).fit(learner(), loader(), ckpt_path=f"{folder}/after/end.ckpt")
    )
    plain = trainer(folder, epochs=1)
    plain.fit(learner(), loader())
    plain.save_checkpoint(f"{folder}/plain.ckpt")
    found["plain"] = equal_everywhere(resume("plain.ckpt"))
    # The same trainer once more: another wire, and the test in between leaves nothing behind.
    run.fit(learner(), loader())
    found["twice"] = run.state.finished
    return found


@pytest.mark.timeout(600)
def test_where_the_files_of_the_ranks_are(tmp_path: Path) -> None:
    for found in on_ranks(checkpoints, 2, str(tmp_path), timeout=500.0):
        assert found["pruned"] == ["epoch=1.ckpt", "epoch=1.ckpt.rank0", "epoch=1.ckpt.rank1", "last.ckpt"]
        assert found["after"] == ["end.ckpt", "end.ckpt.rank0", "end.ckpt.rank1"]
        assert found["weights"] == ["end.ckpt"]
        assert found["link"]
        assert found["end"]
        assert "lost/thinwire/end.ckpt.rank1 is missing" in found["lost"]
        assert "copy it from rank 1, or write Thinwire(method, strict=False)" in found["lost"]
        assert "was not written with" in found["mixed"]
        assert "torn/thinwire/end.ckpt.rank1 is damaged (" in found["torn"]
        assert found["anew"]
        assert "the state was saved with another method" in found["other"]
        assert found["plain"]
        assert found["twice"]
    assert on_ranks(fewer, 1, str(tmp_path), timeout=500.0) == [True]


def fewer(folder: str) -> bool:
    """Go on alone, with the mean of both ranks' residuals."""
    prepare()
    module = learner()
    run = trainer(folder, thinwire(tw.methods.ecq_sgd()), epochs=3, devices=1)
    run.fit(module, loader(), ckpt_path=f"{folder}/after/end.ckpt")
    return bool(flat(module).isfinite().all())


def test_every_method_is_taken_or_refused_with_the_line_to_write() -> None:
    told = {name: said(partial(thinwire, tw.method(name))) for name in METHODS}
    for name, sentence in told.items():
        method = METHODS[name]()
        taken = method.sync.batches is None and method.sync.staleness is not None and not method.exchange.served
        assert not sentence if taken else "write a loop of your own with tw.attach(" in sentence, (name, sentence)
