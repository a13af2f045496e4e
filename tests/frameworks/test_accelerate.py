"""Accelerate: two ranks on CPUs, 30 steps, a state at 15, resumed bit for bit."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import equal_everywhere, flat, said, same
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils.data import DataLoader, TensorDataset

import thinwire as tw

pytest.importorskip("accelerate", reason="accelerate is not installed; `make test-frameworks` installs it")
STEPS, SAVED_AT = 30, 15


def prepare() -> None:
    """What torchrun leaves for Accelerate to find; the process group is there already."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "true"}


class Run:
    """A script that uses Accelerate: prepare, one line of thinwire, and a loop."""

    def __init__(
        self, method: tw.Method | None, *, accumulate: int = 1, bf16: bool = False, clip: float = 0.0
    ) -> None:
        from accelerate import Accelerator  # noqa: PLC0415
        from accelerate.state import AcceleratorState, GradientState  # noqa: PLC0415

        AcceleratorState._reset_state()  # the precision of a run before this one
        GradientState._reset_state()
        self.clip, self.accumulate = clip, accumulate
        self.accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, mixed_precision="bf16" if bf16 else "no"
        )
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 24), nn.Linear(24, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(2 * 8 * STEPS * accumulate, 16, generator=generator)
        loader = DataLoader(TensorDataset(x, x[:, :4].sin()), batch_size=8)
        prepared = self.accelerator.prepare(model, optimizer, scheduler, loader)
        self.model, self.optimizer, self.scheduler, self.loader = prepared
        self.wire = self.attach(method) if method is not None else None
        self.between = True

    def attach(self, method: tw.Method) -> tw.Wire:
        found = tw.integrations.accelerate.attach(self.accelerator, self.model, self.optimizer, method, min_size=0)
        assert isinstance(found, tw.Wire)
        return found

    def train(self, start: int, stop: int, save: str = "") -> None:
        """Take these steps of the run."""
        for number, (x, y) in enumerate(self.loader):
            step = number // self.accumulate
            if not start <= step < stop:
                continue
            with self.accelerator.accumulate(self.model):
                loss = (self.model(x).float() - y).square().mean()
                self.accelerator.backward(loss)
                if self.clip and self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            if self.accelerator.sync_gradients and step == SAVED_AT - 1:
                self.between = equal_everywhere(flat(self.model))
                if save:
                    self.accelerator.save_state(save)

    def all(self) -> tuple[Tensor, list[Tensor], Any]:
        """Parameters, buffers and memories."""
        assert self.wire is not None
        return flat(self.model), [b.clone() for b in self.model.buffers()], self.wire.state_dict()


RESUMED: list[tuple[str, dict[str, Any]]] = [
    ("ecq-sgd", {}),
    ("dgc:ratio=0.1", {"accumulate": 2, "clip": 0.1}),
    ("powersgd", {"bf16": True}),
    ("diloco:every=4,compressor=(topk:ratio=0.1)", {"accumulate": 2}),
    ("sparse-loco:every=4", {"bf16": True}),
    ("deepsqueeze", {}),
]


def resumed(folder: str) -> list[dict[str, Any]]:
    prepare()
    found = []
    for number, (name, how) in enumerate(RESUMED):
        method, place = tw.method(name), f"{folder}/{number}"
        whole = Run(method, **how)
        whole.train(0, STEPS, place)
        again = Run(method, **how)
        again.accelerator.load_state(place)
        again.train(SAVED_AT, STEPS)
        assert whole.wire is not None
        assert again.wire is not None
        one = {
            "name": name,
            "resumed": same(whole.all(), again.all()),
            "models": method.sync.of.models,
            "between": whole.between,
            "rounds": whole.wire.stats()["rounds"],
            "files": sorted(path.name for path in Path(place).glob("thinwire*")),
        }
        whole.wire.detach()
        again.wire.detach()
        found.append(one)
    return found


@pytest.mark.timeout(600)
def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    for found in on_ranks(resumed, 2, str(tmp_path), timeout=500.0):
        for one in found:
            assert one["resumed"], one
            assert one["between"] != one["models"], one  # ranks differ between rounds if models are exchanged
            assert one["rounds"] == STEPS // (4 if "every=4" in one["name"] else 1), one
            assert one["files"] == ["thinwire-rank0.pt", "thinwire-rank1.pt"]


def refusals(folder: str) -> dict[str, Any]:
    prepare()
    attach = tw.integrations.accelerate.attach
    run, rank = Run(None), dist.get_rank()
    of = (run.accelerator, run.model, run.optimizer)
    run.accelerator.save_state(f"{folder}/plain")
    told: dict[str, Any] = {
        "string": said(lambda: attach(*of, "qsgd")),
        "served": said(lambda: attach(*of, tw.methods.asgd())),
        "batches": said(lambda: attach(*of, tw.methods.cr_psgd())),
        "order": said(lambda: attach(run.model, run.accelerator, run.optimizer, tw.methods.qsgd())),
        "bare": said(lambda: attach(run.accelerator, run.model.module, run.optimizer, tw.methods.qsgd())),
    }
    hooked = Run(None)
    hooked.model.register_comm_hook(None, allreduce_hook)
    told["hook"] = said(lambda: attach(hooked.accelerator, hooked.model, hooked.optimizer, tw.methods.qsgd()))
    wire = attach(*of, tw.methods.ecq_sgd(), min_size=0)
    told["twice"] = said(lambda: attach(*of, tw.methods.qsgd()))
    told["plain"] = said(partial(run.accelerator.load_state, f"{folder}/plain"))
    run.train(0, 3)
    run.accelerator.save_state(f"{folder}/whole")
    run.accelerator.load_state(f"{folder}/whole")
    run.train(3, 5)
    dist.barrier()
    if rank == 1:
        Path(f"{folder}/whole/thinwire-rank1.pt").write_bytes(b"nonsense")
    dist.barrier()
    told["damaged"] = said(partial(run.accelerator.load_state, f"{folder}/whole"))
    dist.barrier()
    if rank == 1:
        Path(f"{folder}/whole/thinwire-rank1.pt").unlink()
    dist.barrier()
    told["missing"] = said(partial(run.accelerator.load_state, f"{folder}/whole"))
    wire.detach()
    wire = attach(*of, tw.methods.qsgd(), min_size=0)  # the same DDP, and the same files, with another method
    run.train(5, 8)
    run.accelerator.save_state(f"{folder}/later")
    told["again"] = [wire.stats()["rounds"] == 3, equal_everywhere(flat(run.model)), wire.method.id]
    wire.detach()
    wire = attach(*of, tw.methods.local_sgd(every=2), min_size=0)
    run.train(8, 11)
    told["local"] = [wire.stats()["rounds"] == 1, equal_everywhere(flat(run.model))]
    wire.detach()
    run.train(11, 12)  # DDP exchanges again: models stay as far apart as they are
    told["files"] = sorted(path.name for path in Path(f"{folder}/later").glob("thinwire*"))
    return told


def test_what_is_refused_and_attaching_again(tmp_path: Path) -> None:
    for told in on_ranks(refusals, 2, str(tmp_path), timeout=500.0):
        assert "write attach(accelerator, model, optimizer, tw.method('qsgd'))" in told["string"]
        assert "write a loop of your own with tw.attach(model, optimizer, method)" in told["served"]
        assert "says how large batches are, but Accelerate does" in told["batches"]
        assert "write attach(accelerator, model, optimizer, method)" in told["order"]
        assert "write model, optimizer = accelerator.prepare(model, optimizer)" in told["bare"]
        assert "write DistributedDataParallelKwargs() without comm_hook" in told["hook"]
        assert "this optimizer is attached already" in told["twice"]
        assert "was saved without thinwire; write accelerator.load_state(...) before" in told["plain"]
        assert "thinwire-rank1.pt is damaged" in told["damaged"]
        assert "thinwire-rank1.pt is missing" in told["missing"]
        assert told["again"] == [True, True, "qsgd"]
        assert told["local"] == [True, False]
        assert told["files"] == ["thinwire-rank0.pt", "thinwire-rank1.pt"]


def held(wire: tw.Wire) -> float:
    """How large the residuals of this rank are."""
    (state,) = wire.state_dict().values()
    return sum(float(part.abs().sum()) for part in tensors(state["tensors"]))


def tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree] if tree.is_floating_point() else []
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [part for one in inside for part in tensors(one)]


