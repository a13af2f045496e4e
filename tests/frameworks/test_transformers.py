"""Thinwire in a real Trainer of Hugging Face: two ranks on CPUs, 30 steps, a checkpoint at 15, resumed to the bit."""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import equal_everywhere, flat, said, same
from ranks import on_ranks
from torch import Tensor, nn
from torch.utils.data import Dataset

import thinwire as tw

pytest.importorskip("transformers", reason="transformers is not installed; `make test-frameworks` installs it")
STEPS = 30


def prepare() -> None:
    """What torchrun leaves for Accelerate to find; the process group is there already."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


class Rows(Dataset[dict[str, Tensor]]):
    """Numbers that count up from a random one."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = torch.randint(0, 16, (1,), generator=torch.Generator().manual_seed(index))
        row = (start + torch.arange(12)) % 32
        return {"input_ids": row, "labels": row}


def learner(**how: Any) -> Any:
    """A GPT-2 of two small layers, made from a configuration."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415

    torch.manual_seed(3)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    if how.get("norm"):
        model.transformer.h[0].mlp = nn.Sequential(model.transformer.h[0].mlp, Norm())
    return model


class Norm(nn.Module):
    """Statistics that each rank keeps for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.flatten(0, 1)).view(x.shape)
        return out


def trainer(folder: str, model: Any, *callbacks: Any, **more: Any) -> Any:
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415

    quiet = {"report_to": "none", "disable_tqdm": True, "logging_steps": 10, "save_strategy": "steps"}
    basic: dict[str, Any] = {
        "use_cpu": True,
        "max_steps": STEPS,
        "save_steps": 15,
        "per_device_train_batch_size": 4,
        "seed": 5,
    }
    basic |= {"learning_rate": 1e-2, "dataloader_pin_memory": False}
    arguments = TrainingArguments(output_dir=folder, **{**quiet, **basic, **more})
    few = torch.utils.data.Subset(Rows(), range(8))
    return Trainer(model, arguments, train_dataset=Rows(), eval_dataset=few, callbacks=[*callbacks])


def thinwire(method: tw.Method, **more: Any) -> Any:
    return tw.integrations.transformers.Thinwire(method, min_size=0, **more)


def observer(thin: Any) -> Any:
    """A callback that looks at the wire after the last step, and at the model between rounds."""
    from transformers import TrainerCallback  # noqa: PLC0415

    class Observer(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == STEPS - 1:
                self.between = equal_everywhere(flat(more["model"]))
            if state.global_step == STEPS:
                self.state, self.stats = thin.wire.state_dict(), thin.wire.stats()
                self.buffers = [value.clone() for value in more["model"].buffers()]

    return Observer()


RESUMED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("ecq-sgd", {}, {"max_grad_norm": 0.1}),
    ("dgc:ratio=0.1", {}, {"gradient_accumulation_steps": 2, "optim": "sgd"}),
    ("powersgd", {}, {"bf16": True}),
    ("diloco:every=4,compressor=(topk:ratio=0.1)", {"norm": True}, {}),
    ("sparse-loco:every=4", {}, {"gradient_accumulation_steps": 2, "bf16": True}),
    ("deepsqueeze", {}, {"optim": "sgd"}),
]


def resumed(folder: str) -> list[dict[str, Any]]:
    """By method: a run of 30 steps, and one that begins at its checkpoint of step 15."""
    prepare()
    found = []
    for number, (name, how, more) in enumerate(RESUMED):
        place, method = f"{folder}/{number}", tw.method(name)
        whole, thin = learner(**how), thinwire(method)
        seen = observer(thin)
        trainer(place, whole, thin, seen, **more).train()
        again, thin = learner(**how), thinwire(method)
        looked = observer(thin)
        trainer(f"{place}/again", again, thin, looked, **more).train(resume_from_checkpoint=f"{place}/checkpoint-15")
        found.append({
            "name": name,
            "model": torch.equal(flat(whole), flat(again)),
            "memories": same(seen.state, looked.state),
            "buffers": same(seen.buffers, looked.buffers),
            "moved": not torch.equal(flat(whole), flat(learner(**how))),
            "equal": equal_everywhere(flat(whole)),
            "between": seen.between,
            "models": method.sync.of.models,
            "rounds": seen.stats["rounds"],
            "ratio": seen.stats["ratio"],
        })  # fmt: skip
    return found


@pytest.mark.timeout(600)
def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    for found in on_ranks(resumed, 2, str(tmp_path), timeout=500.0):
        for one in found:
            assert all(one[what] for what in ("model", "memories", "buffers", "moved", "equal")), one
            assert one["between"] != one["models"], one  # ranks differ between rounds if models are exchanged
            assert one["ratio"] > 1.2, one
            local = 4 if "every=4" in one["name"] else 1
            assert one["rounds"] == STEPS // local, one


