"""Results that arrive in the next forward pass, in real processes: the numbers are those of steps that wait."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from nets import batch, equal_everywhere, flat, loss, net, said, train
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire.engine import planner
from thinwire.engine.planned import Cost

KB = 2**-10
FIXED = tw.Overlap(bucket_mb=4 * KB, chunk_mb=1 * KB, in_flight=2)
INTO = replace(FIXED, into_forward="ready")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class Tied(nn.Module):
    """Reads parameters of modules that it does not call, and one that is used again where it is owned."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2)
        self.head = nn.Linear(16, 16)
        self.never = nn.Linear(4, 4)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.head.weight
        x = self.attention(x, x, x)[0]
        out: Tensor = self.last(self.head(x))
        return out


def tied() -> nn.Module:
    torch.manual_seed(3)
    return Tied()


def trained(
    make: Callable[[], nn.Module], method: tw.Method, optimizer: str, steps: int = 6, **more: Any
) -> tuple[Tensor, list[float], dict[str, float]]:
    """With a schedule of learning rates, an evaluation, an accumulated batch, and a NaN on one rank."""
    model = make()
    opt = OPTIMIZERS[optimizer](model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    losses = []
    with tw.attach(model, opt, method, min_size=100, **more) as wire:
        for step in range(steps):
            opt.zero_grad()
            x, y = batch(step)
            if step == 3:
                with wire.no_sync():
                    loss(model, batch(100)).backward()
            if step == 4 and torch.distributed.get_rank() == 1:
                y[0, 0] = torch.nan
            value = loss(model, (x, y))
            value.backward()
            opt.step()
            scheduler.step()
            losses.append(float(value.detach()))
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
                losses.append(float(loss(model, batch(50 + step))))
        stats = wire.stats()
    return flat(model), losses, stats


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int32)  # a NaN is not equal to itself


def same_numbers(text: str, optimizer: str, **more: Any) -> bool:
    method = tw.method(text)
    for make in (net, tied):
        waits, lost, counted = trained(make, replace(method, overlap=FIXED), optimizer, **more)
        goes_on, lost_too, counted_too = trained(make, replace(method, overlap=INTO), optimizer, **more)
        assert torch.equal(bits(torch.tensor(lost)), bits(torch.tensor(lost_too))), (text, lost, lost_too)
        assert counted["steps_skipped"] == counted_too["steps_skipped"]
        if not (torch.equal(bits(waits), bits(goes_on)) and equal_everywhere(goes_on)):
            return False
    return True


def resumes() -> dict[str, bool]:
    """A checkpoint between a step and the next forward pass, by the states of model, optimizer and wire."""
    method = replace(tw.method("ecq-sgd"), overlap=INTO)
    model = net()
    opt = OPTIMIZERS["adamw"](model.parameters())
    with tw.attach(model, opt, method, min_size=0) as wire:
        train(model, opt, range(3))
        under_way = wire._driver.schedule.lacks
        saved = copy.deepcopy((model.state_dict(), opt.state_dict(), wire.state_dict()))
        train(model, opt, range(3, 5))
        wire.settle()
        first = flat(model)
        other = tw.methods.qsgd()
        train(model, opt, range(5, 6))
        wire.switch(replace(other, overlap=INTO))
        switched = not wire._driver.schedule.lacks
        train(model, opt, range(6, 9))
    again = net(seed=5)
    opt = OPTIMIZERS["adamw"](again.parameters())
    with tw.attach(again, opt, method, min_size=0) as wire:
        train(again, opt, range(2))  # what is under way then is not taken after the states are loaded
        again.load_state_dict(saved[0])
        opt.load_state_dict(saved[1])
        wire.load_state_dict(saved[2])
        train(again, opt, range(3, 5))
    return {"under way": under_way, "same": torch.equal(first, flat(again)), "switched": switched}


