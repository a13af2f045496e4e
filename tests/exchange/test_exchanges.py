"""Exchanges on the virtual driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import pytest
import torch
from battery import INSTANCES, LAYOUT, vector
from torch import Tensor

from thinwire import Channel, Key, PayloadError, methods
from thinwire.comm import Comm, run
from thinwire.compressors import Identity
from thinwire.core.compressor import Compressor
from thinwire.core.exchange import Exchange
from thinwire.core.slots import Slots
from thinwire.core.types import Context, Layout, State
from thinwire.exchange import AllGather, AllReduce, ScatterGather
from thinwire.kernels.spec import TILE
from thinwire.memory import ErrorFeedback, Memory

N = 4


def exchanged(
    exchange: Exchange,
    xs: list[Tensor],
    layout: Layout,
    steps: int = 1,
    states: dict[int, State] | None = None,
) -> list[Tensor]:
    async def program(comm: Comm) -> Tensor:
        state = exchange.init(layout, comm)
        if states is not None:
            states[comm.rank] = state
        total = torch.zeros(layout.numel)
        for step in range(steps):
            ctx = Context(comm, layout, Key(seed=1, step=step, rank=comm.rank))
            total += await exchange(xs[comm.rank].clone(), state, ctx)
        return total

    return run(program, N).results


@pytest.mark.parametrize("c", INSTANCES, ids=lambda c: c.id)
def test_all_gather_is_the_mean_of_what_each_rank_decodes(c: Compressor) -> None:
    xs = [vector(LAYOUT.numel, seed=r) for r in range(N)]
    results = exchanged(AllGather(Channel(c)), xs, LAYOUT)
    expected = torch.zeros(LAYOUT.numel)
    for rank, x in enumerate(xs):
        key = Key(seed=1, rank=rank)
        c.decode_add(c.encode(x, LAYOUT, key), LAYOUT, expected, 1 / N, key=key)
    for result in results:
        assert torch.equal(result, expected)


def test_all_reduce_is_the_mean() -> None:
    xs = [vector(100, seed=r) for r in range(N)]
    for result in exchanged(AllReduce(), xs, Layout.flat(100)):
        assert torch.allclose(result, torch.stack(xs).mean(0), atol=1e-6)
    assert torch.equal(*exchanged(methods.sgd().exchange, xs, Layout.flat(100))[:2])


@pytest.mark.parametrize("size", [1, 1500, N * TILE, N * TILE + 1])
def test_scatter_gather_is_the_mean(size: int) -> None:
    """Also where all shards have one size, so that no check would notice one in another's place."""
    xs = [vector(size, seed=r) for r in range(N)]
    for result in exchanged(ScatterGather(Channel(Identity())), xs, Layout.flat(size)):
        assert torch.allclose(result, torch.stack(xs).mean(0), atol=1e-6)


def test_error_feedback_loses_nothing() -> None:
    """The total exchanged is the total computed minus the mean of the residuals."""
    xs = [vector(64, seed=r) for r in range(N)]
    mean = torch.stack(xs).mean(0)
    c = next(c for c in INSTANCES if c.id == "scaled-sign")
    states: dict[int, State] = {}
    exchange = AllGather(Channel(c, ErrorFeedback()))
    with_memory = exchanged(exchange, xs, Layout.flat(64), steps=50, states=states)[0]
    residual = torch.stack([s["send.residual"] for s in states.values()]).mean(0)
    assert torch.allclose(with_memory + residual, 50 * mean, atol=1e-3)
    without = exchanged(AllGather(Channel(c)), xs, Layout.flat(64), steps=50)[0]
    assert (with_memory - 50 * mean).norm() < 0.3 * (without - 50 * mean).norm()


def test_a_peer_with_another_method_is_refused() -> None:
    async def program(comm: Comm) -> Tensor:
        exchange = methods.qsgd(norm="max" if comm.rank == 0 else "l2").exchange
        ctx = Context(comm, LAYOUT, Key(rank=comm.rank))
        return await exchange(vector(LAYOUT.numel), exchange.init(LAYOUT, comm), ctx)

    with pytest.raises(PayloadError, match="made by another compressor"):
        run(program, 2)


def test_a_peer_in_another_step_is_refused() -> None:
    async def program(comm: Comm) -> Tensor:
        exchange = methods.qsgd().exchange
        ctx = Context(comm, LAYOUT, Key(rank=comm.rank, step=comm.rank))
        return await exchange(vector(LAYOUT.numel), exchange.init(LAYOUT, comm), ctx)

    with pytest.raises(PayloadError, match="payload of step 1, bucket 0, hop 0 arrived in step 0"):
        run(program, 2)


def test_a_memory_may_skip_a_round() -> None:
    """A rank that has nothing worth sending sends nothing, and counts as zero; all-reduce cannot do that."""

    @final
    @dataclass(frozen=True)
    class OnlyEven(Memory):
        name: ClassVar[str] = "only-even"
        skips: ClassVar[bool] = True

        def slots(self) -> Slots:
            return {}

        def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
            return x if ctx.comm.rank % 2 == 0 else None

        def after(self, x: Tensor, sent: Tensor, state: State) -> None:
            pass

        def receive(self, got: Tensor, state: State) -> Tensor:
            return got

    xs = [torch.full((8,), float(r + 1)) for r in range(N)]
    for result in exchanged(AllGather(Channel(Identity(), OnlyEven())), xs, Layout.flat(8)):
        assert torch.equal(result, torch.full((8,), (1 + 3) / 4))
    with pytest.raises(ValueError, match="skips rounds, and AllReduce cannot"):
        AllReduce(Channel(Identity(), OnlyEven()))
