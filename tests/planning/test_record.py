"""What is recorded of a bucket's round: pieces, messages and bytes as the engine has them, on any number of ranks."""

from __future__ import annotations

import pytest
import torch

import thinwire as tw
from thinwire.engine.plan import Item, plan_of
from thinwire.planning.contestant import of_method
from thinwire.planning.record import record
from thinwire.planning.script import Ask, Script, Work, extended
from thinwire.sim.foresee import foresee
from thinwire.sim.load import Load, Ready

CPU = torch.device("cpu")
SHAPE = (128, 128)
ITEMS = [Item(f"{at}.weight", SHAPE, CPU) for at in range(3)]
SIZE = 3 * 128 * 128


def recorded(text: str, ranks: int) -> list[Ask]:
    method = tw.method(text)
    parcel = plan_of(method, ITEMS, None, ()).parcels[0]
    grad = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    scripts = record(method, parcel, grad, ranks, rounds=1)
    return [part for script in scripts for part in script.parts if isinstance(part, Ask)]


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
    """The first is the agreement: a few bytes."""
    asks = recorded(text, 3)
    assert [ask.kind for ask in asks] == kinds
    if text != "d-psgd":
        assert asks[0].size < 100
    if text in ("sgd", "bf16"):
        assert asks[1].size == (4 if text == "sgd" else 2) * SIZE
        assert asks[1].width == (4 if text == "sgd" else 2)


@pytest.mark.parametrize("text", ["sgd", "int8", "ef-signsgd", "powersgd:rank=2"])
def test_bytes_are_those_of_the_clock(text: str) -> None:
    """`foresee` counts what every message carries."""
    method, ranks = tw.method(text), 4
    load = Load(tuple(Ready(item.name, item.shape, 0.1) for item in ITEMS), 0.1)
    parcel = plan_of(method, ITEMS, None, ()).parcels[0]
    grad = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    one = of_method(method, ITEMS, ranks, lambda method, _: record(method, parcel, grad, ranks, rounds=1))
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
        of_method(tw.method(text), ITEMS, 4, lambda method, parcel: ())