def in_need() -> dict[str, bool]:
    """Buckets overtake each other in one order, which a checkpoint keeps."""
    method = replace(tw.method("ecq-sgd"), overlap=replace(INTO, bucket_mb=1 * KB, into_forward="need"))
    model, again = net(), net()
    opts = [OPTIMIZERS["adamw"](one.parameters()) for one in (model, again)]
    with tw.attach(model, opts[0], method, min_size=0) as wire:
        before = [parcel.items for parcel in wire.plan().parcels]
        with mock.patch.object(planner, "pace", return_value=Cost(1.0, 0.0)):  # so slow that all are overtaken
            train(model, opts[0], range(2 * (planner.ROUNDS + 1) + 2))
        after = [parcel.items for parcel in wire.plan().parcels]
        saved = copy.deepcopy((model.state_dict(), opts[0].state_dict(), wire.state_dict()))
        train(model, opts[0], range(20, 22))
    with tw.attach(again, opts[1], method, min_size=0) as wire:
        again.load_state_dict(saved[0])
        opts[1].load_state_dict(saved[1])
        wire.load_state_dict(saved[2])
        kept = [parcel.items for parcel in wire.plan().parcels] == after
        train(again, opts[1], range(20, 22))
    overtaken = before != after and sorted(before) == sorted(after)
    equal = torch.equal(flat(model), flat(again)) and equal_everywhere(flat(model))
    return {"overtaken": overtaken, "kept": kept, "same": equal}


class Counting(torch.optim.SGD):
    """Keeps something that is not a parameter's own."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def refused() -> dict[str, str]:
    """What would read gradients that are on their way, or parameters that lack some."""
    out = {}
    model = net()
    opt = OPTIMIZERS["sgd"](model.parameters())
    with tw.attach(model, opt, replace(tw.methods.sgd(), overlap=INTO), min_size=0):
        loss(model, batch(0)).backward()
        out["clip"] = said(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        out["twice"] = said(lambda: loss(model, batch(1)).backward())
        opt.zero_grad()  # the step is left out, and the next one is as good as any
        out["closure"] = said(lambda: opt.step(lambda: 0.0))
        loss(model, batch(2)).backward()
        opt.step()
        loss(model, batch(3)).backward()
        opt.step()
        model.state_dict()
        before = flat(model)
        loss(model, batch(4)).backward()
        opt.zero_grad()
        opt.step()
        model.state_dict()
        out["zeroed"] = "" if torch.equal(before, flat(model)) else "stepped"
        loss(model, batch(5)).backward()
        opt.step()
        x, _ = batch(6)
        unasked = model[1:](nn.functional.linear(x, model.get_parameter("0.weight")))  # it waits for the others
        out["unread"] = said(unasked.sum().backward)
    method = replace(tw.methods.sgd(), overlap=INTO)
    model = net()
    counting = Counting(model.parameters(), lr=0.1)
    with tw.attach(model, counting, method):
        loss(model, batch(0)).backward()
        counting.step()
        out["counting"] = said(lambda: loss(model, batch(1)))
    out["ddp"] = said(lambda: tw.ddp_hook(method, DistributedDataParallel(net())))
    return out


def everything() -> dict[str, Any]:
    return {
        "sgd": same_numbers("sgd", "sgd"),
        "qsgd": same_numbers("qsgd", "adamw", on_nonfinite="keep"),
        "ecq": same_numbers("ecq-sgd", "sgd"),
        "powersgd": same_numbers("powersgd", "adamw"),
        "topk": same_numbers("topk", "sgd"),
        "resumes": resumes(),
        "in need": in_need(),
        "refused": refused(),
    }


def test_numbers_are_those_of_steps_that_wait() -> None:
    for found in on_ranks(everything, 2):
        assert [name for name, equal in found.items() if equal is False] == []
        assert found["resumes"] == {"under way": True, "same": True, "switched": True}
        assert found["in need"] == {"overtaken": True, "kept": True, "same": True}
        refused = found["refused"]
        assert refused["zeroed"] == ""
        assert "Counting changes 'steps' of its parameter groups" in refused["counting"]
        assert "DDP waits for its hook's results" in refused["ddp"]
        assert "cannot be read, clipped" in refused["clip"]
        assert "with wire.no_sync():" in refused["twice"]
        assert "a closure's gradients are needed at once" in refused["closure"]
        assert "0.weight was used in this forward pass before its update" in refused["unread"]


@pytest.mark.parametrize("text", ["local-sgd", "deepsqueeze", "diloco", "laq"])
def test_methods_without_gradients_in_step_are_refused(text: str) -> None:
    method = replace(tw.method(text), overlap=INTO)
    with pytest.raises(ValueError, match=r"write Overlap\(into_forward=None\)"):
        tw.simulate(method, "digits", workers=2, steps=1)
