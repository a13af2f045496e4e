"""Results that arrive in the next forward pass, by the engine of `attach`, on the clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.sim import Load, Network, Problem, Simulation, foresee
from thinwire.sim.models import Weight

KB = 2**-10
SMALL = tw.Overlap(bucket_mb=16 * KB, in_flight=1)


def chain(*, broken: int = -1) -> Problem:
    """Twelve layers of 16 KB, whose gradients on rank 1 are not finite in one step."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(12)))

    def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(100 * step + rank))
        x = x / 0 if (rank, step) == (1, broken) else x
        lost: torch.Tensor = (model(x) - x).square().mean()
        return lost

    return Problem(model=model, optimizer=lambda p: torch.optim.Adam(p, lr=0.01), loss=loss, seconds=0.012)


def ran(text: str, into: Literal["ready", "need"] | None, problem: Problem, steps: int) -> Simulation:
    method = replace(tw.method(text), overlap=replace(SMALL, into_forward=into))
    return tw.simulate(method, problem, workers=2, steps=steps, network=Network("100mbit", "10us"), min_size=0)


def models(run: Simulation) -> list[torch.Tensor]:
    return [nn.utils.parameters_to_vector(model.parameters()).detach() for model in run.models]


@pytest.mark.parametrize("text", ["sgd", "qsgd", "ecq-sgd"])
def test_numbers_are_those_of_steps_that_wait(text: str) -> None:
    waits, goes_on = (ran(text, into, chain(broken=2), 5) for into in (None, "ready"))
    for one, other in zip(models(waits), models(goes_on), strict=True):
        assert torch.equal(one, other)
    assert [moment.loss for moment in waits.moments if moment.rank == 0 and moment.step != 2] == [
        moment.loss for moment in goes_on.moments if moment.rank == 0 and moment.step != 2
    ]


def test_what_is_needed_first_overtakes_and_steps_are_shorter() -> None:
    """Four steps after the order has been decided; in the order of backward, all would wait for the first layer."""
    seconds = {}
    for into in (None, "ready", "need"):
        long, short = (ran("sgd", into, chain(), steps) for steps in (15, 11))
        assert torch.equal(*models(long))
        seconds[into] = (long.seconds - short.seconds) / 4
    assert seconds["ready"] == pytest.approx(seconds[None], rel=0.01)
    assert seconds["need"] < 0.9 * seconds[None]


def test_a_large_sum_travels_in_pieces_where_these_have_a_size() -> None:
    """In one piece, it would have one of two lanes, and share the link with what is needed after it."""
    layers = [Weight("embedding", (1 << 22,)), *(Weight(f"{at}.weight", (256, 256), 1e6) for at in range(32))]
    load, link = Load.of(layers, seconds=0.04), Network("1gbit", "10us")
    method = replace(tw.methods.sgd(), overlap=tw.Overlap(bucket_mb=0.25, chunk_mb=0.25, in_flight=2))
    done = foresee(method, load, 2, steps=3, network=link, into_forward="need", marks=True)
    sums = [mark for mark in done.marks if mark.rank == 0 and mark.what == "wire" and mark.chunk >= 0]
    pieces = {mark.chunk for mark in sums}
    assert pieces == set(range(64))
    whole = replace(method, overlap=tw.Overlap(bucket_mb=0.25, in_flight=2))
    waits = foresee(whole, load, 2, steps=1, network=link, marks=True)
    assert {mark.chunk for mark in waits.marks if mark.what == "wire"} <= {-1, 0}
