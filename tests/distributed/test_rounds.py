"""Rounds in which ranks may be lost, on groups that torch.distributed makes: beside `attach`, where nobody is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss
from ranks import on_ranks
from torch import nn

import thinwire as tw
from thinwire.core.comm import Comm
from thinwire.engine import roll
from thinwire.engine.crew import Crew, Crews
from thinwire.engine.member import Member, check_membership
from thinwire.engine.settings import Settings
from thinwire.exchange import AllGather, AllReduce, Hierarchical, ScatterGather
from thinwire.memory import Difference, ErrorFeedback
from thinwire.sync import AtEnd, Delta, Mixed, Sgd, Shrinking

EF = tw.Channel(tw.compressors.TopK(0.1), ErrorFeedback())
NOISY = tw.Channel(tw.compressors.Qsgd(bits=4), ErrorFeedback(0.2, 0.9))
OUTER: dict[str, tuple[tw.exchange.Exchange, Delta]] = {
    "top-k": (AllGather(EF), Delta()),
    "fragments": (AllGather(NOISY), Delta(fragments=2, merge=Mixed(0.5))),
    "means": (AllReduce(), Delta(moments="mean", buffers="mean")),
}


class Standing(Crews):
    """The same ranks always, with another group after every failure."""

    def __init__(self, groups: int) -> None:
        self._groups = [dist.new_group() for _ in range(groups)]
        self._crew: Crew | None = None
        self.rounds = 0

    def assemble(self) -> Crew:
        self._crew = self._crew or Crew(self._groups.pop(), 3, 60.0)
        return self._crew

    def dissolve(self, error: Exception) -> None:
        self.leave()

    def settled(self, rounds: int) -> None:
        self.rounds = rounds

    def leave(self) -> None:
        if self._crew is not None:
            self._crew.close()
        self._crew = None


def normed() -> nn.Module:
    """Different on every rank, until it has met the others."""
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(16, 40), nn.BatchNorm1d(40), nn.Tanh(), nn.Linear(40, 4))


def trained(model: nn.Module, wire: Any, optimizer: torch.optim.Optimizer, steps: int = 12) -> torch.Tensor:
    with wire:
        for step in range(steps):
            optimizer.zero_grad()
            loss(model, batch(step)).backward()
            optimizer.step()
    buffers = [buffer.float().flatten() for buffer in model.buffers()]
    return torch.cat([flat(model), *buffers])


def beside_attach() -> dict[str, tuple[bool, bool, int]]:
    """By method: are the bits those of `attach`, with and without two rounds that failed at their ballot."""
    found = {}
    for name, (exchange, of) in OUTER.items():
        method = tw.Method(exchange, tw.Sync(of=of, every=4))
        models = [normed() for _ in range(3)]
        optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
        bits = [trained(models[0], tw.attach(models[0], optimizers[0], method, min_size=0), optimizers[0])]
        for model, optimizer, fails in ((models[1], optimizers[1], ()), (models[2], optimizers[2], (1, 3))):
            calls: list[int] = []
            sound = roll.ballot

            async def ballot(
                comm: Comm, calls: list[int] = calls, fails: tuple[int, ...] = fails, sound: Any = sound
            ) -> None:
                await sound(comm)
                calls.append(len(calls))
                if calls[-1] in fails:
                    raise tw.PeerError("it was not heard")

            roll.ballot = ballot
            wire = Member(model, optimizer, method, Standing(1 + len(fails)), Settings(min_size=0))
            bits.append(trained(model, wire, optimizer))
            roll.ballot = sound
            again = int(wire.stats()["rounds_again"])
        found[name] = torch.equal(bits[0], bits[1]), torch.equal(bits[0], bits[2]), again
    return found


def weighted() -> tuple[float, bool, int]:
    """Rank r has seen 1 + 3 r samples: how far the anchor is from the mean over samples of the models."""
    model = nn.Linear(6, 5, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    method = tw.Method(AllReduce(), tw.Sync(of=Delta(outer=Sgd(lr=1.0, momentum=0.0)), every=2))
    crews = Standing(1)
    with Member(model, optimizer, method, crews, Settings()) as wire:
        begin = model.weight.detach().clone()
        for _ in range(2):
            optimizer.zero_grad()
            (model.weight.sum() * (1 + dist.get_rank())).backward()
            wire.samples(1 + 3 * dist.get_rank())
            optimizer.step()
        anchor = wire.anchor()["weight"]
    samples = [1 + 3 * rank for rank in range(dist.get_world_size())]
    moved = sum(2 * (1 + rank) * count for rank, count in enumerate(samples)) / sum(samples)
    return float((anchor - (begin - moved)).abs().max()), equal_everywhere(flat(model)), crews.rounds


def resumed() -> list[bool]:
    """Whether training goes on, bit for bit, from states saved in the midst of a round."""
    found = []
    for exchange in (AllGather(EF), ScatterGather(NOISY)):
        method = tw.Method(exchange, tw.Sync(of=Delta(), every=4))
        bits, state = [], None
        for first in (0, 6):
            model = normed()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            with Member(model, optimizer, method, Standing(1), Settings(min_size=0)) as wire:
                if state is not None:
                    wire.load_state_dict(state)
                for step in range(first, 12):
                    if step == 6 and state is None:
                        state = wire.state_dict()
                    optimizer.zero_grad()
                    loss(model, batch(step)).backward()
                    optimizer.step()
                    wire.samples(8)
            bits.append(torch.cat([flat(model), *(buffer.float().flatten() for buffer in model.buffers())]))
        found.append(torch.equal(*bits))
    return found


def all_cases() -> tuple[Any, ...]:
    return beside_attach(), weighted(), resumed()


def test_rounds_have_the_bits_of_attach_and_a_failed_one_leaves_no_trace() -> None:
    for found, (apart, equal, rounds), on in on_ranks(all_cases, 3):
        assert found == dict.fromkeys(OUTER, (True, True, 2))
        assert apart < 1e-5
        assert equal
        assert rounds == 1
        assert on == [True, True]


def forgetful() -> list[tuple[str, bool]]:
    """What each memory holds after a change of crew: a residual is kept, what a rank knew of others is not."""
    found = []
    for exchange in (AllGather(EF), ScatterGather(EF), AllGather(replace(EF, memory=Difference(0.5)))):
        torch.manual_seed(0)
        model = nn.Linear(16, 128, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        crews = Standing(2)
        with Member(
            model, optimizer, tw.Method(exchange, tw.Sync(of=Delta(), every=1)), crews, Settings(min_size=0)
        ) as w:
            optimizer.zero_grad()
            (model(batch(0)[0]).square().mean()).backward()
            optimizer.step()
            (chunk,) = w._loop.buckets[0].chunks
            before = {name: tensor.clone() for name, tensor in chunk.state.items()}
            assert all(bool(tensor.any()) for tensor in before.values())
            crews.leave()
            w._schedule._board(crews.assemble())
            for name, tensor in before.items():
                found.append((name, torch.equal(chunk.state[name], tensor)))
                assert found[-1][1] or not chunk.state[name].any()
    return found


def test_what_a_memory_knows_of_other_ranks_is_forgotten_with_them() -> None:
    for found in on_ranks(forgetful, 2):
        assert found == [
            ("send.residual", True),
            ("up.send.residual", True),
            ("down.send.residual", False),
            ("send.shift", False),
            ("recv.shift", False),
        ]


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (tw.methods.qsgd(), r"no outer loop.*write thinwire.methods.diloco\(\)"),
        (tw.Method(AllGather(EF), tw.Sync(of=Delta(delay=2), every=4)), "write delay=0"),
        (tw.Method(AllGather(EF), tw.Sync(of=Delta(period=Shrinking()), every=4)), r"write Fixed\(\)"),
        (tw.Method(AllGather(EF), tw.Sync(of=Delta(period=AtEnd()), every=4)), r"write Fixed\(\)"),
        (tw.Method(tw.methods.d_psgd().exchange, tw.Sync(of=Delta(), every=4)), "write AllGather, or ScatterGather"),
        (tw.Method(Hierarchical(AllGather(EF), 2), tw.Sync(of=Delta(), every=4)), "write AllGather"),
    ],
)
def test_methods_that_need_to_know_their_ranks_are_refused(method: tw.Method, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_membership(method)
