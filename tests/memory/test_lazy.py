"""Lazy: the last upload at both ends, and when the next one is due."""

from __future__ import annotations

import pytest
import torch
from battery import vector
from lockstep import Quadratics

from thinwire import Channel, Context, Key, Layout
from thinwire.codecs import BitPack, Rans
from thinwire.comm import Comm
from thinwire.compressors import Identity, LaqGrid, Sign
from thinwire.core.clock import Clock
from thinwire.core.codec import Codec
from thinwire.core.types import State
from thinwire.exchange import AllGather, ScatterGather
from thinwire.lab.world import World
from thinwire.memory import Lazy


def told(n: int = 1, *motion: float) -> Context:
    return Context(Comm(0, 1), Layout.flat(n), Key(), Clock(), motion=motion)


def state_of(*last: float, lost: float = 0.0, age: float = 1.0) -> State:
    q = torch.tensor(last)
    return {"last": q, "lost": torch.full_like(q, lost), "age": torch.full_like(q, age)}


def test_a_change_is_held_against_the_steps() -> None:
    """|v|^2 against xi sum |dx/lr|^2: motion is a mean square, so the bar is its share of the whole."""
    memory, x = Lazy(xi=0.5, depth=2), torch.tensor([3.0, 5.0])
    sent = torch.tensor([1.0, 1.0])
    for motion, due in (((), True), ((1.9, 0.0), True), ((1.0, 0.9), True), ((1.2, 0.9), False), ((0, 0, 9.0), True)):
        state = state_of(2.0, 4.0)
        assert memory.worth(x, sent, state, told(2, *motion)) is due
        assert state["age"].tolist() == ([1, 1] if due else [2, 2])


def test_errors_raise_the_bar() -> None:
    x, sent = torch.tensor([3.0]), torch.tensor([0.8])  # loses 0.2
    assert Lazy().worth(x, sent, state_of(2.0, lost=0.4), told())  # 0.64 >= 3 (0.04 + 0.16)
    assert not Lazy().worth(x, sent, state_of(2.0, lost=0.45), told())
    assert Lazy(weight=1.5).worth(x, sent, state_of(2.0, lost=0.45), told())
    assert not Lazy(weight=1.5, slack=0.4).worth(x, sent, state_of(2.0, lost=0.45), told())


def test_the_first_upload_and_an_overdue_one_are_made() -> None:
    memory, x, sent = Lazy(patience=3), torch.tensor([1.0]), torch.tensor([0.001])
    assert memory.worth(x, sent, state_of(1.0, age=0), told(1, 9.0))
    state, due = state_of(1.0), []
    for _ in range(9):
        due.append(memory.worth(x, sent, state, told(1, 9.0)))
        if due[-1]:
            memory.after(x, sent, state)
    assert due == [False, False, False, True] * 2 + [False]
    assert not Lazy(patience=None).worth(x, sent, state_of(1.0, age=1e6), told(1, 9.0))


def test_rounding_is_not_worth_an_upload() -> None:
    x = vector(100)
    assert not Lazy().worth(x, x * 2.0**-23, {"last": x.clone(), **state_without_last(100)}, told(100))


def state_without_last(n: int) -> State:
    return {"lost": torch.zeros(n), "age": torch.ones(n)}


@pytest.mark.parametrize("compressor", [Identity(), LaqGrid(bits=4)], ids=str)
def test_the_receivers_mean_is_the_mean_of_the_last_uploads(compressor: Identity | LaqGrid) -> None:
    task = Quadratics(n=4, d=64)
    world = World(AllGather(Channel(compressor, Lazy())), Layout.flat(64))

    def check() -> None:
        assert torch.allclose(world.states[2]["recv.last"], world.mean("send.last"), atol=1e-6)

    task.descend(world, lr=0.2, steps=100, check=check)
    assert 4 < world.uploads < 300


def test_what_is_not_finite_is_sent_and_not_remembered() -> None:
    memory = Lazy()
    for bad in (float("nan"), float("inf")):
        x, sent, state = torch.tensor([1.0, bad]), torch.tensor([0.5, bad]), state_of(1.0, 2.0)
        assert memory.worth(x, sent, state, told(2, 1e9))
        memory.after(x, sent, state)
        assert state["last"].tolist() == [1.5, 2.0]
        assert all(t.isfinite().all() for t in state.values())
        assert not memory.receive(sent, {"last": torch.ones(2)})[1].isfinite()


@pytest.mark.parametrize("codec", [BitPack(), Rans()])
def test_both_hops_of_scatter_gather_may_skip(codec: Codec) -> None:
    xs = [vector(2300, seed=r) for r in range(4)]
    world = World(ScatterGather(Channel(LaqGrid(bits=8), Lazy(), codec)), Layout.flat(2300))
    for _ in range(8):
        out = world.step(xs)
    assert world.uploads == 4 * 3 + 3  # three shards, one mean of each: what stays is sent once
    assert torch.allclose(out, torch.stack(xs).mean(0), atol=0.03)


def test_bad_settings_are_refused() -> None:
    for bad in ({"xi": -0.1}, {"weight": -1.0}, {"slack": float("nan")}):
        with pytest.raises(ValueError, match=r"write Lazy\(xi=0.08"):
            Lazy(**bad)  # type: ignore[arg-type]
    for worse in ({"depth": 0}, {"patience": 0}):
        with pytest.raises(ValueError, match="write depth >= 1"):
            Lazy(**worse)
    with pytest.raises(ValueError, match="Lazy cannot settle"):
        Channel(Sign(), Lazy())
