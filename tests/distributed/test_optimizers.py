"""The user's optimizer: several, containers, wrappers, one that never steps, one that communicates itself."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net, said
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

import thinwire as tw

LOCAL = "local-sgd:every=5"


def two(model: nn.Module) -> list[Optimizer]:
    """Matrices and the rest, each with an optimizer of its own, as with Muon."""
    matrices, rest = ([p for p in model.parameters() if (p.ndim == 2) == flat] for flat in (True, False))
    return [SGD(matrices, lr=0.1, momentum=0.9), AdamW(rest, lr=0.01)]


class Container(Optimizer):
    """As in torchtitan: its groups have no settings, and its parts step."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.optimizers = optimizers
        super().__init__([p for part in optimizers for group in part.param_groups for p in group["params"]], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """All parts."""
        for part in self.optimizers:
            part.step()


class Wrapper:
    """As schedulefree's: no optimizer of torch, but with one in it, which steps another point z."""

    def __init__(self, base: Optimizer, momentum: float = 0.9) -> None:
        self.base, self.momentum = base, momentum

    @torch.no_grad()
    def step(self) -> None:
        """x is a mean of the points z, gradients are those at y between them, and parameters are y."""
        points = [p for group in self.base.param_groups for p in group["params"]]
        xs = []
        for p in points:
            z = self.base.state[p].setdefault("z", p.clone())
            xs.append(p.lerp(z, 1 - 1 / self.momentum))
            p.copy_(z)
        self.base.step()
        for p, x in zip(points, xs, strict=True):
            self.base.state[p]["z"].copy_(p)
            p.copy_(x.lerp(p, 0.5).lerp(p, 1 - self.momentum))


class Sharing(SGD):
    """Averages gradients itself, as ZeroRedundancyOptimizer and nanochat's optimizers do."""

    def step(self, closure: Any = None) -> Any:
        """After a sum over ranks."""
        for group in self.param_groups:
            for p in group["params"]:
                dist.all_reduce(p.grad)
        return super().step()


def warned(work: Callable[[], Any]) -> list[str]:
    """What is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [str(one.message) for one in caught]


def steps_of(model: nn.Module, optimizers: list[Any], steps: int = 5) -> None:
    for number in range(steps):
        loss(model, batch(number, dist.get_rank())).backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()


Given = Callable[[list[Optimizer]], Any]


def after(name: str, given: Given, *, whole: bool = False) -> Tensor:
    """The model after five steps of the parts, or of what was attached."""
    model, method = net(), tw.method(name)
    parts = two(model)
    one = given(parts)
    with tw.attach(model, one, method, min_size=0) as wire:
        steps_of(model, [one] if whole else parts)
        assert wire.stats()["rounds"] == 5 // method.sync.every
        assert wire._loop.lr(1) == 0.01
    for part in parts:
        part.load_state_dict(part.state_dict())
    assert equal_everywhere(flat(model))
    return flat(model)


def several() -> None:
    """A list, torchtitan's container and `Joined` make the same model, which is DDP's where DDP has one."""
    for name in ("sgd", LOCAL):
        listed = after(name, list)
        for given, whole in ((Container, False), (Container, True), (lambda x: tw.optim.Joined(*x), True)):
            assert torch.equal(listed, after(name, given, whole=whole)), (name, given)
    for hooked in (False, True):
        ddp = DistributedDataParallel(net())
        parts = two(ddp)
        if hooked:
            wire, hook = tw.ddp_hook(tw.methods.sgd(), ddp, parts)
            ddp.register_comm_hook(wire, hook)
        steps_of(ddp, parts)
        torch.testing.assert_close(after("sgd", list), flat(ddp))


def left_out() -> None:
    model = net()
    muon, adamw = two(model)
    told = said(lambda: tw.attach(model, muon, tw.methods.sgd()))
    assert told.startswith("ValueError: 0.bias, 2.bias, 4.bias: trainable, and not in SGD, so that ranks")
    assert "write a list of all optimizers of the loop in its place, such as [muon, adamw]" in told
    ddp = DistributedDataParallel(net())
    assert "trainable, and not in SGD" in said(lambda: tw.ddp_hook(tw.methods.sgd(), ddp, two(ddp)[0]))
    assert "write one optimizer per parameter" in said(lambda: tw.attach(model, [muon, muon], tw.methods.sgd()))
    assert "write [muon, adamw]" in said(lambda: tw.attach(model, [], tw.methods.sgd()))
    assert "servers" not in said(lambda: tw.attach(model, [muon, adamw], tw.methods.sgd()).detach())
    assert "write one of torch's for the whole model" in said(
        lambda: tw.attach(model, [muon, adamw], tw.methods.asgd())
    )


def wrapped() -> None:
    model = net()
    wrapper = Wrapper(SGD(model.parameters(), lr=0.1))
    told = said(lambda: tw.attach(model, wrapper, tw.method(LOCAL)))  # type: ignore[arg-type]
    assert "Wrapper puts another point into the parameters while SGD steps, and local-sgd:every=5" in told
    with tw.attach(model, wrapper, tw.methods.int4(), min_size=0) as wire:  # type: ignore[arg-type]
        steps_of(model, [wrapper])
        assert wire.stats()["rounds"] == 5
    assert equal_everywhere(flat(model))


def other_steps() -> None:
    """An optimizer that is made anew after attach, or something that is no optimizer, moves the parameters."""
    for name in ("sgd", LOCAL):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        with tw.attach(model, optimizer, tw.method(name)):
            steps_of(model, [optimizer], 2)
            again = AdamW(model.parameters())
            told: list[str] = []
            passes = warned(lambda: told.append(said(lambda: steps_of(model, [again], 2))))  # noqa: B023
            assert not [one for one in passes if "no_sync" in one]
            assert told[0].startswith(
                "ValueError: AdamW has stepped parameters of a wire that follows SGD, which has"
            )
            steps_of(model, [optimizer], 4)

    class Own:
        def __init__(self, model: nn.Module) -> None:
            self._model = model

        def step(self) -> None:
            for p in self._model.parameters():
                p.data -= 0.1 * p.grad  # type: ignore[operator]

    for name in ("sgd", LOCAL):
        model = net()
        wire = tw.attach(model, SGD(model.parameters(), lr=0.1), tw.method(name))
        passes = warned(lambda: steps_of(model, [Own(model)], 4))  # noqa: B023
        (moved,) = [one for one in passes if "SGD" in one or "no_sync" in one]
        assert moved.startswith("parameters have changed between two backward passes, and SGD, whose steps the wire")
        ended = warned(wire.detach)
        assert [
            one.endswith("SGD took no step; write the optimizers that the loop steps in its place") for one in ended
        ] == [True] * (name == LOCAL)
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    wire = tw.attach(model, optimizer, tw.method(LOCAL))
    told = warned(lambda: steps_of(model, [optimizer], 3))
    assert not [one for one in told if "step" in one]
    assert "SGD took 3 steps, fewer than there are in a round" in warned(wire.detach)[0]


def half_a_step() -> None:
    """A GradScaler leaves out the step of one part; the next round begins as if both had stepped."""
    model = net()
    parts = two(model)
    with tw.attach(model, parts, tw.methods.sgd()) as wire:
        told = [*warned(lambda: steps_of(model, parts[:1], 1)), *warned(lambda: steps_of(model, parts, 3))]
        assert not [one for one in told if "no_sync" in one or "step" in one]
        assert wire.stats()["rounds"] == 4
        assert wire.stats()["steps_skipped"] == 0
    assert equal_everywhere(flat(model))


def sends() -> None:
    model = net()
    optimizer = Sharing(model.parameters(), lr=0.1)
    for name in ("qsgd", LOCAL):
        with tw.attach(model, optimizer, tw.method(name), min_size=0):
            told = [one for one in warned(lambda: steps_of(model, [optimizer])) if "Sharing" in one]
            assert len(told) == 1
            assert (
                "Sharing communicates in its step (6 collectives on torch.distributed), which is neither" in told[0]
            )
    model = net()
    plain = SGD(model.parameters(), lr=0.1)
    with tw.attach(model, plain, tw.method("local-sgd:every=1"), min_size=0):
        assert not [one for one in warned(lambda: steps_of(model, [plain])) if "communicates" in one]


class ScheduleFree(Optimizer):
    """As schedulefree.SGDScheduleFree: trained at y, tested at x, with z beside them."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "train_mode": True, "k": 0})

    @torch.no_grad()
    def _go(self, train: bool) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                weight = 1 - group["momentum"] if train else 1 - 1 / group["momentum"]
                p.lerp_(self.state[p]["z"], weight)

    def train(self) -> None:
        """Parameters become y."""
        self._go(True)

    def eval(self) -> None:
        """Parameters become x."""
        self._go(False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """z goes against the gradient, and x is the mean of all z."""
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                c, momentum, lr = 1 / group["k"], group["momentum"], group["lr"]
                p.lerp_(z, c)
                p.add_(p.grad, alpha=lr * (momentum * (1 - c) - 1))
                z.sub_(p.grad, alpha=lr)


def points() -> None:
    """After a round the tested models are equal, and are those of ranks whose points were averaged by hand."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for name in (LOCAL, "diloco:every=5", "sparse-loco:every=5", "streaming-diloco:every=4,fragments=2,delay=1"):
        model = net()
        optimizer = ScheduleFree(model.parameters(), lr=0.05)
        parts: Any = [optimizer]
        if name == LOCAL:  # one of several
            last = [*model.parameters()][-1]
            optimizer = ScheduleFree([*model.parameters()][:-1], lr=0.05)
            parts = [optimizer, SGD([last], lr=0.05)]
        with tw.attach(model, parts, tw.method(name), min_size=0):
            steps_of(model, parts, 5)
            if name == LOCAL:
                assert equal_everywhere(flat(model))
                optimizer.eval()
                assert equal_everywhere(flat(model))
                optimizer.train()
            steps_of(model, parts, 5)
        if "streaming" not in name:  # whose ranks differ at any time
            optimizer.eval()
            assert equal_everywhere(flat(model)), name
    model, alone = net(), net()
    first, second = (ScheduleFree(one.parameters(), lr=0.05) for one in (model, alone))
    with tw.attach(model, first, tw.method("local-sgd:every=2")):
        steps_of(model, [first], 4)
    for number in range(4):
        loss(alone, batch(number, rank)).backward()
        second.step()
        alone.zero_grad()
        if number % 2:
            for p in alone.parameters():
                for tensor in (p.data, second.state[p]["z"]):
                    dist.all_reduce(tensor)
                    tensor /= size
    first.eval()
    second.eval()
    torch.testing.assert_close(flat(model), flat(alone))


def refused_points() -> None:
    for name, word in (
        ("d-psgd", "keeps 'z', a point beside"),
        ("asgd", "servers keep one; write tw.methods.int4()"),
    ):
        model = net()
        optimizer = ScheduleFree(model.parameters(), lr=0.05)

        def run() -> None:
            with tw.attach(model, optimizer, tw.method(name), timeout=20):  # noqa: B023
                steps_of(model, [optimizer], 2)  # noqa: B023

        assert word in said(run), name
    model = net()
    averaging = torch.optim.ASGD(model.parameters(), lr=0.1)
    with tw.attach(model, averaging, tw.method("local-sgd:every=2")):
        steps_of(model, [averaging], 2)
        assert equal_everywhere(torch.cat([averaging.state[p]["ax"].flatten() for p in model.parameters()]))


def advised() -> None:
    """Rank 0 says it once, and again when the method changes; a plan without compression needs no word."""
    model = net()
    optimizer = AdamW(model.parameters())
    wires: list[tw.Wire] = []
    for size, words in ((0, ["ecq-sgd adds noise to every gradient"]), (10_000, [])):
        told = warned(lambda: wires.append(tw.attach(model, optimizer, tw.methods.ecq_sgd(), min_size=size)))  # noqa: B023
        told = [one.partition(",")[0] for one in told if "AdamW" in one]
        assert told == (words if dist.get_rank() == 0 else []), told
        told = warned(lambda: wires[-1].switch(tw.methods.int4()))
        assert not [one for one in told if "AdamW" in one]
        wires[-1].detach()


def resumed() -> None:
    """Rank 0 is told that residuals start at zero, if the optimizer was resumed and the wire was not."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("thinwire").addHandler(handler)
    words = "SGD goes on from earlier steps, and what {} keeps between steps"
    for name, state, says in (
        ("ecq-sgd", {}, False),
        ("ecq-sgd", {}, True),
        ("diloco:every=2", {}, True),
        ("int4", {}, False),
        ("ecq-sgd", {"keep": True}, False),
    ):
        lines.clear()
        with tw.attach(model, optimizer, tw.method(name), min_size=0) as wire:
            if state:
                wire.load_state_dict(wire.state_dict())
            steps_of(model, [optimizer], 2)
            wire.switch(tw.method(name))
            steps_of(model, [optimizer], 2)
        told = [line for line in lines if words.format(name) in line]
        assert len(told) == (says and dist.get_rank() == 0), (name, lines)
    logging.getLogger("thinwire").removeHandler(handler)


def everything() -> None:
    for case in (
        advised,
        resumed,
        several,
        left_out,
        wrapped,
        other_steps,
        half_a_step,
        sends,
        points,
        refused_points,
    ):
        case()


def test_optimizers_of_other_programs() -> None:
    on_ranks(everything, 2)