def saved_by_three(folder: str) -> float:
    prepare()
    run = Run(tw.methods.ecq_sgd())
    run.train(0, 5)
    run.accelerator.save_state(folder)
    assert run.wire is not None
    return held(run.wire)


def loaded_by_two(folder: str) -> list[Any]:
    prepare()
    found: list[Any] = []
    for on_resize in ("mean", "reset", "error"):
        run = Run(None)
        of = (run.accelerator, run.model, run.optimizer, tw.methods.ecq_sgd())
        wire = tw.integrations.accelerate.attach(*of, min_size=0, on_resize=on_resize)
        error = said(partial(run.accelerator.load_state, folder))
        found.append([error, held(wire), equal_everywhere(flat(run.model))])
        run.train(5, 7)
        found[-1].append(equal_everywhere(flat(run.model)))
        wire.detach()
    return found


def test_another_number_of_ranks(tmp_path: Path) -> None:
    before = on_ranks(saved_by_three, 3, str(tmp_path), timeout=500.0)
    assert min(before) > 0
    for mean, reset, error in on_ranks(loaded_by_two, 2, str(tmp_path), timeout=500.0):
        assert mean[0] == reset[0] == ""
        assert 0 < mean[1] < 2 * max(before)
        assert reset[1] == 0
        assert "saved on 3 ranks, loaded on 2" in error[0]
        assert all(equal for one in (mean, reset, error) for equal in one[2:])


