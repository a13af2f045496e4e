"""A small net, its data and its training loop, for tests in real processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from battery import vector
from torch import Tensor, nn

from thinwire import Comm, Layout
from thinwire.core.method import METHODS
from thinwire.exchange import AllReduce, Gossip
from thinwire.lab.member import Member
from thinwire.sync import Param, Sync

WIDTH = 24
MUON = "Muon" in vars(torch.optim)
"""Whether torch has the optimizer of muloco: from 2.9 on."""
SERVED = [name for name in METHODS if METHODS[name]().exchange.served]
"""Methods with a server that keeps the model."""
SYNCHRONOUS = [name for name in METHODS if name not in SERVED and not METHODS[name]().sync.of.models]
"""Methods after which all replicas are equal; the others exchange models, or have a server."""
MODELS = [
    name
    for name in METHODS
    if name not in SERVED and METHODS[name]().sync == Sync(of=Param(), every=METHODS[name]().sync.every)
]
"""Methods that exchange models in step."""
BRIEF = {
    "diloco": "diloco:every=2",
    "muloco": "muloco:every=2",
    "streaming-diloco": "streaming-diloco:every=2,fragments=2,delay=1",
    "sparse-loco": "sparse-loco:every=2",
    "cocod-sgd": "cocod-sgd:every=2",
    "overlap-local-sgd": "overlap-local-sgd:every=2",
    "easgd": "easgd:every=2",
    "eamsgd": "eamsgd:every=2",
}
"""Methods with an outer loop, with rounds of two steps."""
SUMMED_BY_THE_BACKEND = {
    **{name: 1e-6 for name in METHODS if METHODS[name]().exchange == AllReduce()},
    "marina": 1e-5,
    "fp16": 0.05,
    "bf16": 0.05,
    "powersgd": 1e-4,
    "randomk": 1e-6,
    "sketched-sgd": 1e-6,
}
"""Methods whose sums depend on the backend's order, and how far they may be from the virtual driver's."""


async def exchange_twice(comm: Comm, method: str, layout: Layout, device: str = "cpu") -> Tensor:
    """Two steps of an exchange on one rank: of vectors, or of a model that starts the same everywhere."""
    exchange = METHODS.parse(method).exchange
    model = vector(layout.numel, seed=1).to(device)
    member = Member(exchange, layout, comm, seed=5, start=model, device=torch.device(device))
    for step in range(2):
        x = vector(layout.numel, seed=10 * step + comm.rank).to(device)
        x = model + 0.01 * x if isinstance(exchange, Gossip) else x
        model = await member.step(x, step, before=model)
    return model


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal, to the bit."""
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


class Point(nn.Module):
    """A vector of `d` zeros, for losses of which the gradient is known."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(d))


def net(seed: int = 0) -> nn.Sequential:
    """Three layers, 1,108 parameters, the same on every rank for the same seed."""
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` notes it down for every device, in 5 ms
    return nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))


def batch(step: int, rank: int | None = None, size: int = 8) -> tuple[Tensor, Tensor]:
    """What a rank sees in a step."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 16, generator=generator)
    return x, x[:, :4].sin()


def loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    out: Tensor = (model(data[0]) - data[1]).square().mean()
    return out


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    data: Callable[[int], tuple[Tensor, Tensor]] = batch,
    *,
    closures: bool = False,
) -> None:
    """With `closures`, steps compute their gradients themselves, as often as the method wants."""

    def evaluate(step: int) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, data(step))
        value.backward()
        return value

    for step in steps:
        if closures:
            assert optimizer.step(partial(evaluate, step)) > 0  # type: ignore[arg-type]
        else:
            evaluate(step)
            optimizer.step()


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def equal_everywhere(x: Tensor) -> bool:
    """Whether all ranks hold the same bits."""
    copies = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, x.contiguous())
    return all(torch.equal(copy.view(torch.uint8), x.view(torch.uint8)) for copy in copies)


def said(call: Callable[[], object]) -> str:
    """The error that a call raises, as text; empty when it raises none."""
    with contextlib.suppress(AssertionError):
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""
