"""What is recorded of a bucket's round: pieces, messages and bytes as the engine has them, on any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from ranks import on_ranks
from torch import nn

import thinwire as tw
from thinwire.engine.plan import Item, Parcel
from thinwire.planning.contestant import Contestant, of_method
from thinwire.planning.record import Recorded, _middle, record, record_agreement
from thinwire.planning.script import Ask, Part, Script, Work, extended
from thinwire.sim.foresee import foresee
from thinwire.sim.load import Load, Ready

CPU = torch.device("cpu")
SHAPE = (128, 128)
ITEMS = [Item(f"{at}.weight", SHAPE, CPU) for at in range(3)]
SIZE = 3 * 128 * 128


def contestant(method: tw.Method, items: Sequence[Item], ranks: int) -> Contestant:
    """What is recorded of a pass."""

    def bucket(method: tw.Method, parcel: Parcel) -> Recorded:
        grad = torch.randn(parcel.layout.numel, generator=torch.Generator().manual_seed(0))
        return record(method, parcel, grad, ranks, rounds=1)

    return of_method(
        method, items, ranks, bucket, lambda method, parcels: record_agreement(method, parcels, ranks, rounds=1)
    )


def recorded(text: str, ranks: int) -> list[Ask]:
    return contestant(tw.method(text), ITEMS, ranks).asks


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("sgd", ["ring", "ring"]),
        ("bf16", ["ring", "ring"]),
        ("qsgd:bits=4", ["ring", "scatter", "gather"]),
        ("topk", ["ring", "gather"]),
        ("powersgd:rank=2", ["ring", "ring", "ring"]),
        ("d-psgd", ["swap"]),
    ],
)
def test_messages_are_those_of_the_exchange(text: str, kinds: list[str]) -> None:
    """Of a few bytes are agreements: before what is compressed, after what carries a NaN by itself."""
    asks = recorded(text, 3)
    assert [ask.kind for ask in asks] == kinds
    few = [ask.size < 100 for ask in asks]
    assert few == [text not in ("sgd", "d-psgd")] + (len(kinds) - 1) * [text == "sgd"]
    if text in ("sgd", "bf16"):
        largest = max(asks, key=lambda ask: ask.size)
        assert (largest.size, largest.width) == ((4 * SIZE, 4) if text == "sgd" else (2 * SIZE, 2))


ONE_BY_ONE = tw.Overlap(bucket_mb=0.01)
PASSES = {
    "plain": replace(tw.methods.sgd(), overlap=ONE_BY_ONE),
    "cast": replace(tw.method("bf16"), overlap=ONE_BY_ONE),
    "gathered": tw.methods.topk(),
    "scattered": replace(tw.methods.qsgd(), overlap=tw.Overlap(bucket_mb=1, chunk_mb=0.03)),
    "factored": replace(tw.method("powersgd:rank=2"), overlap=ONE_BY_ONE),
}
"""Buckets of one tensor, or of chunks; biases travel uncompressed."""
WORLD = 2


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128), nn.Linear(128, 128))


def step_of_processes() -> dict[str, tuple[float, float]]:
    """Messages and bytes of the third step of each method."""
    found = {}
    for name, method in PASSES.items():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sent = []
        with tw.attach(model, optimizer, method) as wire:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(4, 128)).square().mean().backward()
                optimizer.step()
                sent.append(wire.stats())
        found[name] = (
            sent[2]["messages"] - sent[1]["messages"],
            sent[2]["bytes_sent"] - sent[1]["bytes_sent"],
        )
    return found


def test_a_pass_sends_what_processes_send_in_a_step() -> None:
    real = on_ranks(step_of_processes, WORLD)[0]
    items = [Item(name, tuple(p.shape), CPU) for name, p in net().named_parameters()]
    for name, method in PASSES.items():
        same_bytes_and_messages(name, contestant(method, items, WORLD).asks, WORLD, *real[name])


def same_bytes_and_messages(name: str, asks: Sequence[Ask], ranks: int, messages: float, sent: float) -> None:
    """Shards and places are of slightly different sizes; of a sum, the network counts whole bytes."""
    assert sum(ask.messages(ranks) for ask in asks) == messages, name
    found = sum(ask.sent(ranks) for ask in asks)
    about = 0.03 * sent if name in ("gathered", "scattered") else len(asks)
    assert found == pytest.approx(sent, abs=about), name


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_of_several_ranks_sends_what_simulated_ones_do(name: str) -> None:
    def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
        out: torch.Tensor = model(torch.ones(4, 128)).square().mean()
        return out

    problem = tw.sim.Problem(net, loss)
    few, more = (tw.simulate(PASSES[name], problem, workers=4, steps=steps).stats[0] for steps in (2, 3))
    items = [Item(name, tuple(p.shape), CPU) for name, p in net().named_parameters()]
    sent = (more[what] - few[what] for what in ("messages", "bytes_sent"))
    same_bytes_and_messages(name, contestant(PASSES[name], items, 4).asks, 4, *sent)


def test_plain_sums_agree_once_and_after_the_last_bucket() -> None:
    items = [Item(f"{at}", (64, 64), CPU) for at in range(5)]
    one = contestant(PASSES["plain"], items, 2)
    assert [len(sending.scripts) for sending in one.sendings] == [1, 1]
    assert [sending.names for sending in one.sendings][-1] == ()
    one = contestant(replace(PASSES["plain"], overlap=tw.Overlap(bucket_mb=0.001)), ITEMS, 2)
    assert [[script.weight for script in sending.scripts] for sending in one.sendings] == [[1 << 16]] * 3 + [[None]]
    assert [ask.size for ask in one.asks] == [1 << 16] * 3 + [3 * 18]


@pytest.mark.parametrize("text", ["sgd", "int8", "ef-signsgd", "powersgd:rank=2"])
def test_bytes_are_those_of_the_clock(text: str) -> None:
    """`foresee` counts what every message carries."""
    method, ranks = tw.method(text), 4
    load = Load(tuple(Ready(item.name, item.shape, 0.1) for item in ITEMS), 0.1)
    one = contestant(method, ITEMS, ranks)
    expected = foresee(method, load, ranks, steps=1).bytes_sent / ranks
    assert one.sent(ranks) == pytest.approx(expected, rel=0.01)
    remembers = {"ef-signsgd": 4 * SIZE * (1 + 1 / ranks), "powersgd:rank=2": 8 * SIZE}
    assert one.memory == pytest.approx(remembers.get(text, 0), rel=0.05)


def test_more_ranks_are_extended_from_fewer() -> None:
    few, more = (Script((Work(0.1 * n), Ask("gather", 1000 + 8000 / n), Ask("ring", 64.0))) for n in (4, 8))
    found = extended((4, few), (8, more), 100)
    computes, gather, ring = found.parts
    assert isinstance(computes, Work)
    assert computes.seconds == pytest.approx(10.0)
    assert ring == Ask("ring", 64.0)
    assert isinstance(gather, Ask)
    assert gather.size == pytest.approx(1080.0)


def test_extended_messages_are_those_of_so_many_ranks() -> None:
    exact, wide = recorded("int8", 8), recorded("int8", 12)
    assert [ask.kind for ask in wide] == [ask.kind for ask in exact]
    assert wide[1].sent(12) == pytest.approx(exact[1].sent(8) * (11 / 12) / (7 / 8), rel=0.02)
    assert wide[2].sent(12) == pytest.approx(exact[2].sent(8) * (11 / 12) / (7 / 8), rel=0.02)


@pytest.mark.parametrize("text", ["asgd", "ad-psgd", "ssp"])
def test_what_has_no_common_step_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no step that all ranks take together.*write tw.simulate"):
        contestant(tw.method(text), ITEMS, 4)


@pytest.mark.parametrize("text", ["lag", "laq"])
def test_uploads_that_may_be_left_out_are_sent(text: str) -> None:
    """As from shapes alone: the same gradient again would never be sent, and the method would cost nothing."""
    load = Load(tuple(Ready(item.name, item.shape, 0.0) for item in ITEMS), 0.0)
    found = foresee(tw.method(text), load, 3, steps=1)
    sent = contestant(tw.method(text), ITEMS, 3).sent(3)
    assert sent == pytest.approx(found.bytes_sent / 3, rel=0.01)


def test_of_many_rounds_those_that_were_disturbed_do_not_count() -> None:
    def usual(*seconds: float) -> Part:
        return _middle([Work(one, 1.0) for one in seconds])

    assert usual(1.0, 4.0, 5.0) == Work(4.0, 1.0)  # one may have been lucky
    kernels = [9.0] * 6  # were compiled
    assert usual(*kernels, 1.0, 1.1, 1.2, 1.1, 1.0, 1.2) == Work(1.1, 1.0)