def alone() -> list[Any]:
    prepare()
    import warnings  # noqa: PLC0415

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        run = Run(None)
        wire = tw.integrations.accelerate.attach(run.accelerator, run.model, run.optimizer, tw.methods.qsgd())
    run.train(0, 2)
    return [wire, [str(one.message) for one in heard if "thinwire" in str(one.message)]]


def test_one_process_trains_without_thinwire_and_says_so() -> None:
    wire, heard = on_ranks(alone, 1)[0]
    assert wire is None
    assert heard == ["Accelerate runs one process, so that thinwire has nothing to exchange"]


def several() -> list[Any]:
    """Two optimizers share the model, and the loop steps both."""
    from accelerate import Accelerator  # noqa: PLC0415
    from accelerate.state import AcceleratorState, GradientState  # noqa: PLC0415

    prepare()
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))
    parts = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.01)]
    prepared, first, second = accelerator.prepare(model, *parts)
    told = said(lambda: tw.integrations.accelerate.attach(accelerator, prepared, first, tw.methods.int4()))
    rounds = []
    for name in ("int4", "local-sgd:every=5"):
        method = tw.method(name)
        wire = tw.integrations.accelerate.attach(accelerator, prepared, [first, second], method, min_size=0)
        assert wire is not None
        for step in range(10):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            accelerator.backward((prepared(x) - x[:, :4]).square().mean())
            for one in (first, second):
                one.step()
                one.zero_grad()
        rounds.append(wire.stats()["rounds"])
        wire.detach()
    return [told, rounds, equal_everywhere(flat(model))]


def test_several_optimizers() -> None:
    for told, rounds, equal in on_ranks(several, 2):
        assert "2.weight, 2.bias: trainable, and not in SGD" in told
        assert rounds == [10, 2]
        assert equal


def uneven() -> list[bool]:
    """Loaders that give rank 0 a batch more, in two epochs; under DDP's hook and in DDP's place."""
    prepare()
    equal = []
    for name in ("int4", "diloco:every=2"):
        run = Run(tw.method(name))
        assert run.wire is not None
        x = torch.randn(8 * 7, 16, generator=torch.Generator().manual_seed(1))
        rows = range(8 * 4) if dist.get_rank() == 0 else range(8 * 4, 8 * 7)
        mine = TensorDataset(x[rows.start : rows.stop], x[rows.start : rows.stop, :4].sin())
        loader: DataLoader[Any] = DataLoader(mine, batch_size=8)
        for _ in range(2):
            with run.wire.join():
                for inputs, targets in loader:
                    run.accelerator.backward((run.model(inputs) - targets).square().mean())
                    run.optimizer.step()
                    run.optimizer.zero_grad()
        equal.append(equal_everywhere(torch.cat([p.detach().flatten() for p in run.model.parameters()])))
        run.wire.detach()
    return equal


def test_ranks_may_have_different_numbers_of_batches() -> None:
    assert on_ranks(uneven, 2) == [[True, True], [True, True]]
