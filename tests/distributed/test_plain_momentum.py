"""Momentum that a method keeps reaches the tensors that travel uncompressed, too: small ones, and all in warm-up."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire import Channel, Method
from thinwire.compressors import Sign
from thinwire.exchange import AllGather, Hierarchical
from thinwire.memory import LocalMomentum
from thinwire.sync import Sync

STEPS, LR, M = 60, 0.01, 0.9
LARGE, SMALL = 12_000, 10
RATIO = 0.05  # every element in turn, after 20 steps
DGC = tw.methods.dgc(ratio=RATIO)
WARM = replace(DGC, sync=Sync(warmup=30))
SIGNS = AllGather(Channel(Sign(), LocalMomentum(M)))


class Case(NamedTuple):
    """A method, how many steps it takes, whether inside DDP, and what it is told to leave uncompressed."""

    method: Method
    steps: int
    ddp: bool = False
    exclude: tuple[str, ...] = ()


CASES = {
    "dgc": Case(DGC, STEPS),
    "dgc in ddp": Case(DGC, STEPS, ddp=True),
    "warm": Case(WARM, 30),
    "after it": Case(WARM, 31),
    "votes": Case(tw.methods.signum(), 20, exclude=("small",)),
    "signs": Case(Method(SIGNS), 20, exclude=("small",)),
    "groups": Case(Method(Hierarchical(SIGNS, 2)), 20, exclude=("small",)),
}


class Moved(NamedTuple):
    """How far each tensor has gone, and what a checkpoint would hold of the small one."""

    large: Tensor
    small: Tensor
    held: Tensor


class Constant(nn.Module):
    """Two tensors whose gradient is 1 everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.zeros(LARGE))
        self.small = nn.Parameter(torch.zeros(SMALL))

    def forward(self) -> Tensor:
        return self.large.sum() + self.small.sum()


def every() -> dict[str, tuple[Tensor, ...]]:
    return {name: tuple(move(case)) for name, case in CASES.items()}


def move(case: Case) -> Moved:
    model = Constant()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    call: nn.Module = model
    if case.ddp:
        wrapped = DistributedDataParallel(model)
        state: tw.Wire
        state, hook = tw.ddp_hook(case.method, wrapped, optimizer)
        wrapped.register_comm_hook(state, hook)
        call = wrapped
    else:
        state = tw.attach(model, optimizer, case.method, exclude=case.exclude)
    for _ in range(case.steps):
        optimizer.zero_grad()
        call().backward()
        optimizer.step()
    (mine,) = state.state_dict().values()
    if isinstance(state, tw.Wire):
        state.detach()
    held = [t for key, t in mine["tensors"].items() if key.endswith("|small")]
    return Moved(-model.large.detach(), -model.small.detach(), torch.cat([*held, torch.empty(0)]))


@pytest.fixture(scope="module")
def moved() -> dict[str, list[Moved]]:
    """By case, on each of two ranks; one start of processes for all."""
    ranks = on_ranks(every, 2)
    return {name: [Moved(*found[name]) for found in ranks] for name in CASES}


def near(x: Tensor, value: float) -> bool:
    return torch.allclose(x, torch.full_like(x, value), rtol=1e-5)


def velocity(steps: int) -> list[float]:
    """Of momentum SGD, step by step, where the gradient is 1."""
    return [(1 - M**t) / (1 - M) for t in range(1, steps + 1)]


def in_turns(steps: int) -> float:
    """How far an element goes that is sent every `turn` steps and starts again from rest; the mean of all places."""
    turn = round(1 / RATIO)
    gone = [sum(velocity(first)) + (steps - first) // turn * sum(velocity(turn)) for first in range(1, turn + 1)]
    return sum(gone) / turn


@pytest.mark.parametrize("case", ["dgc", "dgc in ddp"])
def test_small_tensors_of_dgc_have_its_momentum(moved: dict[str, list[Moved]], case: str) -> None:
    """The small one is momentum SGD; the large one loses what starts again from rest every 1/ratio steps."""
    plain, delayed = LR * sum(velocity(STEPS)), LR * in_turns(STEPS)
    assert plain == pytest.approx(5.1, abs=0.01)
    assert delayed == pytest.approx(2.9, abs=0.1)
    for large, small, held in moved[case]:
        assert near(small, plain)
        assert near(held, velocity(STEPS)[-1])
        assert float(large.mean()) == pytest.approx(delayed, rel=0.01)


def test_warm_up_rounds_have_it(moved: dict[str, list[Moved]]) -> None:
    for large, small, _ in moved["warm"]:
        assert near(large, LR * sum(velocity(30)))
        assert near(small, LR * sum(velocity(30)))


def test_warm_up_rounds_hand_it_on(moved: dict[str, list[Moved]]) -> None:
    for large, _, _ in moved["after it"]:
        sent = large > 1.001 * LR * sum(velocity(30))
        assert int(sent.sum()) == round(RATIO * LARGE)
        assert near(large[sent], LR * sum(velocity(31)))


@pytest.mark.parametrize("case", ["votes", "signs", "groups"])
def test_averages_reach_what_is_left_out(moved: dict[str, list[Moved]], case: str) -> None:
    for large, small, held in moved[case]:
        assert near(large, LR * 20)
        assert near(small, LR * sum(1 - M**t for t in range(1, 21)))
        assert near(held, 1 - M**20)
    assert sum(one.held.numel() for one in moved[case]) == (SMALL if case == "groups" else 2 * SMALL)