def refusals(folder: str) -> dict[str, Any]:
    prepare()
    told: dict[str, Any] = {
        "string": said(lambda: tw.integrations.transformers.Thinwire("qsgd")),
        "served": said(lambda: thinwire(tw.methods.asgd())),
        "pairs": said(lambda: thinwire(tw.methods.ad_psgd())),
        "loss": said(lambda: thinwire(tw.methods.adacomm())),
        "wire": said(lambda: thinwire(tw.methods.qsgd()).wire),
    }
    short = {"max_steps": 4, "save_steps": 2, "logging_steps": 2}
    model = learner()
    trainer(f"{folder}/plain", model, **short).train()
    thin = thinwire(tw.methods.ecq_sgd())
    six = short | {"max_steps": 6}
    told["begins anew"] = said(
        partial(trainer(f"{folder}/anew", model, thin, **six).train, f"{folder}/plain/checkpoint-2")
    )
    told["equal"] = equal_everywhere(flat(model))
    saved = f"{folder}/anew/checkpoint-4"
    other = trainer(f"{folder}/other", learner(), thinwire(tw.methods.diloco(every=2)), **six)
    told["other method"] = said(partial(other.train, saved))
    dist.barrier()
    if dist.get_rank() == 1:
        os.remove(f"{saved}/thinwire-rank1.pt")
    dist.barrier()
    lost = trainer(f"{folder}/lost", learner(), thinwire(tw.methods.ecq_sgd()), **six)
    told["missing"] = said(partial(lost.train, saved))
    return told


def test_what_is_refused(tmp_path: Path) -> None:
    for told in on_ranks(refusals, 2, str(tmp_path), timeout=500.0):
        assert "write Thinwire(tw.method('qsgd'))" in told["string"]
        assert "write a loop of your own with tw.attach(model, optimizer, method)" in told["served"]
        assert "lets ranks be in different steps, but Trainer's meet in between" in told["pairs"]
        assert "follows the loss of every step, which Trainer does not tell" in told["loss"]
        assert "there is no wire before training" in told["wire"]
        assert told["begins anew"] == ""
        assert told["equal"]
        assert "the state was saved with another method" in told["other method"]
        assert "thinwire-rank1.pt is missing" in told["missing"]


def ending(folder: str) -> dict[str, Any]:
    """Two trainings of one Trainer, with TensorBoard; and one after which the best model is loaded."""
    prepare()
    os.environ["TENSORBOARD_LOGGING_DIR"] = f"{folder}/logs"
    model, thin = learner(), thinwire(tw.methods.ecq_sgd())
    short = {"max_steps": 4, "logging_steps": 2, "save_strategy": "no"}
    twice = trainer(f"{folder}/twice", model, thin, report_to="tensorboard", **short)
    twice.train()
    first = flat(model)
    twice.train()
    found: dict[str, Any] = {"twice": not torch.equal(first, flat(model)) and equal_everywhere(flat(model))}
    best, thin = learner(), thinwire(tw.methods.streaming_diloco(every=4, fragments=2, delay=1))
    more = {
        "max_steps": 7,
        "save_steps": 3,
        "eval_steps": 3,
        "eval_strategy": "steps",
        "load_best_model_at_end": True,
    }
    chosen = trainer(f"{folder}/best", best, thin, **more)
    chosen.train()
    loaded = learner().from_pretrained(chosen.state.best_model_checkpoint)
    found["best"] = torch.equal(flat(best), flat(loaded))
    return found


def test_training_twice_figures_in_tensorboard_and_the_best_model(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed; `make test-frameworks` installs it")
    assert on_ranks(ending, 2, str(tmp_path), timeout=500.0) == [{"twice": True, "best": True}] * 2
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    files = [*tmp_path.rglob("events.out.tfevents*")]
    assert files
    tags = set()
    for file in files:
        read = EventAccumulator(str(file))
        read.Reload()
        tags |= {*read.Tags()["scalars"]}
    assert {"train/loss", "train/thinwire/bytes_sent", "train/thinwire/ratio"} <= tags


def alone(folder: str) -> list[str]:
    prepare()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        trainer(folder, learner(), thinwire(tw.methods.qsgd()), max_steps=2, save_strategy="no").train()
    return [str(one.message) for one in heard if "Thinwire" in str(one.message)]


def test_one_process_trains_without_thinwire_and_says_so(tmp_path: Path) -> None:
    heard = on_ranks(alone, 1, str(tmp_path))[0]
    assert heard == ["Trainer runs one process, so that Thinwire has nothing to exchange"]


def uneven(folder: str) -> str:
    """Epochs in which rank 1 has fewer batches: what is said when training begins."""
    prepare()
    rows = torch.utils.data.Subset(Rows(), range(4 * 5))  # five batches for two ranks
    more = {"max_steps": -1, "num_train_epochs": 1, "accelerator_config": {"even_batches": False}}
    made = trainer(folder, learner(), thinwire(tw.method("int4")), **more)
    made.train_dataset = rows
    return said(made.train)


def test_uneven_epochs_are_refused_when_training_begins(tmp_path: Path) -> None:
    for words in on_ranks(uneven, 2, str(tmp_path)):
        assert words.startswith("ValueError: ranks have 3, 2 batches in an epoch"), words
