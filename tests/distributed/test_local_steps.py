"""The local-SGD family in real processes: as on the clock, resumed in the middle of a round, and told its losses."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import batch, flat, loss, net, said, same
from ranks import on_ranks
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.sim import Problem, simulate

STEPS, HALF = 9, 5
NAMES = [
    "local-sgd:every=4",
    "local-sgd:every=4,moments=mean",
    "pr-sgd:every=3",
    "one-shot",
    "parameter-mixing:every=4",
    "post-local-sgd:start=6,every=2",  # saved before the switch
    "post-local-sgd:start=2,every=4",  # saved three steps after it
    "ada-lupa:every=1,alpha=1",
    "adacomm:every=4",
    "pqasgd:every=3",
    "qsparse-local-sgd:every=3,ratio=0.1",
    "slowmo:every=3",
    "slowmo:every=3,topology=ring",
    "bmuf:every=3",
    "bmuf:every=3,nesterov=true",
]
"""At `HALF` all of them are in the middle of a round, but for the one that has not switched yet."""


Ended = tuple[Tensor, Tensor, float, Any]
"""The model trained through and the resumed one, rounds, and what the outer optimizer remembers at `HALF`."""


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.05, momentum=0.9)


def trained(name: str, saved: dict[str, Any], begin: int = 0) -> tuple[Tensor, float]:
    """Train from `begin` and what was saved there, or with a checkpoint at `HALF`; ranks report their own losses."""
    model = net()
    optimizer = sgd(model.parameters())
    wire = tw.attach(model, optimizer, tw.method(name), min_size=0, seed=7)
    if begin:
        optimizer.load_state_dict(saved["optimizer"])
        wire.load_state_dict(saved["wire"])
    for step in range(begin, STEPS):
        if step == HALF and not begin:
            saved |= deepcopy({"optimizer": optimizer.state_dict(), "wire": wire.state_dict()})
        optimizer.zero_grad()
        value = loss(model, batch(step))
        value.backward()
        wire.report_loss(value)
        optimizer.step()
    wire.detach()  # where one-shot averaging has its round
    return flat(model), wire.stats()["outer_rounds"]


def both(name: str) -> Ended:
    saved: dict[str, Any] = {}
    through, rounds = trained(name, saved)
    state = saved["wire"][f"rank{dist.get_rank()}"]
    assert state["step"] == HALF
    return through, trained(name, saved, HALF)[0], rounds, state["outer"]


def silent() -> str:
    """Nobody reports a loss."""
    model = net()
    optimizer = sgd(model.parameters())
    with tw.attach(model, optimizer, tw.methods.adacomm(every=1), min_size=0):
        loss(model, batch(0)).backward()
        return said(optimizer.step)


def everything() -> tuple[list[Ended], str]:
    return [both(name) for name in NAMES], silent()


@pytest.fixture(scope="module")
def ranks() -> list[tuple[list[Ended], str]]:
    return on_ranks(everything, 2)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_as_on_the_clock_and_resumes_in_the_middle_of_a_round(
    name: str, ranks: list[tuple[list[Ended], str]]
) -> None:
    ends = [ended[NAMES.index(name)] for ended, _ in ranks]
    problem = Problem(net, lambda model, rank, step: loss(model, batch(step, rank)), sgd)
    clock = simulate(tw.method(name), problem, 2, steps=STEPS, seed=7, min_size=0)
    for rank, (through, resumed, rounds, _) in enumerate(ends):
        assert torch.equal(through, resumed)
        assert rounds == clock.stats[rank]["outer_rounds"] > 0
        torch.testing.assert_close(through, flat(clock.models[rank]), rtol=0, atol=1e-6)
    one, other = (outer for *_, outer in ends)
    if "topology" not in name:  # neighbours each have their own
        assert same(one, other)
    assert bool(one) == name.startswith(("slowmo", "bmuf"))


def test_a_period_that_follows_the_loss_must_be_told(ranks: list[tuple[list[Ended], str]]) -> None:
    for _, told in ranks:
        assert "write wire.report_loss(loss) in every step" in told
